"""An interrupted campaign resumes where it stopped, and reports which commit ran which seeds."""

import json
from pathlib import Path

import pytest
from support.simulator import simulate


def test_interrupted_campaign_resumes_and_reports_both_parts(tmp_path: Path) -> None:
    kept = tmp_path / "campaign.jsonl"
    assert simulate("3-4", "--jobs", "1", "--record", str(kept)).returncode == 0
    before = kept.read_text()
    run = simulate("3-5", "--jobs", "1", "--record", str(kept))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 seeds in" in run.stdout
    assert "3 of the seeds were run by commit" in run.stdout
    after = kept.read_text()
    assert after.startswith(before)
    assert sorted(json.loads(line)["seed"] for line in after.splitlines()) == [3, 4, 5]


def test_failure_in_the_record_still_counts(tmp_path: Path) -> None:
    kept = tmp_path / "campaign.jsonl"
    simulate("5-5", "--jobs", "1", "--record", str(kept))
    line = json.loads(kept.read_text())
    kept.write_text(json.dumps(line | {"failure": "Violation I1: lost"}) + "\n")
    run = simulate("5-5", "--jobs", "1", "--record", str(kept))
    assert run.returncode == 1
    assert "1 failed" in run.stdout


@pytest.mark.parametrize(
    ("content", "arguments", "text"),
    [
        ("garbage\n", (), "line 1: not a record of a seed"),
        ("", ("--canary", "ack-before-sync"), "--record cannot be combined"),
    ],
)
def test_invalid_record_is_refused(tmp_path: Path, content: str, arguments: tuple[str, ...], text: str) -> None:
    kept = tmp_path / "campaign.jsonl"
    kept.write_text(content)
    run = simulate("3-4", "--jobs", "1", "--record", str(kept), *arguments)
    assert run.returncode == 2
    assert text in run.stderr
