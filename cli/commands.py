"""The command ``octavo`` with all its sub-commands."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from octavo._version import __version__
from octavo.cli.session import drop_output, print_error

PARTS = {
    "up": "octavo.cli.local.up",
    "status": "octavo.cli.local.status",
    "down": "octavo.cli.local.down",
    "bookie": "octavo.cli.bookie.commands",
    "bookies": "octavo.cli.bookies",
    "top": "octavo.cli.top.commands",
    "console": "octavo.cli.console.commands",
    "gateway": "octavo.cli.gateway",
    "topic": "octavo.cli.kafka.topics",
    "group": "octavo.cli.kafka.groups",
    "log": "octavo.cli.log.commands",
    "ledger": "octavo.cli.ledger.commands",
    "bench": "octavo.cli.bench.commands",
    "cluster": "octavo.cli.cluster.commands",
    "access": "octavo.cli.access",
    "tls": "octavo.cli.tls",
    "repair": "octavo.cli.repair",
    "pipeline": "octavo.cli.pipeline",
    "deploy": "octavo.cli.deploy.commands",
    "config": "octavo.cli.config",
    "doctor": "octavo.cli.doctor",
    "support-bundle": "octavo.cli.support_bundle",
}
"""First word of a command line -> the module with ``app``, its group of commands, or ``register``, which adds the one
command. In the order of the help."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"octavo {__version__}")
        raise typer.Exit


def _octavo(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Octavo: a replicated, append-only log store.

    `octavo up` starts a cluster on this machine; the other commands use it. Every command has --help.
    """


def command_line(first_word: str | None = None) -> typer.Typer:
    """The commands that begin with this word; none for ``--version``, all commands for any other word and for None.

    A process runs one command: loading all of them would take longer than most commands run.
    """
    app = typer.Typer(
        name="octavo",
        help="Octavo: a replicated, append-only log store.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    app.callback()(_octavo)
    needed = [first_word] if first_word in PARTS else [] if first_word == "--version" else PARTS
    for word in needed:
        part = import_module(PARTS[word])
        if hasattr(part, "register"):
            part.register(app)
        else:
            app.add_typer(part.app)
    return app


def run(arguments: Sequence[str] | None) -> int:
    """Run the command line ``arguments`` (None: those of the process); the exit status.

    A mistake in the command line is reported in one line, like every other error. A command that needs another word
    shows its help on standard error.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status: object = command_line(*words[:1])(words, prog_name="octavo", standalone_mode=False)
    except typer.TyperException as error:
        return _report_usage(error)
    except OSError as error:  # the help could not be written
        print_error(f"standard output: {error.strerror or error}")
        drop_output()
        return 1
    return status if isinstance(status, int) else 0


def _report_usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # Typer does not export it; its text is the whole help
        print(error.format_message(), file=sys.stderr)
        return int(error.exit_code)
    text = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if text and context is not None:
        text = f"{text.removesuffix('.')} - see `{context.command_path} --help`"
    if text:  # empty when only the help was requested
        print_error(text)
    return int(error.exit_code)
