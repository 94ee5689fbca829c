"""What every command has: the common options, the one place where errors become exit statuses, and the event loop.

Exit status: 0 success; 1 failure, with one line on standard error; 2 bad usage; 130 and 143 when Ctrl-C or SIGTERM
ended the command; 141 when whoever read its output went away. A traceback is shown only with ``--log-level debug``.
"""

import asyncio
import functools
import inspect
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NoReturn

import typer
from octavo.protocol.errors import EntryTooLargeError, InvalidArgumentError, OctavoError

if TYPE_CHECKING:
    from octavo.client.client import Client

DEFAULT_METADATA_URI = "sqlite:///octavo-data/metadata.db"
"""The embedded store of ``octavo up`` in the working directory."""

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
_SIGNAL_STATUS_BASE = 128

IMPATIENT_SECONDS = 0.5
"""From when on a second signal means what it says. One that comes sooner is the same Ctrl-C once more: a parent such as
``timeout`` passes it on to a process that the terminal has told already."""


class LogLevel(StrEnum):
    """How much is logged, on standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """For people or for machines."""

    CONSOLE = "console"
    JSON = "json"


MetadataOption = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        envvar="OCTAVO_METADATA",
        metavar="URI",
        help="The cluster's metadata store. (default: ./octavo-data/metadata.db, where `octavo up` has it)",
    ),
]
LogLevelOption = Annotated[
    LogLevel | None, typer.Option("--log-level", envvar="OCTAVO_LOG_LEVEL", help="Least level logged.")
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", envvar="OCTAVO_LOG_FORMAT", help="Form of the log.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Results as JSON, for machines.")]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File that holds the ledger's password; one newline at its end is not part of it."
        " (default: the variable OCTAVO_PASSWORD, or none)",
    ),
]


class CommandError(Exception):
    """A command cannot go on. Its text is the one line shown, and the exit status is 1."""


@dataclass(frozen=True, slots=True)
class Session:
    """The common options of one command."""

    metadata: str | None
    """As given; None when not. See :attr:`metadata_uri`."""
    log_level: LogLevel
    log_format: LogFormat
    as_json: bool

    @property
    def metadata_uri(self) -> str:
        """Where the cluster's metadata is."""
        return self.metadata if self.metadata is not None else DEFAULT_METADATA_URI

    async def connect(self, **options: Any) -> "Client":
        """A client of the cluster. An embedded store that is not there is an error that says how to get one."""
        import octavo  # noqa: PLC0415 - `octavo --help` does without

        return await octavo.connect(self.metadata_uri, **options)


def read_password(password_file: Path | None) -> bytes:
    """The password from ``password_file``, else from the environment, else the empty one.

    One newline (``\\n`` or ``\\r\\n``) at the end of the file is dropped, as editors and ``echo`` leave one; every
    other byte counts. Raises :class:`CommandError` when the file cannot be read.
    """
    if password_file is None:
        return os.environb.get(b"OCTAVO_PASSWORD", b"")
    try:
        content = password_file.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read the password file {password_file}: {error.strerror or error}") from error
    if content.endswith(b"\r\n"):
        return content[:-2]
    return content.removesuffix(b"\n")


def command[**P](
    app: typer.Typer, name: str | None = None, *, log_level_default: LogLevel = LogLevel.WARNING, **settings: Any
) -> Callable[[Callable[Concatenate[Session, P], Coroutine[Any, Any, int | None]]], Callable[P, NoReturn]]:
    """Make an async function a command of ``app``.

    Its parameters after the session become options, and the common ones join them. It returns its exit status, or
    None for 0.
    """

    def decorate(function: Callable[Concatenate[Session, P], Coroutine[Any, Any, int | None]]) -> Callable[P, NoReturn]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> NoReturn:
            options: dict[str, Any] = kwargs
            session = Session(
                metadata=options.pop("metadata"),
                log_level=options.pop("log_level") or log_level_default,
                log_format=options.pop("log_format"),
                as_json=options.pop("as_json"),
            )
            raise typer.Exit(run_command(session, lambda: function(session, *args, **kwargs)))

        run.__signature__ = _with_common_options(inspect.signature(function))  # type: ignore[attr-defined]
        del run.__wrapped__  # Typer reads the parameters from the signature above, not from the function beneath
        run.__annotations__ = {p.name: p.annotation for p in inspect.signature(run).parameters.values()}
        return app.command(name, **settings)(run)

    return decorate


def _with_common_options(signature: inspect.Signature) -> inspect.Signature:
    def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)

    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]
    common = [
        option("metadata", MetadataOption, None),
        option("log_level", LogLevelOption, None),
        option("log_format", LogFormatOption, LogFormat.CONSOLE),
        option("as_json", JsonOption, False),
    ]
    return inspect.Signature(own[1:] + common)


# --- running ---------------------------------------------------------------------------------------------------------


def run_command(session: Session, work: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    """Run ``work`` on an event loop of its own and give the exit status; errors are reported here and nowhere else."""
    import uvloop  # noqa: PLC0415 - `octavo --help` does without
    from octavo.bookie.logs import configure_logging  # noqa: PLC0415

    configure_logging(session.log_level.value, session.log_format.value)
    return guarded(
        lambda: asyncio.run(_until_signalled(work), loop_factory=uvloop.new_event_loop),
        show_traceback=session.log_level is LogLevel.DEBUG,
    )


def guarded(work: Callable[[], int], *, show_traceback: bool) -> int:
    """What ``work`` returns; an error becomes one line on standard error and its exit status."""
    try:
        status = work()
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads our output (`| head`): as silent as a C program that SIGPIPE ends.
        _drop_output()
        return _SIGNAL_STATUS_BASE + signal.SIGPIPE
    except KeyboardInterrupt:
        return _SIGNAL_STATUS_BASE + signal.SIGINT
    except Exception as error:
        status = _report(error, show_traceback=show_traceback)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
    return status


def _drop_output() -> None:
    """Let what cannot be written go nowhere: the interpreter's own flush at its end must not fail once more."""
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


def describe(error: Exception) -> str:
    """One line that says what went wrong."""
    match error:
        case CommandError():
            text = str(error)
        case OctavoError():
            text = error.message or type(error).__name__
        case OSError(strerror=str(reason)):
            text = f"{error.filename}: {reason}" if error.filename else reason
        case _:
            text = f"internal error: {type(error).__name__}: {error} (--log-level debug shows where)"
    return " ".join(text.split())


def print_error(text: str) -> None:
    """One line on standard error, marked as ours."""
    print(f"octavo: {text}", file=sys.stderr, flush=True)


async def _until_signalled(work: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    """Run ``work``; SIGINT and SIGTERM cancel it and let it clean up, a later one ends the process at once."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work())
    received: list[signal.Signals] = []
    first_at = 0.0

    def on_signal(number: signal.Signals) -> None:
        nonlocal first_at
        received.append(number)
        if len(received) == 1:
            first_at = loop.time()
            task.cancel()
        elif loop.time() - first_at >= IMPATIENT_SECONDS:
            os._exit(_SIGNAL_STATUS_BASE + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task or EXIT_OK
    except asyncio.CancelledError:
        if not received:
            raise
        # A thread may still wait for standard input or output, which nothing can interrupt: leaving the usual way would
        # wait for it. Whatever had to be tidied up has been.
        sys.stderr.flush()
        os._exit(_SIGNAL_STATUS_BASE + received[0])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def finish[T](clean_up: Awaitable[T]) -> T:
    """Await ``clean_up`` to its end though the task may be cancelled meanwhile; that takes effect afterwards."""
    task = asyncio.ensure_future(clean_up)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved: the cancellation is what counts now
        raise cancelled
    return task.result()
