"""Options of the tests of the wire."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the golden files anew (pytest tests/protocol --rewrite), to review",
    )
