"""The write cache: entries that have been accepted and are not yet in an entry log. Pure.

Two halves: adds go to the *active* one; the *flushing* one is being written to the entry log and only read. A
frame is kept as one run over the very buffer that went to the journal. Ids are unique within the cache, or stand for
the same bytes.
"""

from collections.abc import Callable, Sequence

from octavo.bookie.index.runs import Run, RunMap, run_bytes

RUN_COST_BYTES = 400
"""Memory of a run without the bytes of its entries: tuple, range, buffer and list slot, rounded up. Without this charge
a cache of lone adds would have no bound."""


class Generation:
    """Entries of many ledgers, by ledger. ``cost_bytes`` is the memory it is charged for."""

    __slots__ = ("cost_bytes", "entry_bytes", "ledgers")

    def __init__(self) -> None:
        self.ledgers: dict[int, RunMap] = {}
        self.cost_bytes = 0
        self.entry_bytes = 0


class WriteCache:
    """Both halves and their bound."""

    def __init__(self, bytes_max: int, draw_share: Callable[[], float] = lambda: 1.0) -> None:
        """``draw_share``: the share of ``bytes_max``, above 0 and up to 1, at which the next half is due."""
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._draw_share = draw_share
        self._due_bytes = self._draw_due_bytes()
        self.active = Generation()
        self.flushing: Generation | None = None
        self.is_full = False
        """The active half is due to be flushed. Derived; checked for every frame."""

    @property
    def filled_share(self) -> float:
        """How much of the active half is filled, from 0 to a little above 1."""
        return self.active.cost_bytes / self._due_bytes

    def _draw_due_bytes(self) -> float:
        share = self._draw_share()
        assert 0.0 < share <= 1.0
        return self._bytes_max * share

    @property
    def has_room(self) -> bool:
        """More may be accepted: the active half is not full, or can be swapped at once."""
        return self.active.cost_bytes < self._bytes_max or self.flushing is None

    @property
    def cost_bytes(self) -> int:
        """Memory of both halves."""
        return self.active.cost_bytes + (self.flushing.cost_bytes if self.flushing is not None else 0)

    def put(self, ledger_id: int, run: Run, size: int) -> None:
        """Hold a run whose entries have ``size`` bytes together."""
        active = self.active
        run_map = active.ledgers.get(ledger_id)
        if run_map is None:
            run_map = active.ledgers[ledger_id] = RunMap()
        run_map.put(run)
        active.entry_bytes += size
        active.cost_bytes += size + RUN_COST_BYTES
        self.is_full = active.cost_bytes >= self._due_bytes

    def put_each(self, ledger_ids: Sequence[int], runs: Sequence[Run], size: int) -> None:
        """As :meth:`put` for a run of each of these ledgers; ``size``: of all of them together."""
        active = self.active
        run_maps = active.ledgers
        for ledger_id, run in zip(ledger_ids, runs, strict=True):
            run_map = run_maps.get(ledger_id)
            if run_map is None:
                run_map = run_maps[ledger_id] = RunMap()
            run_map.put(run)
        active.entry_bytes += size
        active.cost_bytes += size + len(runs) * RUN_COST_BYTES
        self.is_full = active.cost_bytes >= self._due_bytes

    def swap(self) -> Generation:
        """Begin a flush: the active half becomes the flushing one and an empty one takes its place."""
        assert self.flushing is None, "one flush at a time"
        self.flushing, self.active = self.active, Generation()
        self._due_bytes = self._draw_due_bytes()
        self.is_full = False
        return self.flushing

    def flushed(self) -> None:
        """The flush is over: everything in the flushing half can be read from its log."""
        assert self.flushing is not None, "no flush is running"
        self.flushing = None

    def layers(self, ledger_id: int) -> list[RunMap]:
        """The ledger's run maps, newest first."""
        found = [self.active.ledgers.get(ledger_id)]
        if self.flushing is not None:
            found.append(self.flushing.ledgers.get(ledger_id))
        return [run_map for run_map in found if run_map is not None]

    def check_invariants(self) -> None:
        """Every run map is sound and the bytes are those of the runs, or more where runs were overlaid."""
        assert self.is_full == (self.active.cost_bytes >= self._due_bytes)
        for generation in (self.active, self.flushing or Generation()):
            held = 0
            for run_map in generation.ledgers.values():
                run_map.check_invariants()
                held += sum(map(run_bytes, run_map.runs))
            assert held <= generation.entry_bytes <= generation.cost_bytes
