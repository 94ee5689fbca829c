"""What is shipped for deployment fits the program, and `octavo deploy` puts it where it belongs."""

import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path, PurePosixPath

import pytest
from octavo.bookie.config import BookieConfig, load_config
from octavo.bookie.daemon import EXIT_DATA_WRONG
from octavo.cli.commands import run
from octavo.cli.deploy import plan
from octavo.protocol.errors import InvalidArgumentError
from support.tree import ROOT

DEPLOY = ROOT / "deploy"
SHIPPED = {name: (DEPLOY / name).read_text() for name in plan.DESTINATIONS}


def test_the_example_settings_are_valid_and_complete_and_show_the_defaults() -> None:
    example = DEPLOY / "bookie.toml"
    load_config(example, {}, {})
    shown = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", example.read_text(), flags=re.MULTILINE))
    settings = {setting.name: setting.default for setting in fields(BookieConfig)}
    assert shown.keys() == settings.keys()
    for name, default in settings.items():
        if default not in (MISSING, None) and name != "metadata":
            assert shown[name] == (list(default) if isinstance(default, tuple) else default), name


def test_systemd_starts_a_bookie_that_says_when_it_is_ready_and_not_again_when_its_data_are_wrong() -> None:
    unit = SHIPPED["octavo-bookie@.service"]
    assert "\nType=notify\n" in unit
    assert re.search(rf"^RestartPreventExitStatus=.*\b{EXIT_DATA_WRONG}\b", unit, flags=re.MULTILINE)
    assert f"ExecStart={plan.SHIPPED_COMMAND} bookie --config" in unit


def test_an_installation_has_the_units_with_the_path_of_its_command() -> None:
    files = {file.path: file.text for file in plan.units(SHIPPED, PurePosixPath("/usr/local/bin/octavo"))}
    unit = files[PurePosixPath("/etc/systemd/system/octavo-bookie@.service")]
    assert "ExecStart=/usr/local/bin/octavo bookie" in unit
    assert plan.SHIPPED_COMMAND not in unit
    assert files[PurePosixPath("/etc/sysusers.d/octavo.conf")] == SHIPPED["octavo.sysusers"]
    assert len(files) == len(plan.DESTINATIONS)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (str(PurePosixPath("/home", "venv", "bin", "octavo")), "hide /home"),
        ("/tmp/venv/bin/octavo", "hide /tmp"),
        ("/opt/my tools/octavo", "may contain only"),
        ("/opt/100%/octavo", "may contain only"),
    ],
)
def test_a_command_that_the_units_cannot_run_is_refused(command: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        plan.units(SHIPPED, PurePosixPath(command))


def test_directories_outside_the_state_directory_need_a_drop_in_and_hidden_ones_are_refused() -> None:
    inside, outside = PurePosixPath("/var/lib/octavo/one"), PurePosixPath('/srv/50% "fast"')
    assert plan.directories_outside([inside, outside, outside]) == [outside]
    text = plan.drop_in([outside])
    assert '\n[Service]\nReadWritePaths="/srv/50%% \\"fast\\""\n' in text
    assert 'RequiresMountsFor="/srv/50%%' in text
    for wrong in ("/home/data", "/tmp/data", "relative/data", "/srv/../home/data"):
        with pytest.raises(InvalidArgumentError, match=re.escape(wrong)):
            plan.directories_outside([PurePosixPath(wrong)])


@pytest.mark.parametrize("name", ["", "-one", "a/b", "a b", "x" * 65, "..", "one%i"])
def test_a_name_that_no_unit_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot name a bookie's unit"):
        plan.check_instance(name)


def test_install_and_bookie_write_below_another_root_and_say_what_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install = ["deploy", "install", "--root", str(tmp_path), "--command", "/opt/octavo/bin/octavo"]
    assert run(install) == 0
    assert capsys.readouterr().out.count("created") == len(plan.DESTINATIONS)
    assert run(install) == 0
    assert "created" not in capsys.readouterr().out
    bookie = ["deploy", "bookie", "one", "--root", str(tmp_path)]
    assert run(bookie) == 0
    settings = tmp_path / "etc/octavo/one.toml"
    assert load_config(settings, {}, {}).data_dir == Path("/var/lib/octavo/one")
    drop_in = tmp_path / "etc/systemd/system/octavo-bookie@one.service.d/octavo-directories.conf"
    assert not drop_in.exists()
    settings.write_text(f'journal_dir = "/srv/journal"\n{settings.read_text()}')
    assert run(bookie) == 0
    assert 'ReadWritePaths="/srv/journal"' in drop_in.read_text()
    assert (tmp_path / "srv/journal").is_dir()
    settings.write_text(settings.read_text().partition("\n")[2])
    assert run(bookie) == 0
    assert not drop_in.exists()
    assert "removed" in capsys.readouterr().out


def test_settings_that_are_not_valid_are_refused_before_anything_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "etc/octavo/one.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('data_dir = "/home/data"\n')
    assert run(["deploy", "bookie", "one", "--root", str(tmp_path)]) == 2
    assert "hides /home" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [settings]


def test_show_prints_every_shipped_file_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deploy", "show"]) == 0
    names = capsys.readouterr().out.splitlines()
    ours = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}]
    assert sorted(names) == sorted(str(path.relative_to(DEPLOY)) for path in ours)
    for name in names:
        assert run(["deploy", "show", name]) == 0
        assert capsys.readouterr().out == (DEPLOY / name).read_text()
    assert run(["deploy", "show", "no-such-file"]) == 1
