"""Under ``OCTAVO_NO_SKIPS=1`` whatever did not run to a verdict fails the run, and says why."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.tree import ROOT

PASSING = "def test_fine():\n    pass\n"
NOT_RUN = {
    "skip_mark": "import pytest\n@pytest.mark.skip(reason='the reason')\ndef test_x():\n    pass\n",
    "skip_inside": "import pytest\ndef test_x():\n    pytest.skip('the reason')\n",
    "skip_in_fixture": (
        "import pytest\n@pytest.fixture\ndef server():\n    pytest.skip('the reason')\ndef test_x(server):\n    pass\n"
    ),
    "skip_of_module": "import pytest\npytest.skip('the reason', allow_module_level=True)\n",
    "missing_import": "import pytest\npytest.importorskip('no_such_module', reason='the reason')\n",
    "expected_failure": "import pytest\n@pytest.mark.xfail(reason='the reason')\ndef test_x():\n    assert False\n",
}


class Run(NamedTuple):
    """One run of pytest over every case: the verdict lines by file, and the closing line."""

    status: int
    summary: list[str]
    closing_line: str

    def verdicts(self, case: str) -> list[str]:
        """What the short summary says of one case's file."""
        return [line for line in self.summary if f"test_{case}.py" in line]


def run_cases(folder: Path, *, no_skips: bool) -> Run:
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_passing.py").write_text(PASSING)
    for case, source in NOT_RUN.items():
        (folder / f"test_{case}.py").write_text(source)
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-rA",
            "--continue-on-collection-errors",
            "--rootdir",
            str(folder),
            str(folder),
        ],
        cwd=folder,
        env=environment
        | {"OCTAVO_NO_SKIPS": "1" if no_skips else "0", "COLUMNS": "400", "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = run.stdout.splitlines()
    verdicts = [line for line in lines if line.startswith(("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS"))]
    return Run(run.returncode, verdicts, lines[-1])


@pytest.fixture(scope="module")
def strict_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_cases(tmp_path_factory.mktemp("strict"), no_skips=True)


@pytest.mark.parametrize("case", NOT_RUN)
def test_what_did_not_run_has_failed_and_says_why(case: str, strict_run: Run) -> None:
    (verdict,) = strict_run.verdicts(case)
    assert verdict.startswith(("FAILED", "ERROR"))
    assert "the reason" in verdict


def test_the_run_fails_and_its_closing_line_says_so(strict_run: Run) -> None:
    assert strict_run.status != 0
    assert "skipped" not in strict_run.closing_line
    assert "xfailed" not in strict_run.closing_line
    assert "1 passed" in strict_run.closing_line
    assert "2 failed" in strict_run.closing_line
    assert "4 errors" in strict_run.closing_line


def test_without_the_setting_a_skip_is_only_a_skip(tmp_path: Path) -> None:
    run = run_cases(tmp_path, no_skips=False)
    assert run.status == 0
    assert "1 passed, 5 skipped, 1 xfailed" in run.closing_line
