"""The holdings of one ledger in a bookie in memory."""

from dataclasses import dataclass, field

from octavo.protocol.entries import Header, header_of


@dataclass
class FakeLedger:
    """What the bookie holds of one ledger. ``unknown`` ids are answered as unknown, whether held or not."""

    key: bytes | None = None
    fenced: bool = False
    fenced_term: int = 0
    """If fenced: the terms up to this one are over."""
    entries: dict[int, bytes] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    unforced: set[int] = field(default_factory=set)
    """Ids of deferred adds that no force has made durable."""
    explicit: bytes | None = None

    def fence(self, term: int) -> None:
        """The terms up to this one are over (rule T7)."""
        self.fenced, self.fenced_term = True, max(term, self.fenced_term)

    def is_over(self, term: int) -> bool:
        """Whether ordinary adds of the term are refused (rule T7)."""
        return self.fenced and term <= self.fenced_term

    @property
    def highest_lac_entry(self) -> bytes | None:
        """The held entry whose header carries the highest LAC."""
        return max(
            self.entries.values(), key=lambda sealed: header_of(sealed).last_add_confirmed_plus_one, default=None
        )

    @property
    def last_add_confirmed(self) -> int | None:
        """The highest LAC held, whether it came with an entry or by itself."""
        headers: list[Header] = [header_of(sealed) for sealed in (self.highest_lac_entry, self.explicit) if sealed]
        highest = max((header.last_add_confirmed_plus_one for header in headers), default=0)
        return highest - 1 if highest else None
