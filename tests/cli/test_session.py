"""Errors become one line and an exit status; passwords are read as documented; commands share their options."""

import asyncio
import fcntl
import inspect
import json
import math
import shlex
import signal
import subprocess
import termios
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from octavo.cli import main as command_line
from octavo.cli.commands import command_line as commands_of
from octavo.cli.event_loop import finish
from octavo.cli.local.common import print_ready
from octavo.cli.output import bytes_as_json, counted, print_json, print_line, print_table, visible
from octavo.cli.session import CommandError, Session, command, describe, guarded, print_error, read_password
from octavo.protocol.errors import EntryTooLargeError, InvalidArgumentError, NoSuchLedgerError, OctavoError
from support.clusters.secrets import write_secret
from support.commands.processes import OCTAVO, environment
from support.tree import ROOT
from support.waiting import WAIT_SECONDS, wait_until


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CommandError("no\nway"), 1, "octavo: no way\n"),
        (NoSuchLedgerError("ledger 7 does not exist"), 1, "octavo: ledger 7 does not exist\n"),
        (OctavoError(), 1, "octavo: OctavoError\n"),
        (InvalidArgumentError("E < Qw"), 2, "octavo: E < Qw\n"),
        (EntryTooLargeError("line 3"), 1, "octavo: line 3\n"),
        (FileNotFoundError(2, "No such file or directory", "x.log"), 1, "octavo: x.log: No such file or directory\n"),
        (ExceptionGroup("several", [NoSuchLedgerError("one")]), 1, "octavo: one\n"),
    ],
)
def test_an_error_is_one_line_and_a_status(
    error: Exception, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert guarded(work, show_traceback=False) == status
    assert capsys.readouterr().err == line
    guarded(work, show_traceback=True)
    assert "Traceback" in capsys.readouterr().err


def test_a_defect_is_called_one_and_says_how_to_learn_more() -> None:
    assert "internal error: KeyError: 'x'" in describe(KeyError("x"))
    assert "--log-level debug" in describe(KeyError("x"))


def test_an_interrupt_before_the_loop_runs_has_the_shell_s_status() -> None:
    def work() -> int:
        raise KeyboardInterrupt

    assert guarded(work, show_traceback=False) == 130


@pytest.mark.parametrize(
    ("content", "password"),
    [
        (b"secret", b"secret"),
        (b"secret\n", b"secret"),
        (b"secret\r\n", b"secret"),
        (b"secret\n\n", b"secret\n"),
        (b" \0\xff \n", b" \0\xff "),
        (b"", b""),
    ],
)
def test_one_newline_at_the_end_of_a_password_file_is_dropped(content: bytes, password: bytes, tmp_path: Path) -> None:
    file = tmp_path / "password"
    write_secret(file, content)
    assert read_password(file) == password


def test_a_password_file_is_stronger_than_the_environment_and_both_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    write_secret(file, b"from file")
    monkeypatch.delenv("OCTAVO_PASSWORD", raising=False)
    assert read_password(None) == b""
    monkeypatch.setenv("OCTAVO_PASSWORD", "from environment\n")
    assert read_password(None) == b"from environment\n"
    assert read_password(file) == b"from file"
    with pytest.raises(CommandError, match=r"password file .*missing"):
        read_password(tmp_path / "missing")


def test_a_command_takes_its_own_options_and_the_common_ones() -> None:
    app = typer.Typer()

    @command(app)
    async def act(session: Session, number: int = 1) -> None:
        """Act."""

    assert list(inspect.signature(act).parameters) == [
        *("number", "metadata", "tls_ca", "tls_certificate", "tls_key", "key_file"),
        *("log_level", "log_format", "as_json"),
    ]


async def test_clean_up_is_finished_though_it_is_cancelled_and_the_cancellation_comes_after() -> None:
    go_on = asyncio.Event()
    finished = []

    async def clean_up() -> None:
        await go_on.wait()
        finished.append(True)

    task = asyncio.ensure_future(finish(clean_up()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished == [True]


async def test_clean_up_gives_its_result_and_its_error() -> None:
    async def give() -> int:
        return 7

    async def fail() -> None:
        raise OctavoError("no")

    assert await finish(give()) == 7
    with pytest.raises(OctavoError, match="no"):
        await finish(fail())


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["ledger", "append", "--help"], 0),
        (["ledger", "append", "--ensembel", "3"], 2),
        (["ledger", "show", "-1"], 2),
        (["ledger", "show", str(2**63)], 2),
        (["ledger", "read", "7", "--log-level", "loud"], 2),
        (["bench", "write", "--rate", "0"], 2),
        (["up", "--bookies", "0"], 2),
        (["up", "--base-port", "65535", "--bookies", "2", "--data-dir", "/dev/null"], 2),
        (["nonsense"], 2),
    ],
)
def test_usage(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(arguments) == status
    captured = capsys.readouterr()
    assert bool(captured.err) == (status != 0)
    assert bool(captured.out) == (status == 0)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["ledger", "list", "--state", "bogus"],
            "Invalid value for '--state': 'bogus' is not one of 'open', 'in-recovery', 'at-rest', 'closed'",
        ),
        (["ledger", "show", "seven"], "Invalid value for 'ID': 'seven' is not a valid int range"),
        (["ledger", "show", "9" * 5000], f"Invalid value for 'ID': '{'9' * 5000}' is not a valid int range"),
        (["up", "--bookies", "0"], "Invalid value for '--bookies': 0 is not in the range 1<=x<=64"),
        (["ledger", "show", str(2**63)], f"Invalid value for 'ID': {2**63} is not in the range 0<=x<={2**63 - 1}"),
        (["top", "--interval", "often"], "Invalid value for '--interval': 'often' is not a valid float range"),
        (["top", "--interval", "nan"], "Invalid value for '--interval': 'nan' is not a number"),
    ],
)
def test_a_wrong_value_is_named_in_the_words_of_a_command_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"octavo: {line} - see `octavo ")
    assert len(said.splitlines()) == 1


def test_files_of_tls_and_keys_reach_the_client_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OCTAVO_TLS_CA", "OCTAVO_TLS_CERTIFICATE", "OCTAVO_TLS_KEY", "OCTAVO_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/metadata.db"
    assert command_line.main(["cluster", "init", "--metadata", uri]) == 0
    assert command_line.main(["ledger", "recover", "0", "--metadata", uri, "--key-file", "missing.key"]) == 2
    assert "key file missing.key: No such file" in capsys.readouterr().err
    monkeypatch.delenv("OCTAVO_KEY_FILE")
    assert command_line.main(["ledger", "recover", "0", "--metadata", uri, "--tls-ca", "missing.crt"]) == 2
    assert "missing.crt: No such file" in capsys.readouterr().err


def test_tables_elsewhere_than_on_a_terminal_are_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "n"], [["x" * 200, 1], ["y", None]])
    assert capsys.readouterr().out == f"{'name':200}  n\n{'x' * 200}  1\ny\n"


HOSTILE = "a\x1b[2J\r\nb\x9b31m\u202ec"
"""A name that clears the screen, goes to another line, changes colours and the direction of writing."""


def test_what_a_client_has_chosen_cannot_command_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shown = r"a\x1b[2J\r\nb\x9b31m\u202ec"
    print_line(HOSTILE)
    print_table(["name"], [[HOSTILE]])
    print_json({"name": HOSTILE})
    print_error(HOSTILE)
    said = capsys.readouterr()
    line, _, row, as_json = said.out.splitlines()
    assert (line, row, said.err) == (shown, shown, f"octavo: {shown}\n")
    assert json.loads(as_json) == {"name": HOSTILE}
    assert said.out.replace("\n", "").isprintable()
    assert visible("Zoë 名 😀 é") == "Zoë 名 😀 é"


def test_a_terminal_that_cannot_show_a_name_gets_an_escape_sequence(tmp_path: Path) -> None:
    file = tmp_path / "naïve.toml"
    file.write_text('data_dir = "/d"\n')
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [*OCTAVO, "config", "check", str(file)]
    done = subprocess.run(
        command, env=environment(**ascii_only), capture_output=True, timeout=WAIT_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(rb"na\udcc3\udcafve.toml is valid" + b"\n")


def state_of(process: "subprocess.Popen[bytes]") -> str:
    """What the kernel says the process is doing: a letter, T for one that is stopped."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_is_whole_though_a_signal_interrupts_a_write_to_a_full_pipe(unbuffered: str) -> None:
    """The kernel ends the write in the middle; what it did not take must be written again."""
    pipe_bytes = 4096
    whole = (ROOT / "deploy" / "bookie.toml").read_bytes()
    assert len(whole) > pipe_bytes
    with subprocess.Popen(
        [*OCTAVO, "deploy", "show", "bookie.toml"],
        env=environment(PYTHONUNBUFFERED=unbuffered),
        stdout=subprocess.PIPE,
        pipesize=pipe_bytes,
    ) as process:
        assert process.stdout is not None
        full = array("i", [0])
        reading_end = process.stdout.fileno()

        def is_full() -> bool:
            fcntl.ioctl(reading_end, termios.FIONREAD, full)
            return full[0] == pipe_bytes

        wait_until(is_full, "the pipe to be full")
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(process) == "T", "the process to be stopped")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: state_of(process) != "T", "the process to go on")
        assert process.stdout.read() == whole
    assert process.returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_help_that_cannot_be_written_is_one_line(unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*OCTAVO, "--help"],
            env=environment(PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=WAIT_SECONDS,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"octavo: standard output: No space left on device\n")


def test_the_command_for_other_shells_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = "zk+tls://zk1/o?tls_ca=/a b&tls_key='x'"
    print_ready(3, 3, uri, tmp_path)
    line = capsys.readouterr().out.splitlines()[1]
    assert shlex.split(line) == ["export", f"OCTAVO_METADATA={uri}"]


def test_bytes_in_json_are_text_where_they_are_text() -> None:
    assert bytes_as_json(b"caf\xc3\xa9") == "café"
    assert json.dumps(bytes_as_json(b"\xff")) == '{"base64": "/w=="}'


def _commands(group: Any, path: str = "octavo") -> Iterator[tuple[str, Any]]:
    for name, found in group.commands.items():
        yield from _commands(found, f"{path} {name}") if hasattr(found, "commands") else [(f"{path} {name}", found)]


def test_no_option_takes_nan_for_a_number() -> None:
    """It would lie in every range."""
    options = [
        (path, option.name, option.callback)
        for path, found in _commands(typer.main.get_command(commands_of()))
        for option in found.params
        if option.type.name.startswith("float")
    ]
    assert len(options) > 15
    for path, name, callback in options:
        assert callback is not None, f"{path}: the option {name} needs callback=number"
        with pytest.raises(typer.BadParameter, match="'nan' is not a number"):
            callback(None, None, math.nan)


@pytest.mark.parametrize("words", [[], ["log"], ["cluster"]])
def test_a_command_that_needs_another_word_shows_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(words) == 2
    asked = capsys.readouterr()
    assert command_line.main([*words, "--help"]) == 0
    assert (asked.out, asked.err.rstrip()) == ("", capsys.readouterr().out.rstrip())
    assert len(asked.err.splitlines()) > 10


@pytest.mark.parametrize(
    ("count", "plural", "words"),
    [(0, None, "0 logs"), (1, None, "1 log"), (2, None, "2 logs"), (12345, None, "12,345 logs"), (1, "x", "1 log")],
)
def test_one_thing_is_named_in_the_singular(count: int, plural: str | None, words: str) -> None:
    assert counted(count, "log", plural) == words
    assert counted(2, "entry", "entries") == "2 entries"
