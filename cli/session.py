"""Helpers that all commands share: the common options, the connection to the cluster, errors and exit statuses, the
event loop.

Exit status: 0 for success; 1 for failure, with one line on standard error; 2 for bad usage; 130 and 143 when Ctrl-C or
SIGTERM ended the command; 141 when the reader of its output has gone. A traceback is shown only with ``--log-level
debug``.
"""

import functools
import inspect
import math
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, NoReturn

import typer
from octavo.cli.output import SIGNAL_STATUS_BASE, visible
from octavo.cli.running_cluster import ClusterState, observe, read_state
from octavo.protocol.errors import EntryTooLargeError, InvalidArgumentError, OctavoError
from octavo.protocol.light_dataclass import dataclass

if TYPE_CHECKING:
    from octavo.client.client import Client
    from octavo.metadata import MetadataStore

DEFAULT_METADATA_URI = "sqlite:///octavo-data/metadata.db"
"""The metadata store of ``octavo up`` in the working directory."""

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NOTHING_DONE = 3
"""A check found nothing to look at: neither sound nor wrong (rule X1)."""

START_SECONDS_MAX = 60.0
"""How long a command waits for a cluster on this machine that is being started."""

NOTICE_SECONDS = 1.0
"""After this time a command that still waits for a cluster says so."""

_POLL_SECONDS = 0.05


class LogLevel(StrEnum):
    """Severity from which messages are logged on standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Form of log messages: readable text, or JSON."""

    CONSOLE = "console"
    JSON = "json"


MetadataOption = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        envvar="OCTAVO_METADATA",
        metavar="URI",
        help="The cluster's metadata store. The default is the store of `octavo up`, ./octavo-data/metadata.db.",
    ),
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        envvar="OCTAVO_LOG_LEVEL",
        metavar="LEVEL",
        help="Log messages of this level and above: debug, info, warning or error.",
    ),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", envvar="OCTAVO_LOG_FORMAT", metavar="FORMAT", help="Form of log messages: console or json."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]


def _security_option(flag: str, variable: str, metavar: str, text: str) -> Any:
    return Annotated[str | None, typer.Option(flag, envvar=variable, metavar=metavar, help=text)]


SECURITY_OPTIONS: dict[str, tuple[str, Any]] = {
    name: (variable, _security_option(f"--{name.replace('_', '-')}", variable, metavar, text))
    for name, variable, metavar, text in (
        ("tls_ca", "OCTAVO_TLS_CA", "FILE", "Speak TLS with bookies, and accept certificates of these authorities."),
        ("tls_certificate", "OCTAVO_TLS_CERTIFICATE", "FILE", "Certificate of this client. Needs --tls-key."),
        ("tls_key", "OCTAVO_TLS_KEY", "FILE", "Key of the certificate."),
        ("key_file", "OCTAVO_KEY_FILE", "FILE", "Key of a principal, as `octavo access key` makes it."),
    )
}
"""Parameter -> environment variable, by which the client finds it, and option."""

PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File with the password of the ledger or log; a newline at its end is not part of the password. The"
        " default is the value of the environment variable OCTAVO_PASSWORD, or no password.",
    ),
]


class CommandError(Exception):
    """A command has failed. Its text is the one line that is shown; the exit status is 1."""


@dataclass(frozen=True, slots=True)
class Session:
    """The common options of one command."""

    metadata: str | None
    """URI of the metadata store as given; None without one. See :attr:`metadata_uri`."""
    log_level: LogLevel
    log_format: LogFormat
    as_json: bool

    @property
    def metadata_uri(self) -> str:
        """URI of the cluster's metadata store."""
        return self.metadata if self.metadata is not None else DEFAULT_METADATA_URI

    async def connect(self, **options: Any) -> "Client":
        """A client of the cluster. Waits for a cluster on this machine that is being started."""
        import octavo  # noqa: PLC0415 - `octavo --help` needs no client

        await self._wait_started()
        return await octavo.connect(self.metadata_uri, **options)

    async def open_metadata(self, *, create: bool = False) -> "MetadataStore":
        """The cluster's metadata store; with ``create`` it is made if it does not exist. Waits as :meth:`connect`."""
        from octavo.metadata.connect import open_cluster  # noqa: PLC0415 - `octavo --help` needs no metadata

        await self._wait_started()
        return await open_cluster(self.metadata_uri, create=create)

    async def _wait_started(self) -> None:
        """If `octavo up` is starting the cluster on this machine, wait until it is ready.

        Raises :class:`CommandError` after :data:`START_SECONDS_MAX`. A start that fails ends the wait: what is then
        missing is reported by the connection.
        """
        directory = directory_of_cluster(self.metadata_uri)
        if directory is None:
            return
        import asyncio  # noqa: PLC0415 - help needs no event loop

        loop = asyncio.get_running_loop()
        begun = loop.time()
        noted = False
        while observe(directory).state is ClusterState.STARTING:
            if not noted and loop.time() > begun + NOTICE_SECONDS:
                noted = True
                print_error(f"waiting for the cluster that is being started in {directory}")
            if loop.time() > begun + START_SECONDS_MAX:
                raise CommandError(
                    f"the cluster in {directory} has not become ready within {START_SECONDS_MAX:g} s; "
                    f"see {directory}/logs"
                )
            await asyncio.sleep(_POLL_SECONDS)


def number(value: float | None) -> float | None:
    """The callback of options that are numbers: refuses NaN, which lies in every range.

    Raises
    ------
    typer.BadParameter
        It is not a number.
    """
    if value is not None and math.isnan(value):
        raise typer.BadParameter("'nan' is not a number")
    return value


def directory_of_cluster(uri: str) -> Path | None:
    """The data directory of the `octavo up` whose metadata store is ``uri``; None when there can be none."""
    if uri.startswith("sqlite:///"):
        directory = Path(uri.removeprefix("sqlite:///")).parent
        return directory if directory.is_dir() else None
    here = Path(DEFAULT_METADATA_URI.removeprefix("sqlite:///")).parent
    facts = read_state(here)
    return here if facts is not None and facts["metadata"] == uri else None


def read_password(password_file: Path | None) -> bytes:
    """The password from ``password_file``, otherwise from the environment, otherwise the empty password.

    One newline (``\\n`` or ``\\r\\n``) at the end of the file is removed, because editors and ``echo`` add one; every
    other byte counts. Raises :class:`CommandError` when the file cannot be read.
    """
    if password_file is None:
        return os.environb.get(b"OCTAVO_PASSWORD", b"")
    from octavo.security.secret_files import read_secret, without_newline  # noqa: PLC0415

    try:
        return without_newline(read_secret(password_file, "password file"))
    except InvalidArgumentError as error:
        raise CommandError(error.message) from error


def command[**P](
    app: typer.Typer,
    name: str | None = None,
    *,
    log_level_default: LogLevel = LogLevel.WARNING,
    logs: bool = True,
    brief: bool = False,
    **settings: Any,
) -> Callable[[Callable[Concatenate[Session, P], Coroutine[Any, Any, int | None]]], Callable[P, NoReturn]]:
    """Make an async function a command of ``app``.

    Its parameters after the session become options, in addition to the common ones. The function returns its exit
    status, or None for 0. ``logs``, ``brief``: see :func:`run_command`.
    """

    def decorate(function: Callable[Concatenate[Session, P], Coroutine[Any, Any, int | None]]) -> Callable[P, NoReturn]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> NoReturn:
            options: dict[str, Any] = kwargs
            for option, (variable, _) in SECURITY_OPTIONS.items():
                value = options.pop(option)
                if value is not None:
                    os.environ[variable] = value  # for every client of this process, which is made for this command
            session = Session(
                metadata=options.pop("metadata"),
                log_level=options.pop("log_level") or log_level_default,
                log_format=options.pop("log_format"),
                as_json=options.pop("as_json"),
            )
            raise typer.Exit(run_command(session, lambda: function(session, *args, **kwargs), logs=logs, brief=brief))

        run.__signature__ = _with_common_options(inspect.signature(function))  # type: ignore[attr-defined]
        del run.__wrapped__  # Typer must read the parameters from the signature above, not from the wrapped function
        run.__annotations__ = {p.name: p.annotation for p in inspect.signature(run).parameters.values()}
        return app.command(name, **settings)(run)

    return decorate


def _with_common_options(signature: inspect.Signature) -> inspect.Signature:
    def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)

    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]
    common = [
        option("metadata", MetadataOption, None),
        *(option(name, annotation, None) for name, (_, annotation) in SECURITY_OPTIONS.items()),
        option("log_level", LogLevelOption, None),
        option("log_format", LogFormatOption, LogFormat.CONSOLE),
        option("as_json", JsonOption, False),
    ]
    return inspect.Signature(own[1:] + common)


# --- running ---------------------------------------------------------------------------------------------------------


def run_command(
    session: Session, work: Callable[[], Coroutine[Any, Any, int | None]], *, logs: bool = True, brief: bool = False
) -> int:
    """Run ``work`` on an event loop of its own and return the exit status; reports all errors.

    Not ``logs``: nothing that ``work`` uses logs with structlog, except the driver of ZooKeeper; so structlog, which
    takes a while to load, is not loaded. ``brief``: ``work`` transfers little: :func:`run_on_loop`.
    """
    from octavo.cli.event_loop import run_on_loop  # noqa: PLC0415 - help needs neither

    if logs or session.metadata_uri.startswith("zk"):
        from octavo.bookie.logs import configure_logging  # noqa: PLC0415

        configure_logging(session.log_level.value, session.log_format.value)
    return guarded(
        lambda: run_on_loop(work, brief=brief),
        show_traceback=session.log_level is LogLevel.DEBUG,
    )


def guarded(work: Callable[[], int], *, show_traceback: bool) -> int:
    """The result of ``work``; an error becomes one line on standard error and an exit status."""
    try:
        status = work()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has gone (`| head`): end silently, like a C program that SIGPIPE ends.
        drop_output()
        return SIGNAL_STATUS_BASE + signal.SIGPIPE
    except KeyboardInterrupt:
        return SIGNAL_STATUS_BASE + signal.SIGINT
    except Exception as error:
        status = _report(error, show_traceback=show_traceback)
        try:
            sys.stdout.flush()
        except OSError:
            drop_output()
    return status


def drop_output() -> None:
    """Discard output that cannot be written, so that the interpreter's flush at its end does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: Exception, *, show_traceback: bool) -> int:
    if show_traceback:
        import traceback  # noqa: PLC0415

        traceback.print_exception(error)
    if isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        return _report(error.exceptions[0], show_traceback=False)
    print_error(describe(error))
    misused = isinstance(error, InvalidArgumentError) and not isinstance(error, EntryTooLargeError)
    return EXIT_USAGE if misused else EXIT_FAILURE


_EXTRAS: Final = {"kio": "kafka", "cramjam": "kafka", "pyspark": "spark", "pyarrow": "spark", "cryptography": "tls"}
"""The packages that not every installation has, and the extra that brings each."""


def describe(error: Exception) -> str:
    """One line that describes the error."""
    match error:
        case CommandError():
            text = str(error)
        case OctavoError():
            text = error.message or type(error).__name__
        case ModuleNotFoundError(name=str(module)) if module.partition(".")[0] in _EXTRAS:
            package, extra = module.partition(".")[0], _EXTRAS[module.partition(".")[0]]
            text = f"this command needs {package}: install Octavo with its extra `{extra}` (octavo[{extra}])"
        case OSError(strerror=str(reason)):
            text = f"{error.filename}: {reason}" if error.filename else reason
        case _:
            text = f"internal error: {type(error).__name__}: {error} (run it with --log-level debug for a traceback)"
    return " ".join(text.split())


def print_error(text: str) -> None:
    """Print one line on standard error, marked as Octavo's."""
    print(f"octavo: {visible(text)}", file=sys.stderr, flush=True)
