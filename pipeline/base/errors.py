"""Errors that only the pipeline raises, and how errors of Spark's Python processes are reported."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.protocol.errors import OctavoError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Environment variable with which PySpark reports the error of a Python process without its traceback."""


class DataLossError(OctavoError):
    """A selected entry cannot be read.

    Its ledger has been deleted, or no bookie that should hold the entry returns it. With the option
    ``failOnDataLoss=false`` such an entry becomes a row without a value.
    """


@contextmanager
def brief_errors() -> Iterator[None]:
    """Report an :class:`OctavoError` that leaves the block to the user of Spark as one line.

    Such an error names its cause and the remedy; the traceback of Spark's Python process would hide them. Other errors
    keep their traceback. Use it only in Spark's Python processes.
    """
    before = os.environ.pop(_HIDE_TRACEBACK, None)
    try:
        yield
    except OctavoError:
        before = "1"
        raise
    finally:
        if before is not None:
            os.environ[_HIDE_TRACEBACK] = before
