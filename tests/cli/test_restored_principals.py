"""A restore brings no principal back that was perhaps removed since: not before an operator says so (rule S5)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from octavo.cli.main import main

type Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A command on a cluster that must end with this status; what it prints, or its error."""

    def command(uri: str, *arguments: object, status: int = 0) -> str:
        assert main([*map(str, arguments), "--metadata", uri]) == status
        shown = capsys.readouterr()
        return shown.out if status == 0 else shown.err

    return command


@pytest.fixture
def dump(run: Run, tmp_path: Path) -> Path:
    """Of a cluster with the principals kept, off (which is disabled) and removed; removed is removed after it."""
    uri, file = f"sqlite:///{tmp_path}/first.db", tmp_path / "cluster.dump"
    run(uri, "cluster", "init")
    for name, role in (("kept", "append"), ("off", "read"), ("removed", "admin")):
        run(uri, "access", "add", name, "--role", role)
        run(uri, "access", "key", name)
    run(uri, "access", "disable", "off")
    run(uri, "cluster", "dump", file)
    run(uri, "access", "remove", "removed")
    run(uri, "cluster", "dump", tmp_path / "newer.dump")
    return file


def principals(run: Run, uri: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(run(uri, "access", "list", "--json"))}


def states(run: Run, uri: str) -> dict[str, bool]:
    """Principal -> whether it is enabled."""
    return {name: not one["disabled"] for name, one in principals(run, uri).items()}


def test_principals_come_back_disabled_and_are_named_and_an_operator_enables_them(
    run: Run, dump: Path, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path}/restored.db"
    told = run(uri, "cluster", "restore", dump)
    assert "principals that are disabled: kept, off, removed\n" in told
    assert "octavo access enable NAME" in told
    assert "octavo access key NAME" in told
    assert states(run, uri) == {"kept": False, "off": False, "removed": False}
    run(uri, "access", "enable", "kept")
    kept = principals(run, uri)["kept"]
    assert (kept["disabled"], kept["roles"], kept["key"]) == (False, ["append"], True)
    assert "there is no principal nobody" in run(uri, "access", "enable", "nobody", status=1)


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        (["--principals", "enabled"], ({"kept": True, "off": False, "removed": True}, "may connect: kept, removed\n")),
        (["--principals", "none"], ({}, "left out: kept, off, removed\n")),
        (["--principals-of", "newer.dump"], ({"kept": True, "off": False}, "left out: removed\n")),
    ],
)
def test_an_operator_may_say_which_principals_come_back(
    run: Run, dump: Path, tmp_path: Path, options: list[str], outcome: tuple[dict[str, bool], str]
) -> None:
    uri = f"sqlite:///{tmp_path}/restored.db"
    expected, told = outcome
    given = [str(tmp_path / one) if one.endswith(".dump") else one for one in options]
    assert told in run(uri, "cluster", "restore", dump, *given)
    assert states(run, uri) == expected


def test_the_result_as_json_names_them(run: Run, dump: Path, tmp_path: Path) -> None:
    told = json.loads(run(f"sqlite:///{tmp_path}/restored.db", "cluster", "restore", dump, "--json"))
    assert told["principals"] == {"kept": "disabled", "off": "disabled", "removed": "disabled"}
    assert told["principals_left_out"] == []


def test_a_newer_dump_that_is_damaged_is_noticed_before_anything_is_restored(
    run: Run, dump: Path, tmp_path: Path
) -> None:
    newer = tmp_path / "newer.dump"
    newer.write_bytes(newer.read_bytes()[:-20])
    uri = f"sqlite:///{tmp_path}/restored.db"
    assert "newer.dump" in run(uri, "cluster", "restore", dump, "--principals-of", newer, status=1)
    assert not (tmp_path / "restored.db").exists()
    both = ["--principals-of", dump, "--principals", "none"]
    assert "leave out --principals" in run(uri, "cluster", "restore", dump, *both, status=2)


def test_a_cluster_without_principals_is_restored_without_a_word_about_them(run: Run, tmp_path: Path) -> None:
    uri, file = f"sqlite:///{tmp_path}/first.db", tmp_path / "cluster.dump"
    run(uri, "cluster", "init")
    run(uri, "cluster", "dump", file)
    assert "principals" not in run(f"sqlite:///{tmp_path}/restored.db", "cluster", "restore", file)
