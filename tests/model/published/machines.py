"""Unbounded ledgers as they were published: specified machines of bookies and clients (docs/model.md).

"Tweaking the BookKeeper Protocol - Unbounded Ledgers" (Vanlightly, 2021) lets several clients write one ledger in turn.
A *term* takes the place of the fence. Entry ids are shared between terms, so a client that takes over has to remove
what the writer before it left: its recovery ends with a *no-op* entry whose *truncate* flag makes a bookie delete
everything above it, and which must reach every bookie of the last fragment ("guaranteed write quorum"). Octavo does not
work like this: it is the alternative that decision 024 turns down, and nothing here is used outside the model.

The vocabulary is that of the article and of its TLA+ specification, without the text of either. A client is OPEN or
IN_RECOVERY. The LAC is the last entry with a complete prefix on the ack quorum (AQ), the LAFR ("last add fully
replicated") the last one with a complete prefix on the write quorum (WQ). An add stays pending until the LAFR has
passed it, and an ensemble change begins a fragment at LAFR + 1.

What the article leaves open or gets wrong is a field of :class:`Rules`: :data:`PUBLISHED` is as the specification has
it, :data:`MENDED` has every mend. Sets of bookies are bit masks, states are tuples, and functions change nothing.
"""

from dataclasses import dataclass
from typing import NamedTuple

ENSEMBLE_SIZE = WRITE_QUORUM = 3
ACK_QUORUM = 2
NO_OP = "no-op"


@dataclass(frozen=True)
class Rules:
    """The protocol, with what the article says and what would mend it. Canaries change one field."""

    truncates: bool = True
    """Recovery ends with a no-op that truncates. The first version of the article had none."""
    truncates_everywhere: bool = True
    """Recovery writes reach the write quorum before the term opens, not only the ack quorum."""
    recovery_lac_is_frozen: bool = True
    """Recovery writes carry the LAC that the fences have found, not the one that the writes have made."""
    prefix_from_start: bool = False
    """Mend of (a): a recovery counts its confirmations from where it starts, not from the first entry."""
    lafr_from_lafr: bool = False
    """Mend of (b): the LAFR is looked for from LAFR + 1, and stays where it is if there is none; not from LAC + 1."""
    retries: bool = False
    """Mend of (f): a bookie that cannot be replaced is sent again what it has not confirmed."""
    joins: bool = False
    """Mend of (j): a bookie deletes what it holds of a fragment before the metadata name it."""
    truncates_once: bool = False
    """Mend of (l): a bookie remembers in which term it has truncated, and for which change it has joined."""
    joined_has_truncated: bool = False
    """Mend of that mend: a bookie that has joined in a term truncates no more in it."""


PUBLISHED = Rules()
MENDED = Rules(
    prefix_from_start=True,
    lafr_from_lafr=True,
    retries=True,
    joins=True,
    truncates_once=True,
    joined_has_truncated=True,
)


class Fragment(NamedTuple):
    """Entries of one ensemble, from ``first`` to the beginning of the next fragment."""

    first: int
    ensemble: int


class Ledger(NamedTuple):
    """The metadata. Every change is a compare-and-set on the version."""

    is_open: bool
    term: int
    version: int
    fragments: tuple[Fragment, ...]


class Message(NamedTuple):
    """A request of a client to a bookie. The bookie's answer comes in the step in which it takes the request."""

    kind: str
    """``fence``, ``read``, ``add`` or ``join``."""
    client: int
    bookie: int
    term: int
    entry: int = -1
    value: str = ""
    lac: int = -1
    lafr: int = -1
    truncate: bool = False
    version: int = 0
    """Of a join: the version of the metadata that it is to change."""
    connection: int = 0
    """Adds of one connection arrive in the order of their ids."""


class Bookie(NamedTuple):
    """What one bookie knows of the ledger. All of it is durable at once."""

    entries: tuple[tuple[int, str], ...] = ()
    term: int = 0
    lac: int = -1
    lafr: int = -1
    truncated_in: int = 0
    joined_for: tuple[int, int] = (0, 0)
    """Term and version of the last join."""

    def value(self, entry: int) -> str | None:
        """What it holds at an id."""
        return next((value for held, value in self.entries if held == entry), None)


class Taken(NamedTuple):
    """A bookie after a request, and its answer."""

    bookie: Bookie
    answer: str
    """``InvalidTerm``, ``ok``, and for reads a value or ``NoSuchEntry``."""


def taken(rules: Rules, bookie: Bookie, message: Message) -> Taken:
    """A bookie takes a request."""
    if message.term < bookie.term:
        return Taken(bookie, "InvalidTerm")
    bookie = bookie._replace(term=message.term)
    if message.kind == "read":
        return Taken(bookie, bookie.value(message.entry) or "NoSuchEntry")
    if message.kind == "join":
        change = message.term, message.version
        if rules.truncates_once and bookie.joined_for >= change:
            return Taken(bookie, "ok")
        kept = tuple(held for held in bookie.entries if held[0] < message.entry)
        done = message.term if rules.joined_has_truncated else bookie.truncated_in
        return Taken(bookie._replace(entries=kept, joined_for=change, truncated_in=done), "ok")
    if message.kind == "add":
        truncate = message.truncate and not (rules.truncates_once and bookie.truncated_in == message.term)
        kept = tuple(
            held for held in bookie.entries if held[0] < message.entry or (held[0] > message.entry and not truncate)
        )
        bookie = bookie._replace(
            entries=tuple(sorted((*kept, (message.entry, message.value)))),
            lac=max(bookie.lac, message.lac),
            lafr=max(bookie.lafr, message.lafr),
            truncated_in=message.term if truncate else bookie.truncated_in,
        )
    return Taken(bookie, "ok")


class Pending(NamedTuple):
    """An add that the LAFR has not passed."""

    entry: int
    value: str
    truncate: bool = False


class Client(NamedTuple):
    """A client that takes the ledger over once, and then writes. The first client has opened term 1."""

    status: str = "WAITING"
    """``WAITING``, ``FENCING``, ``READING``, ``WRITING`` (the last three are IN_RECOVERY), ``OPEN``, ``WITHDRAWN``."""
    term: int = 0
    version: int = 0
    fragments: tuple[Fragment, ...] = ()
    recovery_ensemble: int = 0
    """The last fragment's ensemble when recovery began; reads go there."""
    answered: int = 0
    """Who has been fenced; afterwards, who has no such entry."""
    lap: int = -1
    """The last add pushed, or read by recovery."""
    lac: int = -1
    lafr: int = -1
    recovery_lac: int = -1
    recovery_lafr: int = -1
    pending: tuple[Pending, ...] = ()
    confirmed: tuple[int, ...] = ()
    """By entry id: who has confirmed the add."""
    timed_out: int = 0
    joining: tuple[int, int, int] = (0, 0, 0)
    """A bookie that is replaced, the one that is asked to join, and whether that one has."""
    values: tuple[str, ...] = ()
    """What it has still to write."""
    pushed: tuple[tuple[int, str], ...] = ()
    """Every add that it has sent in its term. Only the promises look at it."""

    @property
    def ensemble(self) -> int:
        """That of the current fragment."""
        return self.fragments[-1].ensemble

    @property
    def in_recovery(self) -> bool:
        """Whether it is between starting its term and opening it."""
        return self.status in ("FENCING", "READING", "WRITING")


def members(mask: int) -> list[int]:
    """The bookies of a set."""
    return [at for at in range(mask.bit_length()) if mask >> at & 1]


def start_term(index: int, client: Client, ledger: Ledger) -> tuple[Client, list[Message]]:
    """The client has raised the ledger's term, and fences the last fragment."""
    ensemble = ledger.fragments[-1].ensemble
    client = client._replace(
        status="FENCING", term=ledger.term, version=ledger.version, fragments=ledger.fragments,
        recovery_ensemble=ensemble,
    )  # fmt: skip
    return client, [Message("fence", index, bookie, client.term) for bookie in members(ensemble)]


def add_next(rules: Rules, index: int, client: Client) -> tuple[Client, list[Message]]:
    """An OPEN client adds its next value."""
    value, *rest = client.values
    add = Pending(client.lap + 1, value)
    client = client._replace(values=tuple(rest), lap=add.entry)
    return _push(rules, index, client, add)


def _push(rules: Rules, index: int, client: Client, add: Pending) -> tuple[Client, list[Message]]:
    confirmed = client.confirmed + (0,) * (add.entry + 1 - len(client.confirmed))
    pushed = (*client.pushed, (add.entry, add.value))
    client = client._replace(pending=(*client.pending, add), confirmed=confirmed, pushed=pushed)
    return client, [add_message(rules, index, client, add, bookie) for bookie in members(client.ensemble)]


def add_message(rules: Rules, index: int, client: Client, add: Pending, bookie: int) -> Message:
    """An add for one bookie, with what the client says about its progress."""
    lac, lafr = client.lac, client.lafr
    if client.in_recovery:
        lac = client.recovery_lac if rules.recovery_lac_is_frozen else max(client.recovery_lac, client.lac)
        lafr = client.recovery_lafr
    return Message("add", index, bookie, client.term, add.entry, add.value, lac, lafr, add.truncate)


def answered(rules: Rules, index: int, client: Client, request: Message, reply: Taken) -> tuple[Client, list[Message]]:
    """The client after an answer, and what it sends next."""
    if reply.answer == "InvalidTerm":
        return Client("WITHDRAWN", client.term), []
    if request.kind == "fence" and client.status == "FENCING":
        return _on_fenced(rules, index, client, request.bookie, reply.bookie)
    if request.kind == "read" and client.status == "READING" and request.entry == client.lap + 1:
        return _on_read(rules, index, client, request, reply.answer)
    if request.kind == "join" and members(client.joining[1]) == [request.bookie]:
        return client._replace(joining=(*client.joining[:2], 1)), []
    if request.kind == "add" and client.ensemble >> request.bookie & 1 and client.status != "FENCING":
        return _on_confirmed(rules, client, request), []
    return client, []


def _covers(mask: int, cohort: int) -> bool:
    return mask.bit_count() >= cohort - ACK_QUORUM + 1


def _on_fenced(rules: Rules, index: int, client: Client, bookie: int, state: Bookie) -> tuple[Client, list[Message]]:
    floor = client.fragments[-1].first - 1
    client = client._replace(
        answered=client.answered | 1 << bookie,
        recovery_lac=max(client.recovery_lac, state.lac, floor),
        recovery_lafr=max(client.recovery_lafr, state.lafr, floor),
    )
    if not _covers(client.answered, ENSEMBLE_SIZE):
        return client, []
    start = client.recovery_lafr
    if rules.prefix_from_start:
        client = client._replace(lac=start, lafr=start)
    return _read_next(index, client._replace(status="READING", lap=start))


def _read_next(index: int, client: Client) -> tuple[Client, list[Message]]:
    entry = client.lap + 1
    reads = [Message("read", index, bookie, client.term, entry) for bookie in members(client.recovery_ensemble)]
    return client._replace(answered=0), reads


def _on_read(rules: Rules, index: int, client: Client, request: Message, answer: str) -> tuple[Client, list[Message]]:
    if answer != "NoSuchEntry":
        client, writes = _push(rules, index, client, Pending(request.entry, answer))
        client, reads = _read_next(index, client._replace(lap=request.entry))
        return client, writes + reads
    client = client._replace(answered=client.answered | 1 << request.bookie)
    if not _covers(client.answered, WRITE_QUORUM):
        return client, []
    client = client._replace(status="WRITING", answered=0, recovery_ensemble=0)
    if not rules.truncates:
        return client, []
    no_op = Pending(request.entry, NO_OP, truncate=True)
    return _push(rules, index, client._replace(lap=request.entry), no_op)


def _on_confirmed(rules: Rules, client: Client, request: Message) -> Client:
    confirmed = list(client.confirmed)
    confirmed[request.entry] |= 1 << request.bookie
    return counted(rules, client._replace(confirmed=tuple(confirmed)))


def counted(rules: Rules, client: Client) -> Client:
    """LAC and LAFR computed from who has confirmed what."""
    lac = max(client.lac, _prefix(client, client.lac, ACK_QUORUM))
    lafr = max(client.lafr, _prefix(client, client.lafr if rules.lafr_from_lafr else client.lac, WRITE_QUORUM))
    pending = tuple(add for add in client.pending if add.entry > lafr)
    return client._replace(lac=lac, lafr=lafr, pending=pending)


def _prefix(client: Client, before: int, quorum: int) -> int:
    """The last entry after ``before`` up to which all are confirmed by a quorum; ``before`` if there is none."""
    entry = before
    while entry < client.lap and client.confirmed[entry + 1].bit_count() >= quorum:
        entry += 1
    return entry


def may_open(rules: Rules, client: Client) -> bool:
    """Whether recovery is complete."""
    if client.status != "WRITING":
        return False
    last = client.pending[-1].entry if client.pending else -1
    return not client.pending or (not rules.truncates_everywhere and client.lac >= last)


def is_pinned(client: Client, bookie: int) -> bool:
    """Whether a bookie has confirmed an acknowledged entry that the next fragment would begin with or contain."""
    return any(client.confirmed[entry] >> bookie & 1 for entry in range(client.lafr + 1, client.lac + 1))


def ensemble_changed(
    rules: Rules, index: int, client: Client, swap: tuple[int, int], version: int
) -> tuple[Client, list[Message]]:
    """The client has put the second bookie of a swap in the place of the first from LAFR + 1 on, and sends it what is
    pending."""
    old, new = swap
    first, ensemble = client.lafr + 1, client.ensemble & ~(1 << old) | 1 << new
    before = client.fragments[:-1] if client.fragments[-1].first == first else client.fragments
    confirmed = tuple(mask & ~(1 << old) if at >= first else mask for at, mask in enumerate(client.confirmed))
    client = client._replace(
        fragments=(*before, Fragment(first, ensemble)), confirmed=confirmed, version=version,
        timed_out=client.timed_out & ~(1 << old), joining=(0, 0, 0),
    )  # fmt: skip
    return client, [add_message(rules, index, client, add, new) for add in client.pending]
