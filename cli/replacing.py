"""Files that commands write: whole, or not at all."""

import os
import tempfile
from pathlib import Path


def replace_content(path: Path, content: bytes, *, mode: int) -> None:
    """Replace a file in one step. Raises :class:`OSError`.

    The file that is renamed has a name of its own: of two commands that write to one place at once, neither puts into
    place what the other has half written (rule B9).
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    made = Path(name)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
