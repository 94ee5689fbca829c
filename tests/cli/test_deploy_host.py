"""`octavo deploy host`: the bookies of one host from one settings file, with disks and ports dealt out."""

import json
import tomllib
from pathlib import Path, PurePosixPath

import pytest
from octavo.bookie.config import load_config
from octavo.cli.commands import run
from octavo.cli.deploy import host_plan
from octavo.protocol.errors import InvalidArgumentError
from support.tree import ROOT

SHIPPED = (ROOT / "deploy" / "host.toml").read_text()


def host(text: str) -> host_plan.HostSettings:
    return host_plan.read_host(text, "host.toml")


def dealt(bookies: int, disks: str, journal_disks: str = "") -> list[tuple[str, str | None, list[str]]]:
    """The data directory, the journal directory and the entry directories of each bookie."""
    settings = host_plan.HostSettings(
        bookies=bookies, name="b", disks=tuple(map(PurePosixPath, disks.split())),
        journal_disks=tuple(map(PurePosixPath, journal_disks.split())),
    )  # fmt: skip
    return [
        (one.settings["data_dir"], one.settings.get("journal_dir"), one.settings.get("entry_dirs", []))
        for one in host_plan.bookies_of(settings)
    ]


# --- the plan -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bookies", "disks", "journal_disks", "expected"),
    [
        (1, "/d1", "", [("/d1/b-1", None, [])]),
        (2, "/d1", "", [("/d1/b-1", None, []), ("/d1/b-2", None, [])]),
        (2, "/d1 /d2", "/j", [("/d1/b-1", "/j/b-1-journal", []), ("/d2/b-2", "/j/b-2-journal", [])]),
        (3, "/d1 /d2", "", [("/d1/b-1", None, []), ("/d2/b-2", None, []), ("/d1/b-3", None, [])]),
        (
            2,
            "/d1 /d2 /d3 /d4 /d5",
            "/d1",
            [
                ("/d1/b-1", "/d1/b-1-journal", ["/d3/b-1", "/d5/b-1"]),
                ("/d2/b-2", "/d1/b-2-journal", ["/d4/b-2"]),
            ],
        ),
    ],
)
def test_disks_are_dealt_out(
    bookies: int, disks: str, journal_disks: str, expected: list[tuple[str, str | None, list[str]]]
) -> None:
    assert dealt(bookies, disks, journal_disks) == expected


def test_no_two_bookies_share_a_directory_and_every_disk_is_used() -> None:
    for bookies in range(1, 9):
        for number in range(1, 9):
            disks = [f"/d{at}" for at in range(number)]
            found = [
                path
                for data, journal, more in dealt(bookies, " ".join(disks), "/d0 /j")
                for path in (data, *more, journal)
            ]
            assert len(set(found)) == len(found)
            assert {str(PurePosixPath(path or "").parent) for path in found} == {
                *disks,
                "/d0",
                *(["/j"] if bookies > 1 else []),
            }


def test_ports_addresses_and_common_settings_of_each_bookie() -> None:
    planned = host_plan.bookies_of(
        host(
            'bookies = 2\nname = "b"\ndisks = ["/d"]\nport_first = 4000\nadvertise_host = "h1"\n'
            'admin_port_first = 5000\n[settings]\nrack = "/r1"\ncache_bytes = 1048576'
        )
    )
    assert [one.name for one in planned] == ["b-1", "b-2"]
    assert [(one.settings["port"], one.settings["advertise"], one.settings["admin_listen"]) for one in planned] == [
        (4000, "h1:4000", "127.0.0.1:5000"),
        (4001, "h1:4001", "127.0.0.1:5001"),
    ]
    assert all((one.settings["rack"], one.settings["cache_bytes"]) == ("/r1", 1048576) for one in planned)
    targets = json.loads(host_plan.metrics_targets(planned) or "")
    assert targets[1] == {"targets": ["127.0.0.1:5001"], "labels": {"bookie": "b-2"}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bookies = ", "host.toml: "),
        ('name = "b"\ndisks = ["/d"]', "bookies must be a whole number from 1 to 256"),
        ('bookies = 0\nname = "b"\ndisks = ["/d"]', "bookies must be a whole number from 1 to 256"),
        ('bookies = true\nname = "b"\ndisks = ["/d"]', "bookies must be a whole number"),
        ('bookies = 2\ndisks = ["/d"]', "name must be a text"),
        ('bookies = 2\nname = "b"', "disks must name at least one directory"),
        ('bookies = 2\nname = "b"\ndisks = "/d"', "disks must be a list of directories"),
        ('bookies = 2\nname = "b"\ndisks = ["/d", "/d"]', "disks names a directory twice"),
        (
            'bookies = 2\nname = "b"\ndisks = ["/d"]\nport_first = 65535',
            "port_first must be a whole number from 1 to 65534",
        ),
        (
            'bookies = 2\nname = "b"\ndisks = ["/d"]\nracks = 1',
            "racks is not a setting of a host; there are bookies, name",
        ),
        ('bookies = 2\nname = "b"\ndisks = ["/d"]\nsettings = 1', "settings must be a table"),
        ('bookies = 2\nname = "b"\ndisks = ["/d"]\n[settings]\nport = 1', "port is dealt out to each bookie"),
        ('bookies = 2\nname = "b"\ndisks = ["/d"]\n[settings]\nbookie_id = "x"', "bookie_id is dealt out"),
    ],
)
def test_what_is_no_settings_file_of_a_host_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        host(text)
    assert caught.value.message.startswith("host.toml: ")
    assert reason in caught.value.message


def test_ports_of_bookies_and_of_metrics_must_not_overlap() -> None:
    with pytest.raises(InvalidArgumentError, match="port 3183 would be that of a bookie and of the metrics of another"):
        host_plan.bookies_of(host('bookies = 3\nname = "b"\ndisks = ["/d"]\nadmin_port_first = 3183'))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({"data_dir": "/a", "port": 1}, {"data_dir": "/a", "port": 1, "rack": "/r"}, None),
        ({"data_dir": "/a"}, {"data_dir": "/a", "entry_dirs": ["/e"]}, None),
        ({"data_dir": "/a", "entry_dirs": ["/e"]}, {"data_dir": "/a", "entry_dirs": ["/e", "/f"]}, None),
        ({"data_dir": "/a"}, {"data_dir": "/b"}, "with data_dir = '/a'; it would become '/b'"),
        ({"data_dir": "/a", "port": 1}, {"data_dir": "/a", "port": 2}, "with port = 1; it would become 2"),
        ({"data_dir": "/a"}, {"data_dir": "/a", "journal_dir": "/j"}, "journal_dir = None; it would become '/j'"),
        ({"data_dir": "/a", "entry_dirs": ["/e"]}, {"data_dir": "/a"}, "would be lost"),
        (
            {"data_dir": "/a", "entry_dirs": ["/e", "/f"]},
            {"data_dir": "/a", "entry_dirs": ["/f", "/e"]},
            "would be lost",
        ),
    ],
)
def test_bookie_that_exists_keeps_its_directories_and_its_port(
    before: dict[str, object], after: dict[str, object], reason: str | None
) -> None:
    if reason is None:
        host_plan.check_kept("b-1", before, after)
        return
    with pytest.raises(InvalidArgumentError) as caught:
        host_plan.check_kept("b-1", before, after)
    assert reason in caught.value.message


# --- the command ----------------------------------------------------------------------------------------------------


class Host:
    """A root directory, and the command that is run on it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.settings = root / "etc/octavo/host.toml"
        self.settings.parent.mkdir(parents=True)
        self._capsys = capsys

    def deploy(self, text: str) -> tuple[int, str]:
        self.settings.write_text(text)
        status = run(["deploy", "host", "--root", str(self.root)])
        told = self._capsys.readouterr()
        return status, told.out + told.err

    def files(self) -> dict[str, str]:
        return {str(path.relative_to(self.root)): path.read_text() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def prepared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Host:
    return Host(tmp_path, capsys)


TWO = 'bookies = 2\nname = "b"\ndisks = ["/srv/d1", "/srv/d2"]\nadmin_port_first = 5000\n[settings]\nmetadata = "zk://z:1/o"\n'


def test_bookies_of_a_host_are_installed_from_one_file_and_added_later(prepared: Host) -> None:
    status, told = prepared.deploy(TWO)
    assert status == 0
    assert "systemctl enable --now octavo-bookie@b-1 octavo-bookie@b-2" in told
    first, second = (load_config(prepared.root / f"etc/octavo/b-{number}.toml", {}, {}) for number in (1, 2))
    assert (first.data_dir, first.port, first.admin_listen) == (Path("/srv/d1/b-1"), 3181, "127.0.0.1:5000")
    assert (second.data_dir, second.port, second.metadata) == (Path("/srv/d2/b-2"), 3182, "zk://z:1/o")
    for number in (1, 2):
        drop_in = prepared.root / f"etc/systemd/system/octavo-bookie@b-{number}.service.d/octavo-directories.conf"
        assert f'ReadWritePaths="/srv/d{number}/b-{number}"' in drop_in.read_text()
        assert (prepared.root / f"srv/d{number}/b-{number}").is_dir()
    assert len(json.loads((prepared.root / "etc/octavo/prometheus-targets.json").read_text())) == 2
    before = prepared.files()
    status, told = prepared.deploy(TWO)
    assert (status, prepared.files()) == (0, before)
    assert "created" not in told
    status, told = prepared.deploy(TWO.replace("bookies = 2", "bookies = 3").replace("zk://z:1", "zk://z:2"))
    assert status == 0
    assert "created    /etc/octavo/b-3.toml" in told
    assert "replaced   /etc/octavo/b-1.toml" in told
    assert load_config(prepared.root / "etc/octavo/b-3.toml", {}, {}).data_dir == Path("/srv/d1/b-3")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (TWO.replace("bookies = 2", "bookies = 1"), "bookie b-2 exists, and is not among b-1: drain and retire it"),
        (TWO.replace('name = "b"', 'name = "c"'), "bookie b-1 exists, and is not among c-1, c-2"),
        (TWO.replace('"/srv/d1", "/srv/d2"', '"/srv/d2", "/srv/d1"'), "bookie b-1 exists, with data_dir"),
        (TWO.replace("/srv/d1", "/srv/d3"), "bookie b-1 exists, with data_dir = '/srv/d1/b-1'"),
        (TWO.replace("admin_port", "port_first = 4000\nadmin_port"), "bookie b-1 exists, with port = 3181"),
        (TWO + "cache_bytes = 1\n", "bookie b-1: "),
        (TWO + "no_such = 1\n", "no_such"),
        (TWO.replace('name = "b"', 'name = "a/b"'), "cannot name a bookie's unit"),
        (TWO.replace('"/srv/d2"]', '"/srv/d2", "/home/d3"]'), "hides /home"),
    ],
)
def test_what_would_move_a_bookie_or_stop_it_is_refused_before_anything_changes(
    prepared: Host, changed: str, reason: str
) -> None:
    assert prepared.deploy(TWO)[0] == 0
    before = prepared.files()
    status, told = prepared.deploy(changed)
    assert status == 2
    assert reason in told
    assert prepared.files() | {"etc/octavo/host.toml": TWO} == before


def test_settings_that_an_operator_has_written_are_not_replaced(prepared: Host) -> None:
    own = prepared.settings.parent / "b-2.toml"
    own.write_text('data_dir = "/srv/own"\n')
    status, told = prepared.deploy(TWO)
    assert status == 2
    assert "/etc/octavo/b-2.toml was not written by this command" in told
    assert own.read_text() == 'data_dir = "/srv/own"\n'
    assert not (prepared.settings.parent / "b-1.toml").exists()


def test_shipped_example_is_valid_and_installed_where_there_is_none(tmp_path: Path) -> None:
    assert run(["deploy", "host", "--root", str(tmp_path)]) == 0
    assert (tmp_path / "etc/octavo/host.toml").read_text() == SHIPPED
    names = sorted(path.name for path in (tmp_path / "etc/octavo").glob("bookie-*.toml"))
    assert names == ["bookie-1.toml", "bookie-2.toml"]
    assert load_config(tmp_path / "etc/octavo/bookie-2.toml", {}, {}).data_dir == Path("/var/lib/octavo/bookie-2")
    commented = "\n".join(line.removeprefix("# ") for line in SHIPPED.splitlines() if " = " in line)
    shown = tomllib.loads(commented.replace("metadata =", "[settings]\nmetadata ="))
    assert shown.keys() == host_plan.HostSettings.__dataclass_fields__.keys()
    assert (shown["port_first"], shown["admin_port_first"]) == (3181, 0)
