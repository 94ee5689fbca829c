"""``octavo bookie``: runs one bookie in the foreground. Its sub-commands administer a running bookie,
or work on the directory of a stopped one."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer
from octavo.cli.bookie import admin as bookie_admin
from octavo.cli.bookie import offline as bookie_offline
from octavo.cli.bookie.options import EntryDirOption, JournalDirOption
from octavo.cli.session import LogFormat, LogLevel, guarded

app = typer.Typer(name="bookie")

STOP_SECONDS_MAX = 30.0
"""How long a bookie may take to stop cleanly after its parent has gone."""


DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="Directory of the bookie's data.")
]
HostOption = Annotated[
    str | None,
    typer.Option("--host", metavar="HOST", help="Address to listen on. The default is 127.0.0.1."),
]
BookieIdOption = Annotated[
    str | None,
    typer.Option("--bookie-id", metavar="ID", help="Refuse to start as a bookie with any other id."),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Port to listen on. 0 takes any free port. The default is 3181.",
    ),
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(
        "--advertise",
        metavar="HOST:PORT",
        help="Address under which clients reach the bookie. The default is the address that it listens on.",
    ),
]
RackOption = Annotated[
    str | None,
    typer.Option(
        "--rack",
        metavar="PATH",
        help="Location of the bookie, like /dc1/rack2. Copies of an entry go to different racks.",
    ),
]
HostIdOption = Annotated[
    str | None,
    typer.Option(
        "--host-id",
        metavar="ID",
        help="Names the host that runs the bookie. Copies of an entry go to different hosts. By default the bookie"
        " finds it out.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="File of settings in TOML. See docs/operations.md."),
]
MetadataOption = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        metavar="URI",
        help="The cluster's metadata store. The default is the value of OCTAVO_METADATA.",
    ),
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="Log messages of this level and above: debug, info, warning or error. The default is the value of"
        " OCTAVO_LOG_LEVEL.",
    ),
]
LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        metavar="FORMAT",
        help="Form of log messages: console or json. The default is the value of OCTAVO_LOG_FORMAT.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Accepted as by every command. A bookie prints no results.")]
StopWithStandardInputOption = Annotated[bool, typer.Option("--stop-with-standard-input", hidden=True)]


@app.callback(invoke_without_command=True)
def bookie(
    context: typer.Context,
    data_dir: DataDirOption = None,
    journal_dir: JournalDirOption = None,
    entry_dir: EntryDirOption = None,
    host: HostOption = None,
    bookie_id: BookieIdOption = None,
    port: PortOption = None,
    advertise: AdvertiseOption = None,
    rack: RackOption = None,
    host_id: HostIdOption = None,
    config: ConfigOption = None,
    metadata: MetadataOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    as_json: JsonOption = False,
    stop_with_standard_input: StopWithStandardInputOption = False,
) -> None:
    """Run one bookie in the foreground.

    SIGTERM stops the bookie cleanly. systemd is notified when the bookie is ready. Settings come from the file given
    with --config, from environment variables (OCTAVO_BOOKIE_...) and from these options; a later source overrides an
    earlier one. Exit status 78 means that the data or the identity of the bookie are wrong, so that starting it again
    cannot help.
    """
    if context.invoked_subcommand is not None:
        return
    flags = {
        "data_dir": data_dir,
        "journal_dir": journal_dir,
        "entry_dirs": tuple(entry_dir) if entry_dir else None,
        "bookie_id": bookie_id,
        "host": host,
        "port": port,
        "advertise": advertise,
        "rack": rack,
        "host_id": host_id,
        "metadata": metadata,
        "log_level": log_level.value if log_level else None,
        "log_format": log_format.value if log_format else None,
    }

    def work() -> int:
        # Imported here: no other command needs a bookie's modules. The first of them imports structlog cheaply.
        import octavo.bookie.logs  # noqa: F401, PLC0415
        from octavo.bookie.config import BookieConfig, load_config  # noqa: PLC0415
        from octavo.bookie.daemon import run  # noqa: PLC0415
        from octavo.bookie.log_output import use_log_outputs  # noqa: PLC0415
        from octavo.cli.bookie.companion import repair_companion  # noqa: PLC0415

        def settings() -> BookieConfig:
            return load_config(config, os.environ, flags)

        use_log_outputs()
        checked = settings()
        if stop_with_standard_input:
            threading.Thread(target=_stop_at_end_of_input, name="parent-watch", daemon=True).start()
        return run(checked, repair_companion(checked), settings)

    raise typer.Exit(guarded(work, show_traceback=log_level is LogLevel.DEBUG))


bookie_offline.register(app)
bookie_admin.register(app)


def _stop_at_end_of_input() -> None:
    """Stop this process when its standard input ends, because its parent has gone."""
    try:
        while os.read(sys.stdin.fileno(), 4096):
            pass
    except OSError:
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS_MAX)
    os._exit(1)
