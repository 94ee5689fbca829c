"""All commands of ``octavo`` together."""

from typing import Annotated

import typer
from octavo.cli import bench, bench_create, bookie, bookies, cluster, ledger, pipeline, up

from octavo._version import __version__

app = typer.Typer(
    name="octavo",
    help="Octavo: a replicated, append-only log store.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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

    `octavo up` starts a cluster on this machine; the other commands use it. Each has --help.
    """


up.register(app)
app.add_typer(bookie.app)
bookies.register(app)
app.add_typer(ledger.app)
bench_create.register(bench.app)
app.add_typer(bench.app)
app.add_typer(cluster.app)
app.add_typer(pipeline.app)
