"""Options that commands of a running and of a stopped bookie share."""

from pathlib import Path
from typing import Annotated

import typer

JournalDirOption = Annotated[
    Path | None,
    typer.Option(
        "--journal-dir",
        metavar="DIR",
        help="Directory of the journal. The default is the directory `journal` in the data directory.",
    ),
]
EntryDirOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--entry-dir",
        metavar="DIR",
        help="A further directory for entry logs. May be given several times, in the order of the configuration.",
    ),
]
