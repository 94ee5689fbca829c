"""The command ``octavo`` with all its sub-commands."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from octavo.cli import access, bookies, config, doctor, pipeline, repair, support_bundle, tls, top
from octavo.cli.bench import commands as bench
from octavo.cli.bench import create as bench_create
from octavo.cli.bench import disk as bench_disk
from octavo.cli.bench import log as bench_log
from octavo.cli.bookie import commands as bookie
from octavo.cli.cluster import commands as cluster
from octavo.cli.console import commands as console
from octavo.cli.deploy import commands as deploy
from octavo.cli.ledger import commands as ledger
from octavo.cli.local import down, status, up
from octavo.cli.log import commands as log
from octavo.cli.session import print_error

from octavo._version import __version__

app = typer.Typer(
    name="octavo",
    help="Octavo: a replicated, append-only log store.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"octavo {__version__}")
        raise typer.Exit


@app.callback()
def octavo(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Octavo: a replicated, append-only log store.

    `octavo up` starts a cluster on this machine; the other commands use it. Every command has --help.
    """


up.register(app)
status.register(app)
down.register(app)
app.add_typer(bookie.app)
bookies.register(app)
top.register(app)
console.register(app)
app.add_typer(log.app)
app.add_typer(ledger.app)
bench_create.register(bench.app)
bench_log.register(bench.app)
bench_disk.register(bench.app)
app.add_typer(bench.app)
app.add_typer(cluster.app)
app.add_typer(access.app)
app.add_typer(tls.app)
app.add_typer(repair.app)
app.add_typer(pipeline.app)
app.add_typer(deploy.app)
app.add_typer(config.app)
doctor.register(app)
support_bundle.register(app)


def run(arguments: Sequence[str] | None) -> int:
    """Run the command line ``arguments`` (None: those of the process); the exit status.

    A mistake in the command line is reported in one line, like every other error.
    """
    try:
        status: object = app(None if arguments is None else list(arguments), prog_name="octavo", standalone_mode=False)
    except typer.TyperException as error:
        return _report_usage(error)
    return status if isinstance(status, int) else 0


def _report_usage(error: Any) -> int:
    text = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if text and context is not None:
        text = f"{text.removesuffix('.')} - see `{context.command_path} --help`"
    if text:  # empty when only the help was requested
        print_error(text)
    return int(error.exit_code)
