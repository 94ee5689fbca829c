"""The documentation site: its sources have every document with links that lead somewhere, and it builds strictly."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import build_docs
import pytest
from support.tree import ROOT

import octavo


@pytest.fixture(scope="module")
def site() -> Path:
    """The built site."""
    # Spark's tests keep their workers from importing out of the working folder; a script lives beside its modules.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, "scripts/artifacts/build_docs.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.strip()).parent


def test_every_document_is_a_page_of_the_site(site: Path) -> None:
    pages = [place.with_suffix(".html") for path, place in build_docs.documents().items() if path.suffix == ".md"]
    assert [page for page in pages if not (site / page).exists()] == []


def test_every_public_name_is_on_the_page_about_python(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text()
    missing = [name for name in octavo.__all__ if name != "__version__" and f'.{name}"' not in page]
    assert missing == []
    assert "docstring" not in re.sub(r"<[^>]+>", "", page).lower()


def test_docstrings_are_markdown_on_the_page_about_python(site: Path) -> None:
    """Errors are lists with links, examples are code, and roles of Sphinx have become links."""
    page = (site / "reference" / "python.html").read_text()
    assert re.findall(r":(?:class|meth|func|attr|data):", page) == []
    words = re.sub(r"<[^>]+>", "", page)
    assert "Raises:" in words
    assert re.search(r"^\s+(Raises|Examples):.*\w", words, re.MULTILINE) is None
    assert 'href="#octavo.client.log.log.Log.lead"' in page


def test_links_within_the_site_lead_somewhere(site: Path) -> None:
    def broken(page: Path) -> list[str]:
        targets = {
            found for found in re.findall(r'href="([^"#?]+)', page.read_text()) if not re.match(r"[a-z]+:", found)
        }
        return [target for target in targets if not Path(os.path.normpath(page.parent / unquote(target))).exists()]

    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # its links begin at the host's root
    assert {page.relative_to(site): found for page in pages if (found := broken(page))} == {}


def test_the_site_asks_no_other_host_for_anything(site: Path) -> None:
    loaded = re.compile(r'<(?:link|script|img)[^>]+(?:href|src)="(https?:[^"]+)"')
    assert {found for page in site.rglob("*.html") for found in loaded.findall(page.read_text())} == set()
