"""Commands of the pipeline look for bookies before they start Java, which takes seconds."""

from pathlib import Path

import pytest
from octavo.cli.main import main
from support.commands.processes import Up


@pytest.mark.parametrize("command", [["verify"], ["loglines", "--dataset", "x"], ["export", "out", "--ledgers", "all"]])
def test_a_cluster_without_bookies_is_told_at_once(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    uri = f"sqlite:///{tmp_path}/metadata.db"
    assert main(["cluster", "init", "--metadata", uri]) == 0
    assert main(["pipeline", *command, "--metadata", uri]) == 1
    assert "octavo: no bookie of this cluster is running" in capfd.readouterr().err


def test_too_few_writable_bookies_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with Up(tmp_path / "data", "--bookies", 1) as up:
        up.wait_ready()
        assert main(["pipeline", "ingest", "/nowhere", "--dataset", "x", "--metadata", up.uri]) == 1
    assert "octavo: this job needs 3 writable bookies, and the cluster has 1" in capfd.readouterr().err
