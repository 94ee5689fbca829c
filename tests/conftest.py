"""What holds for every test: hypothesis settings, and that nothing is skipped where nothing may be.

With ``OCTAVO_NO_SKIPS=1`` (``make test``, ``make check``) a test that is skipped or expected to fail has failed: set-up
installs everything the tests need, so a skip there means that a promise went unchecked. ``OCTAVO_LONG=1`` runs the
property tests with many fresh examples instead of a few fixed ones.

A test runs once: nothing runs again because it failed (docs/decisions/034).
"""

import gc
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Collection, Generator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from octavo.metadata import MetadataStore, open_metadata_store
from support.patient_loop import PatientLoop
from support.soak import is_left_to_soak, lines_without
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

NO_SKIPS = os.environ.get("OCTAVO_NO_SKIPS") == "1"

# Compiled files are kept, also where the caller's settings say otherwise: without them every process that a test starts
# compiles what it imports, and takes twice as long.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The tests of these folders mostly wait: for processes, ZooKeeper or Spark. Those of all other folders compute.
WAITING = ("pipeline", "processes", "zookeeper", "security")
# Of the files that compute, the folders with the longest. One that begins last would end alone.
LONG = ("crash", "simulation", "model")

# New objects until Python looks for garbage among them: ten times as many as by default, and less work in every test.
GARBAGE_OBJECTS = 20_000

# No deadlines: machines that run tests share their processors. Fixed examples: a run must not fail by chance.
settings.register_profile(
    "quick", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("long" if os.environ.get("OCTAVO_LONG") == "1" else "quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="take what scripts (support/scripts.py) and golden files (support/golden.py) say now as what is expected",
    )


@pytest.hookimpl
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], PatientLoop]]:
    """The event loop of every test: a paused process does not miss its time-outs (docs/decisions/032)."""
    return {"patient": PatientLoop}


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Generator[None]:
    """A command run inside of a test sets up logging to that test's standard error, which is closed after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def logged() -> Generator[list[MutableMapping[str, object]]]:
    """What the test logs, which is not printed then. A module whose tests all expect errors in the log has
    ``pytestmark = pytest.mark.usefixtures("logged")``."""
    with structlog.testing.capture_logs() as events:
        yield events


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    """An empty metadata store in memory. Folders and modules that test another store define their own."""
    async with await open_metadata_store("memory://", create=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def module_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """A folder for what a module's tests share. It goes with the module, as a bookie takes 200 MB of disk from the
    start; it stays once a test of the run has failed."""
    folder = tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2])
    yield folder
    if not request.session.testsfailed:
        shutil.rmtree(folder)


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether expected answers of scripts are written again."""
    return bool(request.config.getoption("--rewrite"))


def pytest_configure(config: pytest.Config) -> None:
    """Let each process of ``make test`` begin to collect at another folder. All of them collect all tests; in a fresh
    clone they thus compile different files, and find those of the others compiled."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        # A folder that is named is collected, also where it is to be ignored.
        ignored = {(config.invocation_params.dir / path).resolve() for path in config.getoption("ignore") or ()}
        folders = sorted(str(path) for path in Path(__file__).parent.iterdir() if path.is_dir() and path not in ignored)
        number = int(worker["workerid"].removeprefix("gw"))
        start = len(folders) * number // worker["workercount"]
        config.args = folders[start:] + folders[:start]


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what a run of everything leaves to ``make soak``, which asks for the mark."""
    if is_left_to_soak(item.nodeid):
        item.add_marker(pytest.mark.soak)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All processes have the tests in the same order. A run of everything leaves out what is marked for ``make soak``,
    and does not take for left what is not there."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword:
        left = [item for item in items if item.get_closest_marker("soak") is not None]
        if unknown := lines_without([item.nodeid for item in left]):
            raise pytest.UsageError("tests/left_to_soak.txt names no test: " + ", ".join(unknown))
        if not config.option.markexpr:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if item.get_closest_marker("soak") is None]
    turns = turns_of({unit_of(item.nodeid) for item in items})
    items.sort(key=lambda item: (turns[unit_of(item.nodeid)], item.nodeid.partition("::")[0]))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives until the end: 11,000 tests and the modules with them. A full collection
    takes half a second with them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)


def unit_of(node_id: str) -> str:
    """The tests of a file run in one process, because they share fixtures. So do all tests of Spark: they share one
    session, and with it a JVM."""
    path = node_id.partition("::")[0]
    return "tests/pipeline" if path.startswith("tests/pipeline/") else path


def turns_of(units: Collection[str]) -> dict[str, tuple[float, str]]:
    """The order in which units begin. Those that wait and those that compute come in turns, spread evenly, so that the
    processors have work at all times. In each kind, the folders named above come first."""

    def place(unit: str) -> tuple[int, str]:
        folder = folder_of(unit)
        return ((*WAITING, *LONG).index(folder) if folder in WAITING + LONG else len(WAITING + LONG)), unit

    turns: dict[str, tuple[float, str]] = {}
    for is_waiting in (True, False):
        kind = sorted((unit for unit in units if (folder_of(unit) in WAITING) == is_waiting), key=place)
        turns |= {unit: (number / len(kind), unit) for number, unit in enumerate(kind)}
    return turns


def folder_of(unit: str) -> str:
    """The folder below ``tests`` that a unit belongs to; empty for a file of another place."""
    return unit.removeprefix("tests/").partition("/")[0] if unit.startswith("tests/") else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """With ``-n N`` (``make test``): how the tests are shared out."""
    return ByFile(config, log)


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """One unit after another, each in the process that is free first."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why the test, or the module that holds it, did not run to a verdict."""
    if isinstance(report, pytest.TestReport) and hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail or 'no reason given'}"
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)


def forbid_skip(report: pytest.TestReport | pytest.CollectReport, node_id: str) -> None:
    """Turn the report of a skip or an expected failure into that of a failure which names its reason."""
    if not (NO_SKIPS and report.outcome == "skipped"):
        return
    reason = skip_reason(report)
    if isinstance(report, pytest.TestReport) and hasattr(report, "wasxfail"):
        del report.wasxfail
    report.outcome = "failed"
    report.longrepr = f"{node_id}: skipped tests are failures under OCTAVO_NO_SKIPS=1 ({reason})"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    forbid_skip(report, item.nodeid)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    forbid_skip(report, collector.nodeid)
    return report
