"""The help of every command: plain sentences, no type names where words are due, lines as wide as the terminal."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from octavo.cli.commands import PARTS, command_line, run
from octavo.cli.main import main


def commands_of(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        if not inner.hidden:
            yield from commands_of(inner, (*path, name))


ALL: Any = typer.main.get_command(command_line())
COMMANDS = list(commands_of(ALL, ()))


def help_of(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    assert run([*path, "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def test_all_commands_are_found() -> None:
    assert {("up",), ("down",), ("status",), ("ledger", "append"), ("bookie", "check"), ("bench", "create")} <= {
        *COMMANDS
    }


@pytest.mark.parametrize("word", PARTS)
def test_a_word_loads_its_own_command_and_no_other(word: str) -> None:
    loaded: Any = typer.main.get_command(command_line([word]))
    assert list(loaded.commands) == [word]
    assert list(commands_of(loaded, ())) == [(), *(path for path in COMMANDS if path[:1] == (word,))]


@pytest.mark.parametrize("path", [path for path in COMMANDS if len(path) > 1], ids=" ".join)
def test_the_words_of_a_command_load_what_runs_it(path: tuple[str, ...]) -> None:
    loaded: Any = typer.main.get_command(command_line(path))
    whole: Any = ALL
    for word in path:
        loaded, whole = loaded.commands[word], whole.commands[word]
    assert [(one.name, one.opts) for one in loaded.params] == [(one.name, one.opts) for one in whole.params]


def test_a_command_of_a_group_is_built_without_the_others() -> None:
    loaded: Any = typer.main.get_command(command_line(["log", "list", "--json"]))
    assert list(loaded.commands["log"].commands) == ["list"]
    mistyped: Any = typer.main.get_command(command_line(["log", "lst"]))
    assert mistyped.commands["log"].commands.keys() == ALL.commands["log"].commands.keys()


def test_every_command_has_a_word() -> None:
    assert {*PARTS} == {*ALL.commands}


@pytest.mark.parametrize("word", PARTS)
def test_the_list_of_commands_tells_what_a_command_says_of_itself(word: str) -> None:
    assert ALL.commands[word].get_short_help_str(limit=100) == PARTS[word].summary


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)], ids=" ".join)
def test_the_list_of_commands_is_in_the_order_of_the_table(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run(words)
    shown = capsys.readouterr()
    listed = (shown.out + shown.err).partition("Commands:")[2]
    assert re.findall(r"^  ([a-z-]+)  ", listed, re.MULTILINE) == [*PARTS]


def test_a_word_that_is_no_command_gets_the_nearest_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lgo"]) == 2
    assert "Did you mean 'log'?" in capsys.readouterr().err


def test_options_of_the_whole_line_and_completion_know_all_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"_OCTAVO_COMPLETE": "complete_bash", "COMP_WORDS": "octavo log li", "COMP_CWORD": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="0"):
        run([])
    assert capsys.readouterr().out.split() == ["list"]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_is_plain(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(path, capsys)
    assert "<bool>" not in text
    assert max(map(len, text.splitlines())) <= 120
    assert re.search(r"  -h, --help +Show this message and exit\.", text)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_is_explained_in_sentences(path: tuple[str, ...]) -> None:
    command = ALL
    for name in path:
        command = command.commands[name]
    for parameter in command.params:
        explained = getattr(parameter, "help", None)
        if not getattr(parameter, "hidden", False):
            assert explained, parameter.name
            assert re.fullmatch(r"[A-Z].*\.", explained, re.DOTALL), explained
            assert "(default:" not in explained
            is_option = parameter.param_type_name == "option"
            assert not is_option or parameter.is_flag or parameter.metavar, (
                f"{parameter.name} has no word for its value"
            )


@pytest.mark.parametrize("path", [path for path in COMMANDS if path], ids=" ".join)
def test_first_sentence_fits_into_the_list_of_commands(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = help_of(path[:-1], capsys).splitlines()
    (line,) = (line for line in lines if re.match(rf"  {path[-1]} ", line))
    assert line.endswith("."), line
    assert not line.endswith("..."), line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_a_shell_is_printed(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert main(["--show-completion", shell]) == 0
    assert "_OCTAVO_COMPLETE" in capsys.readouterr().out
