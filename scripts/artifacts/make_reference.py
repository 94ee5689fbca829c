"""Writes the reference pages in docs/reference/ from the code: ``make_reference.py [--check]``.

Settings come from ``BookieConfig``, options from ``ClientOptions`` and their guide, commands from the command line's
own help, errors from the public classes. With ``--check`` nothing is written, and the exit status is 1 if a page is not
up to date; tests/house checks it, too.
"""

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import typer
from octavo.bookie import config
from octavo.cli.commands import command_line
from octavo.client.log.cursors.keeper import CURSORS_BYTES_MAX
from octavo.client.log.documents.key_window import KEY_BYTES_MAX, WINDOW_ENTRIES_MAX
from octavo.client.log.documents.names import CURSOR_CHARACTERS_MAX, NAME_CHARACTERS_MAX
from octavo.client.option_guide import GUIDES, Use
from octavo.client.options import ClientOptions
from octavo.protocol import limits
from octavo.protocol.errors import ERROR_CODES, OctavoError
from octavo.protocol.ids import TERM_MAX

import octavo

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"

NOTE = "<!-- Written by scripts/artifacts/make_reference.py. Change the code, then run the script. -->\n\n"


def cell(text: str) -> str:
    """Text for a cell of a table, from a docstring."""
    text = re.sub(r":(?:class|meth|data|mod|func|attr):`~?([^`]+)`", r"`\1`", " ".join(text.split()))
    return text.replace("``", "`").replace("|", "\\|")


def table(headers: list[str], rows: list[list[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# --- settings --------------------------------------------------------------------------------------------------------


def meanings_of(kind: type) -> dict[str, str]:
    """The docstring below each attribute of a class."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for attribute, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name):
            documented = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            found[attribute.target.id] = str(text.value.value) if documented else ""  # type: ignore[attr-defined]
    return found


def default_of(value: object) -> str:
    """A default as it would stand in the file of settings."""
    if value is MISSING:
        return "required"
    if value is None:
        return ""
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{value}`"


def settings_page() -> str:
    meanings = meanings_of(config.BookieConfig)
    rows = []
    for setting in fields(config.BookieConfig):
        variable = config.variable_of(setting.name)
        rows.append([f"`{setting.name}`", default_of(setting.default), f"`{variable}`", cell(meanings[setting.name])])
    return (
        f"{NOTE}# Settings of a bookie\n\n"
        "A bookie takes each setting from its file (`octavo bookie --config FILE`), from an environment\n"
        "variable, or from an option; a later source overrides an earlier one. `octavo config check FILE`\n"
        "validates a file. [operations](../operations.md#settings) describes how they work together.\n\n"
        + table(["setting", "default", "environment variable", "meaning"], rows)
    )


# --- options of clients ----------------------------------------------------------------------------------------------


UNITS = {
    "seconds": "seconds", "bytes": "bytes", "entries": "entries", "requests": "requests", "segments": "segments",
}  # fmt: skip
"""A word of an option's name -> the unit of its value."""


def unit_of(option: str) -> str:
    """The unit in the option's name; empty for a number without unit, and for what is no number."""
    return next((unit for word, unit in UNITS.items() if word in option.split("_")), "")


def subjects_of(kind: type) -> dict[str, str]:
    """Each attribute of a class, and the heading above it: a comment ``# --- subject``."""
    subject, found = "", {}
    for line in inspect.getsource(kind).splitlines():
        if heading := re.fullmatch(r" {4}# --- (.+)", line):
            subject = heading[1]
        elif attribute := re.match(r" {4}(\w+): ", line):
            found[attribute[1]] = subject
    return found


def options_page() -> str:
    meanings, subjects = meanings_of(ClientOptions), subjects_of(ClientOptions)
    sections: dict[str, list[list[str]]] = {}
    for option in fields(ClientOptions):
        guide = GUIDES[option.name]
        default = default_of(option.default) or "`None`"
        facts = f"`{option.name}`", default, unit_of(option.name), guide.use
        rows = sections.setdefault(subjects[option.name], [])
        rows.append([*facts, cell(meanings[option.name]), cell(guide.when)])
    counts = {use: sum(guide.use is use for guide in GUIDES.values()) for use in Use}
    text = (
        f"{NOTE}# Options of a client\n\n"
        "`octavo.connect(uri, lease_seconds=5, ...)` takes these options; `octavo.ClientOptions` has them as\n"
        f"attributes. None of the {len(GUIDES)} must be given. {counts[Use.COMMON]} are *common*: programs are"
        " expected to choose them.\n"
        f"{counts[Use.SOMETIMES]} are for *some* situations, which the last column names. {counts[Use.RARE]} are"
        " *rare*: they exist for tests,\n"
        "measurements and unusual networks, and a change may do harm in ways that are found late. Sizes are\n"
        "in bytes, times in seconds. A value out of range is refused with `InvalidArgumentError`, before\n"
        "anything is connected.\n"
    )
    for subject, rows in sections.items():
        headers = ["option", "default", "unit", "use", "meaning", "when to touch it"]
        text += f"\n## {subject.capitalize()}\n\n{table(headers, rows)}"
    return text


# --- commands --------------------------------------------------------------------------------------------------------


def commands_of(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path, in the order of the help."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from commands_of(inner, (*path, name))


COMMON = {
    *(
        "--metadata",
        "--tls-ca",
        "--tls-certificate",
        "--tls-key",
        "--key-file",
        "--log-level",
        "--log-format",
        "--json",
    ),
    *("--help", "--install-completion", "--show-completion"),
}
"""Options that nearly every command has; the page explains them once."""


def command_section(path: tuple[str, ...], command: Any) -> str:
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([*path, *(name_of_argument(p) for p in arguments)])
    rows = []
    for parameter in command.params:
        names = parameter.opts + parameter.secondary_opts
        if getattr(parameter, "hidden", False) or COMMON & {*names}:
            continue
        if parameter.param_type_name == "option":
            shown = ", ".join(names) + ("" if parameter.is_flag else f" {parameter.metavar}")
        else:
            shown = name_of_argument(parameter)
        rows.append([f"`{cell(shown)}`", default_of_parameter(parameter), cell(parameter.help or "")])
    options = f"\n{table(['option', 'default', 'meaning'], rows)}" if rows else ""
    is_group = bool(getattr(command, "commands", None))
    level = "##" if len(path) <= 2 else "###"
    usage += " COMMAND" if is_group and not getattr(command, "invoke_without_command", False) else ""
    text = "\n\n".join(wrapped(paragraph) for paragraph in text.split("\n\n"))
    return f"{level} {' '.join(path)}\n\n```text\n{usage}\n```\n\n{text}\n{options}\n"


def name_of_argument(parameter: Any) -> str:
    """An argument as the help of the command shows it: in brackets if it may be left out."""
    name = str(parameter.metavar or parameter.name.upper())
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def default_of_parameter(parameter: Any) -> str:
    """The default; empty for a switch, and where the meaning of the option tells it."""
    value = getattr(parameter.default, "value", parameter.default)
    if callable(value) or (not value and type(value) is not int):
        return ""
    return f"`{value}`"


def wrapped(paragraph: str) -> str:
    """A paragraph with lines as long as those of the other documents. Names of commands stay whole."""
    return "\n".join(textwrap.wrap(paragraph, 100, break_long_words=False, break_on_hyphens=False))


def commands_page() -> str:
    root: Any = typer.main.get_command(command_line())
    common = [
        ["`--metadata URI`", "The cluster's metadata store (`OCTAVO_METADATA`)."],
        ["`--tls-ca FILE`", "Speak TLS with bookies, and accept certificates of these authorities (`OCTAVO_TLS_CA`)."],
        ["`--tls-certificate FILE`", "Certificate of this client. Needs `--tls-key` (`OCTAVO_TLS_CERTIFICATE`)."],
        ["`--tls-key FILE`", "Key of the certificate (`OCTAVO_TLS_KEY`)."],
        ["`--key-file FILE`", "Key of a principal, as `octavo access key` makes it (`OCTAVO_KEY_FILE`)."],
        ["`--log-level LEVEL`", "Log messages of this level and above (`OCTAVO_LOG_LEVEL`)."],
        ["`--log-format FORMAT`", "Form of log messages: console or json (`OCTAVO_LOG_FORMAT`)."],
        ["`--json`", "Print results as JSON."],
        ["`-h, --help`", "Show the help."],
    ]
    sections = [command_section(path, command) for path, command in commands_of(root, ("octavo",)) if len(path) > 1]
    return (
        f"{NOTE}# Commands\n\n"
        "Every command that works on a cluster has these options. [operations](../operations.md#commands)\n"
        "lists the exit statuses. `octavo --install-completion` completes commands in the shell.\n\n"
        f"{table(['option', 'meaning'], common)}\n" + "\n".join(sections).rstrip("\n") + "\n"
    )


# --- errors ----------------------------------------------------------------------------------------------------------


def errors_page() -> str:
    codes = {kind: code for code, kind in ERROR_CODES.items()}
    rows = []
    for name in octavo.__all__:
        kind = getattr(octavo, name)
        if isinstance(kind, type) and issubclass(kind, OctavoError):
            text = inspect.getdoc(kind) or ""
            rows.append(
                [
                    f"`{name}`",
                    str(codes.get(kind, "")),
                    "yes" if kind.retryable else "no",
                    "yes" if kind.may_have_happened_default else "no",
                    cell(text),
                ]
            )
    return (
        f"{NOTE}# Errors\n\n"
        "Every error derives from `octavo.OctavoError`. *Retry*: the same call, unchanged, may succeed later\n"
        "(`error.retryable`). *In doubt*: the effect may exist although the call failed\n"
        "(`error.may_have_happened`). Both columns show the default of the class; an instance can know\n"
        "better. *Code* is the number on the wire, for errors that bookies send.\n\n"
        + table(["error", "code", "retry", "in doubt", "meaning"], rows)
    )


# --- limits ----------------------------------------------------------------------------------------------------------


def amount(number: int) -> str:
    """A number as people read it: powers of two in KiB and MiB."""
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if number >= size and number % size == 0:
            return f"{number // size} {unit}"
    return f"{number:,}"


def limits_page() -> str:
    sections = {
        "Entries and keys": [
            ("payload of an entry", amount(limits.ENTRY_PAYLOAD_BYTES_MAX), "cut larger ones, or store a reference"),
            (
                "payload with its key, and one byte",
                amount(limits.ENTRY_PAYLOAD_BYTES_MAX),
                "in logs created with `keys`",
            ),
            ("key of an entry", f"{KEY_BYTES_MAX} bytes in UTF-8", ""),
            ("entries in the window of keys", f"{WINDOW_ENTRIES_MAX:,}", "a new leader reads the window"),
        ],
        "Logs": [
            ("name of a log", f"{NAME_CHARACTERS_MAX} characters", "letters, digits, `._-`, and `/` between parts"),
            ("name of a cursor", f"{CURSOR_CHARACTERS_MAX} characters", "as a log's"),
            (
                "cursors of a log",
                f"what fits {amount(CURSORS_BYTES_MAX)}",
                "all of a log are one document: 1,600 with the longest names",
            ),
            ("leaders at a time", "1", "others wait in `lead()`"),
            ("positions", "2^63", "never used up: a million a second for 290,000 years"),
            ("terms, one for each leader", f"{TERM_MAX:,}", "one each second for eight years"),
        ],
        "Copies": [
            ("bookies of an ensemble", f"{limits.E_MAX}", "a log may use all of a cluster, one segment after another"),
            ("bookies that may be lost", "Qa - 1", "of those of an entry, with every acknowledged entry kept"),
        ],
        "A client's defaults": [
            ("adds of a writer under way", f"{ClientOptions().window_entries:,}", "`window_entries`; more wait"),
            ("bytes of a writer under way", amount(ClientOptions().window_bytes), "`window_bytes`; more wait"),
        ],
        "Not supported": [
            ("deleting or changing one entry", "", "truncate from the front, or retain less"),
            ("transactions over several logs", "", "put what belongs together into one entry"),
            ("order across logs", "", "positions and times are those of one log"),
            ("ledgers or logs renamed", "", "create another, and copy"),
        ],
    }
    text = (
        f"{NOTE}# Limits\n\n"
        "Everything that has a bound, or is not there. A value beyond a limit is refused with an error that\n"
        "names it. [Sizing](../sizing.md) says what a host bears, [performance](../performance.md) what was\n"
        "measured, [Kafka](../kafka.md) what the gateway leaves out.\n"
    )
    for title, rows in sections.items():
        text += f"\n## {title}\n\n" + table(["of", "limit", "note"], [list(row) for row in rows])
    return text


PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "options.md": options_page,
    "limits.md": limits_page,
    "commands.md": commands_page,
    "errors.md": errors_page,
}


def outdated() -> list[str]:
    """The pages that are not what the code says."""
    return [
        name
        for name, make in PAGES.items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != make()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the reference pages from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not up to date")
    arguments = parser.parse_args()
    pages = outdated()
    if arguments.check:
        for name in pages:
            print(f"docs/reference/{name} is not up to date: run scripts/artifacts/make_reference.py", file=sys.stderr)
        return 1 if pages else 0
    FOLDER.mkdir(exist_ok=True)
    for name in pages:
        (FOLDER / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
