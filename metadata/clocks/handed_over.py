"""By how much a process may advance the proven time that another process has stored. Pure (rule M5).

Several processes count in turn, and store the count in one document. A process that finds a count of another one cannot
compare the run time of two hosts. But if it has looked before it has lived through all the time since. So there are two
bounds for the step from the count that it finds, both by the run time of its own host:

* The other process stored the count after this one last read the document, where it found an earlier one.
* Since this process counted last no more time has passed than its host says, and the count that it finds has a part of
  that already.
"""


class HandedOver:
    """See the module. Of one document and one process. Times are in milliseconds: proven time, or the run time of this
    process's host.

    Call :meth:`reads` before each read; :meth:`found` with its result if the read brought a count that this process has
    neither stored nor found before; and :meth:`counted` after each step."""

    __slots__ = ("_counted", "_read_at_ms", "_stored_after_ms")

    def __init__(self) -> None:
        self._read_at_ms: int | None = None
        self._stored_after_ms: int | None = None
        self._counted: tuple[int, int] | None = None
        """What this process counted last, and when."""

    def reads(self, now_ms: int) -> int | None:
        """The document is about to be read. Returns when it was read before; None: never."""
        before, self._read_at_ms = self._read_at_ms, now_ms
        return before

    def found(self, read_before_ms: int | None) -> None:
        """Another process's count was read, or the first. ``read_before_ms``: the answer of :meth:`reads`."""
        self._stored_after_ms = read_before_ms

    def at_most_ms(self, found_ms: int, now_ms: int) -> int | None:
        """The longest step from the count that was found, ``found_ms``. None where no bound is known: this process has
        not looked before, or has counted since by its own host's run time."""
        after_ms, counted = self._stored_after_ms, self._counted
        if after_ms is None:
            return None
        bound_ms = now_ms - after_ms
        if counted is not None:
            counted_ms, counted_at_ms = counted
            bound_ms = min(bound_ms, counted_ms + now_ms - counted_at_ms - found_ms)
        return max(bound_ms, 0)

    def counted(self, proven_ms: int, now_ms: int) -> None:
        """This process has counted so far."""
        self._counted, self._stored_after_ms = (proven_ms, now_ms), None
