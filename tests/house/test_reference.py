"""The reference pages in docs/reference/ say what the code says."""

import make_reference
import pytest


@pytest.mark.parametrize("name", make_reference.PAGES)
def test_a_reference_page_is_up_to_date(name: str) -> None:
    expected = make_reference.PAGES[name]()
    assert (make_reference.FOLDER / name).read_text(encoding="utf-8") == expected, (
        "run scripts/artifacts/make_reference.py"
    )


def test_every_setting_has_a_meaning() -> None:
    rows = [line for line in make_reference.settings_page().splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.split(" | ")[-1].strip(" |") == ""] == []
