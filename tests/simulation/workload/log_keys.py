"""Programs that add with keys, and ask where a key is. The history of keys checks what they are told (rule P21).

An answer does not tell which add an entry came from: another one may have had the key. So the history of the leader
counts an add with a key as one whose caller is not told.
"""

from typing import TYPE_CHECKING

from octavo.client.log.log import Log
from octavo.client.log.writer.writer import LogWriter
from octavo.protocol.errors import InternalError, OctavoError
from simulation.judges.history import Violation
from simulation.judges.log_history import Fate, Leader, LogHistory

if TYPE_CHECKING:
    from simulation.world import World


async def add_with_key(world: "World", writer: LogWriter, leader: Leader, filling: bytes, key: str) -> None:
    """Add once under a key that may be known, under way or in doubt."""
    add = leader.adds[leader.add(filling)]
    add.fate = Fate.CANCELLED
    try:
        position = await writer.add(add.payload, key=key)
    except OctavoError as error:
        if isinstance(error, InternalError):
            world.violate(Violation("no defects", f"{leader} add with {key}: {error.message}"))
        world.trace.count(f"log: add with a key failed: {type(error).__name__}")
        return
    world.trace.count("log: adds with keys answered")
    leader.log.keyed.answered(key, position)


async def ask_for_key(world: "World", log: Log, history: LogHistory, key: str) -> None:
    """Ask where the key is, in a program that does not lead."""
    position = await log.position_of(key)
    world.trace.count("log: keys asked for")
    if position is not None:
        history.keyed.answered(key, position)
