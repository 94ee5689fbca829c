"""The order in which `make test` begins the files of the suite."""

import pytest
from support.tree import ROOT

TESTS = ROOT / "tests"


@pytest.fixture(scope="module")
def conftest(request: pytest.FixtureRequest) -> object:
    return request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))


def test_every_folder_that_the_order_names_has_tests(conftest: object) -> None:
    for names in ("WAITING", "LONG"):
        for folder in getattr(conftest, names):
            assert any((TESTS / folder).glob("**/test_*.py")), f"{names}: {folder}"


def test_files_that_wait_and_files_that_compute_come_in_turns_and_long_ones_first(conftest: object) -> None:
    unit_of, turns_of = conftest.unit_of, conftest.turns_of  # type: ignore[attr-defined]
    files = [str(path.relative_to(ROOT)) for path in sorted(TESTS.glob("**/test_*.py"))]
    units = {unit_of(f"{file}::test_x[a::b]") for file in files}
    assert "tests/pipeline" in units, "the tests of Spark share a session"
    assert "tests/house/test_order.py" in units
    turns = turns_of(units)
    order = sorted(units, key=lambda unit: turns[unit])
    assert len(set(turns.values())) == len(units), "every process sorts them alike"
    waiting = [at for at, unit in enumerate(order) if conftest.folder_of(unit) in conftest.WAITING]  # type: ignore[attr-defined]
    share = len(waiting) / len(order)
    assert 0.1 < share < 0.5
    for number, at in enumerate(waiting):
        assert abs(at - number / share) <= 2 / share, f"{order[at]} is out of turn"
    assert set(order[:2]) == {"tests/pipeline", "tests/crash/test_crash_states.py"}
    late = order[len(order) // 2 :]
    assert not [unit for unit in late if conftest.folder_of(unit) in conftest.LONG]  # type: ignore[attr-defined]
