"""Rules broken on purpose, one at a time: each must be found (PROTOCOL, Canaries).

A canary is a setting and the same setting with one rule broken, in the harness only: a bookie, a pipeline or a
recovery with one method changed. The broken one must break a promise, the other one must be exhausted without; so the
promises, the faults and the bounds of the setting are all shown to be sharp enough for that rule.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from model.bookie import Bookie, BookieState
from model.exchange import Answer, Request
from model.sealing import PAYLOADS, metadata
from model.setting import Placement, Setting
from model.writer import Writer
from octavo.protocol.quorums import Quorums


@dataclass(frozen=True)
class Canary:
    """One broken rule."""

    name: str
    """As PROTOCOL's list of canaries has it."""
    rule: str
    """The promise that must be found broken, as a violation begins."""
    make: Callable[[bool], Setting]
    """The setting; True: with the rule broken."""

    @property
    def healthy(self) -> Setting:
        """The setting with every rule kept."""
        return self.make(False)

    @property
    def broken(self) -> Setting:
        """The setting with the rule broken."""
        return self.make(True)


def writer_alone(name: str, quorums: Quorums, *, entries: int, bookie: Bookie, budget: dict[str, int]) -> Setting:
    """A writer and its ensemble, without spares."""
    bookies = quorums.ensemble_size
    return Setting(
        name,
        quorums,
        bookies,
        lambda: [Placement(metadata(quorums), (BookieState(),) * bookies)],
        lambda placement: [Writer(placement.metadata, entries=entries)],
        PAYLOADS,
        budget=budget,
        bookie=bookie,
    )


# --- bookies ----------------------------------------------------------------------------------------------------------


class ShowsEverything(Bookie):
    """Ordinary reads above the LAC."""

    def readable(self, state: BookieState, last_add_confirmed: int) -> tuple[bytes, ...]:
        return state.held


class AnswersBeforeTheSync(Bookie):
    """Acknowledging before the sync."""

    def must_wait(self, state: BookieState, request: Request, answer: Answer) -> bool:
        return False


class TrustsWhatReplayFinds(Bookie):
    """Unsynced replayed data trusted."""

    def kill(self, state: BookieState) -> BookieState:
        return replace(super().kill(state), unsynced=state.unsynced, trusted=state.unsynced)

    def must_wait(self, state: BookieState, request: Request, answer: Answer) -> bool:
        believed = replace(state, unsynced=state.unsynced - state.trusted)
        return super().must_wait(believed, request, answer)


def _reads_above_the_lac(broken: bool) -> Setting:
    bookie = (ShowsEverything if broken else Bookie)(syncs=False)
    return writer_alone("ordinary reads", Quorums(2, 2, 2), entries=2, bookie=bookie, budget={})


def _before_the_sync(broken: bool) -> Setting:
    bookie = (AnswersBeforeTheSync if broken else Bookie)(syncs=True)
    return writer_alone("syncs", Quorums(2, 2, 1), entries=1, bookie=bookie, budget={"power cuts": 1})


def _trusting_replay(broken: bool) -> Setting:
    bookie = (TrustsWhatReplayFinds if broken else Bookie)(syncs=True)
    return writer_alone("kills", Quorums(2, 2, 1), entries=1, bookie=bookie, budget={"kills": 1})


# --- the list ---------------------------------------------------------------------------------------------------------

CANARIES = (
    Canary("ordinary reads above the LAC", "I3", _reads_above_the_lac),
    Canary("acknowledging before the sync", "I1", _before_the_sync),
    Canary("unsynced replayed data trusted", "I1", _trusting_replay),
)
