"""Builds the documentation site: ``build_docs.py [--sources-only]``. The site is .check/docs/site/index.html.

The documents in the repository link to each other and to files as they lie there, so that they can be read without the
site. The site's sources are a copy in which links to files outside docs/ lead to pages with those files' text, and the
navigation lists every page. The page about Python is written from the public names, for mkdocstrings.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from build_wheel import unpack_wheel

import octavo

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / ".check" / "docs"
SOURCE = BUILD / "source"

PLACES = {
    "README.md": "index.md",
    "docs/README.md": "documents.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
}
"""Documents whose place on the site is not their place below docs/."""

LINK = re.compile(r"(?P<before>!?\[[^\]]*\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)

LANGUAGES = {".py": "python", ".toml": "toml", ".service": "ini", ".target": "ini", ".yml": "yaml", ".json": "json"}


def documents() -> dict[Path, Path]:
    """Every document, relative to the root of the tree, and its place in the site's sources."""
    found = {Path(name): Path(place) for name, place in PLACES.items()}
    for path in sorted((ROOT / "docs").rglob("*")):
        relative = path.relative_to(ROOT)
        if path.is_file() and relative not in found:
            place = relative.relative_to("docs")
            found[relative] = place.with_name("index.md") if place.name == "README.md" else place
    return found


class Sources:
    """The sources of the site while they are put together."""

    def __init__(self) -> None:
        self.places = documents()
        self.files: dict[Path, Path] = {}
        """Files of the tree that a document links to, and the page that shows each."""

    def write(self) -> None:
        """Write all of them into an empty folder."""
        shutil.rmtree(SOURCE, ignore_errors=True)
        for path, place in self.places.items():
            target = SOURCE / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                target.write_text(self.with_links(path, place), encoding="utf-8")
            else:
                shutil.copy2(ROOT / path, target)
        for path, place in self.files.items():
            target = SOURCE / place
            target.parent.mkdir(parents=True, exist_ok=True)
            text = (ROOT / path).read_text(encoding="utf-8")
            target.write_text(f"# {path}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}````\n", encoding="utf-8")
        (SOURCE / "reference").mkdir(exist_ok=True)
        (SOURCE / "reference" / "python.md").write_text(python_page(), encoding="utf-8")

    def with_links(self, path: Path, place: Path) -> str:
        """A document with links that lead to where the site has their targets."""
        text = (ROOT / path).read_text(encoding="utf-8")
        pieces, end = [], 0
        for fence in [*FENCE.finditer(text), None]:
            stop = len(text) if fence is None else fence.start()
            pieces.append(LINK.sub(lambda link: self._link(link, path, place), text[end:stop]))
            if fence is not None:
                pieces.append(fence[0])
                end = fence.end()
        return "".join(pieces)

    def _link(self, link: re.Match[str], path: Path, place: Path) -> str:
        if re.match(r"[a-z]+:", link["target"]):
            return link[0]
        linked = Path(os.path.normpath(path.parent / link["target"]))
        if (ROOT / linked).is_dir():
            linked /= "README.md"
        target = self.places.get(linked)
        if target is None:
            target = self.files.setdefault(linked, Path("files") / linked.with_name(f"{linked.name}.md"))
        relative = os.path.relpath(target, place.parent)
        return f"{link['before']}{relative}{link['anchor'] or ''})"


GROUPS = {
    "Connecting": ("connect", "Client", "ClientOptions", "Tls", "Opening"),
    "Logs": ("Log", "LogWriter", "LogEntry", "Cursor", "Gap", "Retention", "KeyWindow"),
    "Looking at logs": ("LogStatus", "SegmentStatus", "CursorState", "LogExtent", "LogStatistics", "Keyed", "keyed_of"),
    "Looking at a cluster": ("BookieStatus", "BookieState", "ClientStatistics", "ConnectionStatistics"),
    "Ledgers": ("LedgerWriter", "ExplicitIdWriter", "LedgerReader", "Entry", "EntryBatch", "Digest", "Quorums"),
}
"""Names that stand together on the page about Python, in the order of a user's day; the other classes follow."""

MADE_BY_OTHERS = {"Client", "Log", "LogWriter", "Cursor", "LedgerWriter", "ExplicitIdWriter", "LedgerReader", "Opening"}
"""Classes that users do not make themselves: their arguments are not shown."""

FUNCTIONS = {
    "Metrics": ("octavo.metrics.export.register", "octavo.metrics.export.instrument_otel"),
    "Spark": ("octavo.pipeline.register",),
}
"""Functions of public modules, which close the page."""

PYTHON_HEAD = """# Python

These are the public names of the package `octavo`; what is not listed here is not promised.

The examples are sessions of `python -m asyncio`, where `await` works at the prompt; a test plays them
all. `client` is what `octavo.connect(...)` gave, in a cluster of three bookies. In the examples of
`Log`, `log` is a log with the entries `first`, `second` and `third`; in those of `LogWriter`,
`writer` leads a new log; `ledger` is the writer of a new ledger, `reader` reads one with the same
three entries, and `cursor` is a new cursor of such a log.
"""


def python_page() -> str:
    """The public names, each with its docstring."""
    homes: dict[str, str] = octavo._HOMES
    kinds = {title: list(names) for title, names in GROUPS.items()} | {"Others": [], "Errors": []}
    listed = {name for names in kinds.values() for name in names}
    for name in octavo.__all__:
        value: Any = getattr(octavo, name)
        if isinstance(value, type) and name not in listed:
            kinds["Errors" if issubclass(value, Exception) else "Others"].append(name)
    text = PYTHON_HEAD
    for title, names in kinds.items():
        text += f"\n## {title}\n"
        for name in names:
            home = homes.get(name, "octavo.protocol.errors")
            text += f"\n::: {home}.{name}\n    options:\n      heading_level: 3\n"
            if name in MADE_BY_OTHERS:
                text += "      merge_init_into_class: false\n"
    for title, functions in FUNCTIONS.items():
        text += f"\n## {title}\n"
        text += "".join(f"\n::: {function}\n    options:\n      heading_level: 3\n" for function in functions)
    return text


def navigation(entries: list[Any]) -> list[Any]:
    """The navigation with folders replaced by the pages in them. Pages that only the site has stand without suffix."""
    done: list[Any] = []
    for entry in entries:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            done.append({title: navigation(target)})
        elif target.endswith(".md") or (SOURCE / f"{target}.md").exists():
            done.append({title: target if target.endswith(".md") else f"{target}.md"})
        else:
            pages = sorted(path.relative_to(SOURCE) for path in (SOURCE / target).glob("*.md"))
            first = [page for page in pages if page.name == "index.md"]
            done.append({title: [str(page) for page in [*first, *(page for page in pages if page not in first)]]})
    return done


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML ships no types
    """Reads mkdocs.yml without making the objects that it names."""


class _Tagged(dict[str, Any]):
    """A value with a tag of its own, written back as it was."""

    tag = ""


def _keep_tag(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> _Tagged:
    assert isinstance(node, yaml.MappingNode)
    value = _Tagged(loader.construct_mapping(node, deep=True))
    value.tag = f"tag:yaml.org,2002:python/{suffix}"
    return value


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # as above
    """Writes the configuration with the values that the loader kept."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", _keep_tag)
_Dumper.add_representer(_Tagged, lambda dumper, value: dumper.represent_mapping(value.tag, dict(value)))


def write_configuration() -> Path:
    """The configuration with every page in the navigation."""
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)
    settings["nav"] = navigation(settings["nav"])
    files = sorted(path.relative_to(SOURCE) for path in (SOURCE / "files").rglob("*.md"))
    settings["nav"].append({"Files": [str(path) for path in files]})
    handlers = next(plugin["mkdocstrings"] for plugin in settings["plugins"] if "mkdocstrings" in plugin)["handlers"]
    handlers["python"]["paths"] = [str(BUILD / "wheel")]
    handlers["python"]["options"]["extensions"] = [str(ROOT / "scripts" / "artifacts" / "docstring_links.py")]
    settings["docs_dir"], settings["site_dir"] = str(SOURCE), str(BUILD / "site")
    path = BUILD / "mkdocs.yml"
    path.write_text(yaml.dump(settings, Dumper=_Dumper, sort_keys=False), encoding="utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--sources-only", action="store_true", help="only put the sources together")
    arguments = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    sources = Sources()
    sources.write()
    configuration = write_configuration()
    if arguments.sources_only:
        print(SOURCE)
        return 0
    # The reference is read from the sources as they are installed: the folders of the tree have other names.
    unpack_wheel(BUILD / "wheel")
    # Not --quiet: it keeps --strict from counting warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(configuration)]
    # The notice about the future of the theme is no warning about these documents.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stderr + done.stdout)
        return done.returncode
    print(BUILD / "site" / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
