"""The command ``octavo`` with all its sub-commands."""

import copy
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from octavo._version import __version__
from octavo.cli.session import drop_output, print_error


class Part(NamedTuple):
    """The module of the commands that begin with one word, and their summary."""

    module: str
    """Has ``app``, a group of commands, or ``register``, which adds the one command."""
    summary: str
    """First sentence of the command's help: the list of commands shows it without the module."""


PARTS = {
    "up": Part("octavo.cli.local.up", "Run a whole cluster on this machine."),
    "status": Part("octavo.cli.local.status", "Show the cluster that runs on this machine."),
    "down": Part("octavo.cli.local.down", "Stop the cluster that runs on this machine."),
    "bookie": Part("octavo.cli.bookie.commands", "Run one bookie in the foreground."),
    "bookies": Part("octavo.cli.bookies", "Show the bookies of the cluster."),
    "top": Part("octavo.cli.top.commands", "Watch what the bookies and logs of the cluster do."),
    "console": Part("octavo.cli.console.commands", "Serve a web page that shows the cluster, live."),
    "gateway": Part("octavo.cli.gateway", "Serve clients that speak Kafka's protocol."),
    "topic": Part("octavo.cli.kafka.topics", "Create, inspect, change and delete Kafka topics."),
    "group": Part("octavo.cli.kafka.groups", "Inspect, reset and delete consumer groups."),
    "log": Part("octavo.cli.log.commands", "Create, append to, read, follow and inspect logs."),
    "ledger": Part("octavo.cli.ledger.commands", "Create, fill, read, follow and inspect ledgers."),
    "bench": Part("octavo.cli.bench.commands", "Measure throughput and latency."),
    "cluster": Part("octavo.cli.cluster.commands", "Check a cluster, and manage its metadata."),
    "access": Part("octavo.cli.access", "Manage access to the cluster: principals, roles and keys."),
    "tls": Part("octavo.cli.tls", "Make certificates for a small cluster."),
    "repair": Part("octavo.cli.repair.commands", "Show and control the repair of lost copies."),
    "pipeline": Part("octavo.cli.pipeline", "Jobs over whole clusters, on Spark (octavo[spark])."),
    "deploy": Part("octavo.cli.deploy.commands", "Install systemd units and prepare a host for bookies."),
    "config": Part("octavo.cli.config", "Check settings of bookies."),
    "doctor": Part("octavo.cli.doctor", "Check this host and the cluster for common problems."),
    "support-bundle": Part("octavo.cli.support_bundle", "Collect what helps to find a problem, without secrets."),
}
"""First word of a command line -> what stands for it. In the order of the help."""

COMPLETION_VARIABLE = "_OCTAVO_COMPLETE"
"""A shell that completes a command line sets it."""


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


def command_line(words: Sequence[str] | None = None) -> typer.Typer:
    """The commands that a process with these ``words`` can need; None: all commands.

    A process runs one command: loading all of them would take longer than most commands run. A line that names a
    command loads that one. The list of commands needs no more than their summaries.
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
    if words is None or (words and words[0].startswith("-") and words[0] not in _SHOW_COMMANDS):
        for word in PARTS:
            _add(app, word, ())
    elif words and words[0] in PARTS:
        _add(app, words[0], words[1:])
    else:
        for word, part in PARTS.items():
            app.command(word, help=part.summary)(_only_listed)
    return app


_SHOW_COMMANDS = ("-h", "--help", "--version")


def _only_listed() -> None:
    raise AssertionError("a line with the name of a command loads its module")


def _add(app: typer.Typer, word: str, further: Sequence[str]) -> None:
    """Add the commands that begin with ``word``: if the ``further`` words name one of them, only that one."""
    part: Any = import_module(PARTS[word].module)
    if hasattr(part, "register"):
        part.register(app)
    else:
        app.add_typer(_narrowed(part.app, further))


def _narrowed(app: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """The group, with the named command alone. The others would have their options built for nothing."""
    named = [one for one in app.registered_commands if words[:1] == [_name_of(one)]]
    if not named:
        return app
    alone = copy.copy(app)
    alone.registered_commands = named
    alone.registered_groups = []
    return alone


def _name_of(command: Any) -> str:
    return command.name or str(command.callback.__name__).replace("_", "-")


def run(arguments: Sequence[str] | None) -> int:
    """Run the command line ``arguments`` (None: those of the process); the exit status.

    A mistake in the command line is reported in one line, like every other error. A command that needs another word
    shows its help on standard error.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    needed = None if COMPLETION_VARIABLE in os.environ else words
    try:
        status: object = command_line(needed)(words, prog_name="octavo", standalone_mode=False)
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
