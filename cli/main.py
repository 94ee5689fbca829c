"""The entry point of the ``octavo`` command: signals and standard streams, before other modules are imported."""

import gc
import io
import os
import signal
import sys
from collections.abc import Sequence

from octavo._version import __version__

GARBAGE_THRESHOLD = 100_000
"""Allocations before Python searches for reference cycles. Modules that are loaded make many objects and no garbage: at
Python's own threshold the searches take a tenth of a command's start. No command loads as many objects."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (None: those of the process); the exit status."""
    if arguments is None:
        # Imports take a while, and Python would answer Ctrl-C with a traceback meanwhile. There is nothing to clean up
        # yet; commands install their own handlers.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        open_standard_streams()
        gc.set_threshold(GARBAGE_THRESHOLD)
    if (sys.argv[1:] if arguments is None else [*arguments]) == ["--version"]:
        # What every script asks first takes no command line to be built.
        print(f"octavo {__version__}")
        return 0
    from octavo.cli.commands import run  # noqa: PLC0415

    try:
        return run(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    finally:
        if arguments is None:
            # All memory is given back soon: Python need not search it for cycles before it ends, several times.
            gc.freeze()


def open_standard_streams() -> None:
    """Prepare the standard streams; open a replacement for those that were closed (``<&-``, ``>&-``).

    Otherwise the next files opened would get their numbers and would be read or written as if they were the streams.
    The replacements are opened in the wrong direction, so that using them is an error, as for other programs, instead
    of an empty input or lost output.

    Output is buffered even where ``PYTHONUNBUFFERED`` is set, as it is in many containers: a signal can end a write to
    a pipe in the middle, and without a buffer Python drops what was not written. Commands flush what they print.
    """
    wrong_way = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
    for descriptor, (name, flags, mode) in enumerate(wrong_way):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            encoding, raw = stream.encoding, stream.buffer
            if isinstance(raw, io.RawIOBase):
                stream.detach()
                stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, line_buffering=True)
                setattr(sys, name, stream)
            # A terminal that cannot show a name (LANG=C) gets an escape sequence for it instead of an error.
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
