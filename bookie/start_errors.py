"""Why a bookie cannot start, and what the operator can do: foreign errors become :class:`BookieStartError`, where
another attempt may succeed, or :class:`DataWrongError`, where the operator must repair something first."""

import errno
from pathlib import Path

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.filesystem import is_disk_full
from octavo.bookie.disk.shortage import describe_shortage
from octavo.bookie.identity.errors import BookieStartError, DataWrongError
from octavo.bookie.index.format import IndexDamagedError, IndexUnreadableError
from octavo.bookie.storage.replay import JournalUnreadableError
from octavo.protocol.errors import OctavoError


def storage_error(error: OSError | OctavoError, config: BookieConfig) -> BookieStartError:
    """The error for a storage that cannot be opened."""
    if isinstance(error, OSError):
        return disk_error(error, config.data_dir)
    directories = _directories_of(config)
    rebuild = f"run `octavo bookie rebuild-index {directories}`"
    match error:
        case IndexUnreadableError():
            return BookieStartError(f"{error.message}; if the disk keeps failing, {rebuild}")
        case IndexDamagedError():
            return DataWrongError(f"{error.message}; {rebuild}")
        case JournalUnreadableError():
            reset = f"let it come back in doubt with `octavo bookie reset-identity {directories}`"
            return BookieStartError(f"{error.message}; if the disk keeps failing, {reset}")
        case _:
            return DataWrongError(error.message)


def _directories_of(config: BookieConfig) -> str:
    """All directories of the bookie as the offline tools take them: a tool that is told of some only refuses to work
    (rule B8)."""
    journal = config.journal_directory
    options = [] if journal == config.data_dir / "journal" else [f"--journal-dir {journal}"]
    return " ".join([str(config.data_dir), *options, *(f"--entry-dir {path}" for path in config.entry_dirs)])


def disk_error(error: OSError, path: Path) -> BookieStartError:
    """The error for a file or directory that cannot be read or written; ``path`` is named if the error names none."""
    where = error.filename or path
    if is_disk_full(error):
        shortage = describe_shortage(error, Path(where))
        return BookieStartError(f"{where}: {shortage}: a bookie that starts must write before it can collect garbage")
    return BookieStartError(f"{where}: {error.strerror or error}")


def listen_error(error: OSError, config: BookieConfig) -> BookieStartError:
    """The error for a port on which the bookie cannot listen."""
    if error.errno == errno.EADDRINUSE:
        return BookieStartError(f"port {config.port} of {config.host} is in use; choose another with --port")
    return BookieStartError(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}")
