"""The pages that are written from the tables of metrics and endpoints are up to date."""

import pytest
from make_admin_pages import PAGES
from support.tree import ROOT


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_its_table_says(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), "run scripts/artifacts/make_admin_pages.py"
