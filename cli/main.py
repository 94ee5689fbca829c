"""The ``octavo`` command: what must be right before anything else is loaded."""

import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (None: those of the process); the exit status."""
    if arguments is None:
        # Loading takes a while, and Python would answer a Ctrl-C meanwhile with a traceback. Nothing has been begun
        # that would need tidying up; commands that begin something take the signal over.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        open_standard_streams()
    from octavo.cli.commands import run  # noqa: PLC0415

    try:
        return run(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130


def open_standard_streams() -> None:
    """Put something in the place of standard streams that were closed (``<&-``, ``>&-``).

    Their numbers would go to the next files opened, which would then be read or written as if they were the streams.
    What takes their place is open the wrong way round: using it is an error, as it is for other programs, not an empty
    file or output that vanishes.
    """
    wrong_way = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
    for descriptor, (name, flags, mode) in enumerate(wrong_way):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


if __name__ == "__main__":
    sys.exit(main())
