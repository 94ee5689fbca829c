"""``octavo bookie check | inspect | rebuild-index | reset-identity`` on real directories, as people use them."""

import shutil
from pathlib import Path

import pytest
from support.commands.processes import BookieProcess, octavo

ONE = ("-E", 1, "-W", 1, "-A", 1)
EXIT_DATA_WRONG = 78


class Stopped:
    """A bookie that has served once, with a ledger, and has stopped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "bookie"
        self.uri = f"sqlite:///{directory}/metadata.db"
        with self.running() as bookie:
            appended = octavo("ledger", "append", *ONE, "--json", "--metadata", self.uri, stdin=b"kept\n" * 500)
            self.ledger_id = appended.json["ledger_id"]
            assert bookie.stop() == 0

    def start(self) -> BookieProcess:
        return BookieProcess(self.directory, "--port", 0, "--metadata", self.uri)

    def running(self) -> BookieProcess:
        return self.start().wait_ready()

    def flip(self, pattern: str, offset: int) -> Path:
        path = sorted(self.directory.glob(pattern))[0]
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(content)
        return path


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    return Stopped(tmp_path)


def test_check_is_silent_about_a_sound_bookie_and_names_file_and_offset_otherwise(stopped: Stopped) -> None:
    sound = octavo("bookie", "check", stopped.directory)
    assert sound.status == 0, sound
    assert b"500 entries" in sound.stdout
    assert b"0 problems" in sound.stdout
    path = stopped.flip("entries/*.log", 32 + 46)
    wrong = octavo("bookie", "check", stopped.directory)
    assert wrong.status == 1, wrong
    assert f"{path}, offset 32: ".encode() in wrong.stdout
    assert octavo("bookie", "check", "--json", stopped.directory).status == 1


def test_check_refuses_a_bookie_that_runs_and_a_directory_that_is_not_there(stopped: Stopped) -> None:
    with stopped.running():
        octavo("bookie", "check", stopped.directory).failed_with_one_line(1, str(stopped.directory), "stop it first")
    octavo("bookie", "check", stopped.directory / "nowhere").failed_with_one_line(1, "nowhere", "does not exist")


def test_inspect_prints_readably(stopped: Stopped) -> None:
    path = next(stopped.directory.glob("entries/*.log"))
    shown = octavo("bookie", "inspect", path)
    assert f"ledger {stopped.ledger_id} entry 499".encode() in shown.stdout
    octavo("bookie", "inspect", stopped.directory / "lock").failed_with_one_line(2, "is not a bookie's file")


def test_damaged_index_stops_the_start_with_a_remedy_that_works(stopped: Stopped) -> None:
    path = stopped.flip("index/*.runs", -3)
    with stopped.start() as bookie:
        assert bookie.wait() == EXIT_DATA_WRONG
        assert str(path) in bookie.stderr
        assert "rebuild-index" in bookie.stderr
    octavo("bookie", "rebuild-index", stopped.directory, "--lost-dir", "/elsewhere").failed_with_one_line(
        1, "/elsewhere", "not one of the directories"
    )
    rebuilt = octavo("bookie", "rebuild-index", stopped.directory)
    assert b"indexed 500 entries of 1 ledger from" in rebuilt.stdout
    assert b"in doubt" in rebuilt.stdout, "who was fenced stood in the damaged file"
    with stopped.running() as bookie:
        assert octavo("ledger", "read", stopped.ledger_id, "--metadata", stopped.uri).stdout == b"kept\n" * 500
        assert bookie.stop() == 0


def test_restored_directory_is_refused_and_comes_back_in_doubt_after_a_reset(stopped: Stopped, tmp_path: Path) -> None:
    shutil.copytree(stopped.directory, tmp_path / "copy")
    with stopped.running() as bookie:
        assert bookie.stop() == 0
    shutil.rmtree(stopped.directory)
    (tmp_path / "copy").rename(stopped.directory)
    with stopped.start() as bookie:
        assert bookie.wait() == EXIT_DATA_WRONG
        assert "reset-identity" in bookie.stderr
    reset = octavo("bookie", "reset-identity", "--metadata", stopped.uri, stopped.directory)
    assert b"in doubt about every ledger" in reset.stdout, reset
    with stopped.running() as bookie:
        assert len(octavo("bookies", "--json", "--metadata", stopped.uri).json) == 1, "the same bookie"
        assert "in doubt" in bookie.stderr
        assert octavo("ledger", "read", stopped.ledger_id, "--metadata", stopped.uri).stdout == b"kept\n" * 500
        # New ledgers are none of those in doubt.
        again = octavo("ledger", "append", *ONE, "--json", "--metadata", stopped.uri, stdin=b"new\n")
        assert octavo("ledger", "read", again.json["ledger_id"], "--metadata", stopped.uri).stdout == b"new\n"
        assert bookie.stop() == 0


def test_emptied_directory_comes_back_under_the_id_that_is_given(stopped: Stopped) -> None:
    (known,) = octavo("bookies", "--json", "--metadata", stopped.uri).json
    shutil.rmtree(stopped.directory)
    octavo("bookie", "reset-identity", "--metadata", stopped.uri, stopped.directory).failed_with_one_line(
        2, "no cookie is left", "--bookie-id"
    )
    options = ("--metadata", stopped.uri, "--bookie-id", known["bookie_id"])
    assert octavo("bookie", "reset-identity", *options, stopped.directory).status == 0
    with stopped.running() as bookie:
        (again,) = octavo("bookies", "--json", "--metadata", stopped.uri).json
        assert (again["bookie_id"], again["state"]) == (known["bookie_id"], "writable")
        # What it had is unknown, not absent: no client may conclude that the ledger is empty.
        lost = octavo("ledger", "read", stopped.ledger_id, "--metadata", stopped.uri)
        assert lost.status == 1, lost
        assert bookie.stop() == 0


def test_a_reset_of_the_wrong_folder_is_refused_and_makes_nothing(stopped: Stopped, tmp_path: Path) -> None:
    (known,) = octavo("bookies", "--json", "--metadata", stopped.uri).json
    reset = ("bookie", "reset-identity", "--metadata", stopped.uri)
    named = ("--bookie-id", known["bookie_id"])
    octavo(*reset, tmp_path / "nowhere").failed_with_one_line(2, "no cookie is left", "--bookie-id")
    octavo(*reset, tmp_path / "nowhere", "--bookie-id", "bookie-1").failed_with_one_line(2, "no bookie bookie-1")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    octavo(*reset, tmp_path / "home", *named).failed_with_one_line(1, "letter.txt", "is not a bookie's file")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter.txt"]


def test_a_reset_for_a_bookie_that_serves_is_refused_and_leaves_it_its_identity(
    stopped: Stopped, tmp_path: Path
) -> None:
    (known,) = octavo("bookies", "--json", "--metadata", stopped.uri).json
    with stopped.running() as bookie:
        octavo(
            "bookie", "reset-identity", "--metadata", stopped.uri, tmp_path / "empty", "--bookie-id", known["bookie_id"]
        ).failed_with_one_line(1, known["bookie_id"], "is already running at", "stop it first")
        assert not (tmp_path / "empty").exists()
        assert bookie.stop() == 0
    with stopped.running() as bookie:
        assert bookie.stop() == 0
