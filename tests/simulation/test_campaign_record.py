"""An interrupted campaign resumes where it stopped, and reports which commit ran which seeds."""

import json
from pathlib import Path

import pytest
from support.commands.simulator import simulate

LINE: dict[str, object] = {
    "seed": 5,
    "commit": "a",
    "hash": 1,
    "failure": None,
    "virtual_seconds": 1.0,
    "steps": 1,
    "counters": {},
}


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


def test_campaign_with_settings_resumes_and_mixes_with_no_other(tmp_path: Path) -> None:
    kept = tmp_path / "campaign.jsonl"
    variant = ("--set", "logs=0", "--set", "agents=0")
    assert simulate("3-4", "--jobs", "1", "--record", str(kept), *variant).returncode == 0
    run = simulate("3-5", "--jobs", "1", "--record", str(kept), "--set", "agents=0", "--set", "logs=0")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 seeds in" in run.stdout
    before = kept.read_text()
    assert [json.loads(line)["settings"] for line in before.splitlines()] == [{"logs": 0, "agents": 0}] * 3
    for other, words in (((), "no settings"), (("--set", "logs=1"), "--set logs=1")):
        run = simulate("3-5", "--jobs", "1", "--record", str(kept), *other)
        assert run.returncode == 2
        assert f"line 1: of a campaign with --set agents=0 --set logs=0, not with {words}" in run.stderr
        assert kept.read_text() == before


def test_record_from_before_settings_were_recorded_is_one_without_settings(tmp_path: Path) -> None:
    kept = tmp_path / "campaign.jsonl"
    kept.write_text(json.dumps(LINE) + "\n")
    assert simulate("5-5", "--jobs", "1", "--record", str(kept)).returncode == 0
    assert simulate("5-5", "--jobs", "1", "--record", str(kept), "--set", "logs=0").returncode == 2


def test_failure_in_a_record_with_settings_tells_how_to_run_it_again(tmp_path: Path) -> None:
    kept = tmp_path / "campaign.jsonl"
    kept.write_text(json.dumps(LINE | {"settings": {"logs": 0}, "failure": "Violation I1: lost"}) + "\n")
    run = simulate("5-5", "--jobs", "1", "--record", str(kept), "--set", "logs=0")
    assert run.returncode == 1
    assert 'replay: make simulate SEED=5 OPTIONS="--set logs=0"' in run.stdout


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
