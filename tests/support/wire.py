"""One example and one hypothesis strategy for every message of the wire."""

from dataclasses import dataclass

from hypothesis import strategies as st
from octavo.protocol import errors, messages
from octavo.protocol.entries import OVERHEAD_BYTES_MAX, Digest, Sealer, derive_secrets
from octavo.protocol.ids import ID_MAX, TERM_MAX, EntryId, LedgerId
from octavo.protocol.limits import E_MAX, ENTRIES_PER_FRAME_MAX, ERROR_MESSAGE_CHARACTERS_MAX, FRAME_BYTES_MAX
from octavo.protocol.messages import AddFlag, Message, Op, ReadFlag, Reply, Request
from octavo.protocol.places import place
from octavo.protocol.pushes import Push, PushFlag

LEDGER = LedgerId(7)
PASSWORD = b"secret"
SECRETS = derive_secrets(PASSWORD, LEDGER)


SEALED_AT_MS = 1_766_000_000_123
"""A moment of December 2025."""


def sealed(digest: Digest, first: int, *payloads: bytes) -> list[bytes]:
    """Entries of LEDGER from ``first`` on, as its writer seals them with all lower ones acknowledged."""
    lac = EntryId(first - 1) if first else None
    return Sealer(LEDGER, digest, SECRETS).seal(
        EntryId(first), payloads, last_add_confirmed=lac, length=10 * first, sealed_at_ms=SEALED_AT_MS
    )


def sealed_lac(digest: Digest, last_add_confirmed: int, length: int) -> bytes:
    """The explicit LAC of LEDGER."""
    return Sealer(LEDGER, digest, SECRETS).seal_explicit_lac(
        EntryId(last_add_confirmed), length=length, sealed_at_ms=SEALED_AT_MS
    )


HELLO = messages.Hello(
    messages.MAGIC,
    1,
    1,
    "octavo 0.1.0",
    "c1",
    "bookie-1",
    "boot-1",
    ("deferred-sync",),
    {"mechanism": b"first message"},
)

EXAMPLES: dict[str, Request | Reply] = {
    "add": messages.Add(7, SECRETS.ledger_key, AddFlag.NONE, 0, sealed(Digest.CRC32C, 4, b"hello", b"world")),
    "add_recovery": messages.Add(7, SECRETS.ledger_key, AddFlag.RECOVERY, 0, sealed(Digest.HMAC_SHA256, 4, b"hello")),
    "add_private": messages.Add(7, SECRETS.ledger_key, AddFlag.PRIVATE, 0, sealed(Digest.CRC32C, 0, b"hello")),
    "add_term": messages.Add(7, SECRETS.ledger_key, AddFlag.NONE, 3, sealed(Digest.CRC32C, place(3, 0), b"hello")),
    "added": messages.Added(),
    "read": messages.Read(7, b"", ReadFlag.NONE, 0, 0, 99, 5, (0, 3, 4), 1000, 524288),
    "read_fence": messages.Read(7, SECRETS.ledger_key, ReadFlag.FENCE, 0, 6, 6, 1, (0,), 1, 0),
    "read_answer": messages.ReadAnswer(99, sealed(Digest.CRC32C, 3, b"x"), ((10, 14), (20, 20)), 42),
    "read_lac": messages.ReadLac(7, b"", ReadFlag.NONE, 0, 5, 30000, 100, 65536),
    "read_lac_fence": messages.ReadLac(7, SECRETS.ledger_key, ReadFlag.FENCE, 0, None, 0, 0, 0),
    "read_lac_fence_term": messages.ReadLac(7, SECRETS.ledger_key, ReadFlag.FENCE, TERM_MAX, None, 0, 0, 0),
    "lac_answer": messages.LacAnswer(
        True, False, False, sealed_lac(Digest.CRC32C, 5, 60), None, sealed(Digest.CRC32C, 5, b"tail")
    ),
    "lac_answer_unknown_ledger": messages.LacAnswer(False, True, True, None, None, []),
    "write_lac": messages.WriteLac(7, SECRETS.ledger_key, 0, sealed_lac(Digest.CRC32C, 5, 60)),
    "lac_written": messages.LacWritten(),
    "force": messages.Force(7, SECRETS.ledger_key, 0, ((0, 9), (12, 12))),
    "forced": messages.Forced(),
    "subscribe": messages.Subscribe(31, 7, SECRETS.ledger_key, 3, place(3, 6), 262144),
    "subscribe_end": messages.Subscribe(31, 7, b"", 0, 6, None),
    "subscribed": messages.Subscribed(),
    "list_entries": messages.ListEntries(7, 0, ID_MAX),
    "entry_list": messages.EntryList(99, ((0, 49), (60, 99))),
    "read_repair": messages.Read(7, b"", ReadFlag.REPAIR, 0, 0, 99, 3, (0, 2), 1000, 524288),
    "missing": messages.Missing(7, 0, ID_MAX, 3, (0, 2)),
    "missing_answer": messages.MissingAnswer(99, ((0, 49), (60, 99)), ((50, 50),)),
    "authenticate": messages.Authenticate("OCTAVO-SCRAM-SHA-256", "writer", bytes(range(32))),
    "authenticate_answer": messages.AuthenticateAnswer(True, ("read", "append"), bytes(range(32))),
    "info": messages.Info(),
    "info_answer": messages.InfoAnswer({"state": "writable", "ledgers": 3, "uptime_seconds": 1.5}),
    "ping": messages.Ping(),
    "pong": messages.Pong(),
}
"""Name -> an example, every message of the op table among them."""


PUSHES = [
    Push(31, PushFlag.NONE, 4, None, sealed(Digest.CRC32C, 5, b"x")),
    Push(40, PushFlag.OVER, 5, sealed_lac(Digest.CRC32C, 5, 60), []),
    Push(41, PushFlag.ENDED, None, None, []),
]
"""What a bookie pushes in one frame."""


@dataclass(frozen=True)
class Refusal:
    """An error frame: what it refuses and why."""

    request_id: int
    op: Op
    error: errors.OctavoError


REFUSALS = {
    "refusal_fenced": Refusal(12, Op.ADD, errors.LedgerFencedError("ledger 7 is fenced", may_have_happened=False)),
    "refusal_term_over": Refusal(12, Op.ADD, errors.TermOverError("ledger 7: term 3 is over", may_have_happened=False)),
    "refusal_storage": Refusal(13, Op.READ, errors.BookieStorageError("ledger 7: damaged")),
    "refusal_connection": Refusal(0, Op.ERROR, errors.ProtocolError("a frame of 0 bytes is outside the limits")),
}

ids = st.integers(0, 20) | st.integers(0, ID_MAX) | st.builds(place, st.integers(0, TERM_MAX), st.integers(0, 5))
keys = st.binary(max_size=messages.KEY_BYTES_MAX)
terms = st.sampled_from([0, 1, TERM_MAX]) | st.integers(0, TERM_MAX)
entry_lists = st.lists(st.binary(max_size=40), max_size=6)
add_flags = st.integers(0, 3).map(AddFlag)
read_flags = st.integers(0, 3).map(ReadFlag)
frame_bytes = st.integers(0, FRAME_BYTES_MAX)
id_ranges = st.tuples(ids, ids).map(sorted)
facts = st.dictionaries(
    st.text(max_size=20),
    st.text(max_size=20) | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.booleans(),
    max_size=8,
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """Runs that ascend and are apart; some touch, some hold one id."""
    bounds = draw(st.lists(ids, max_size=10, unique=True).map(sorted))
    pairs = list(zip(bounds[::2], bounds[1::2], strict=False))
    return tuple((last, last) if draw(st.booleans()) else (first, last) for first, last in pairs)


@st.composite
def reads(draw: st.DrawFn) -> messages.Read:
    """READs that pass every check."""
    first, last = draw(id_ranges)
    modulus = draw(st.integers(1, E_MAX))
    residues = draw(st.sets(st.integers(0, modulus - 1), min_size=1))
    return messages.Read(
        draw(ids), draw(keys), draw(read_flags), draw(terms), first, last, modulus, tuple(sorted(residues)),
        draw(st.integers(1, ENTRIES_PER_FRAME_MAX)), draw(frame_bytes),
    )  # fmt: skip


@st.composite
def missings(draw: st.DrawFn) -> messages.Missing:
    """MISSINGs that pass every check."""
    read = draw(reads())
    return messages.Missing(read.ledger_id, read.first, read.last, read.modulus, read.residues)


sealed_or_none = st.none() | st.binary(max_size=40)
requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(messages.Add, ids, keys, add_flags, terms, entry_lists),
    reads(),
    st.builds(
        messages.ReadLac, ids, keys, read_flags, terms, st.none() | ids, st.integers(0, 60000),
        st.integers(0, ENTRIES_PER_FRAME_MAX), frame_bytes,
    ),
    st.builds(messages.WriteLac, ids, keys, terms, st.binary(max_size=OVERHEAD_BYTES_MAX)),
    st.builds(messages.Force, ids, keys, terms, runs()),
    st.builds(messages.Subscribe, ids, ids, keys, terms, ids, st.none() | ids),
    st.tuples(ids, id_ranges).map(lambda drawn: messages.ListEntries(drawn[0], *drawn[1])),
    missings(),
    st.just(messages.Info()),
    st.just(messages.Ping()),
)  # fmt: skip
replies: st.SearchStrategy[Reply] = st.one_of(
    st.just(messages.Added()),
    st.builds(messages.ReadAnswer, ids, entry_lists, runs(), st.none() | ids),
    st.builds(
        messages.LacAnswer, st.booleans(), st.booleans(), st.booleans(), sealed_or_none, sealed_or_none, entry_lists
    ),
    st.just(messages.LacWritten()),
    st.just(messages.Forced()),
    st.just(messages.Subscribed()),
    st.builds(messages.EntryList, ids, runs()),
    st.builds(messages.MissingAnswer, ids, runs(), runs()),
    st.builds(messages.InfoAnswer, facts),
    st.just(messages.Pong()),
)


def _hello(
    versions: list[int], software: str, name: str, capabilities: list[str], extensions: dict[str, bytes]
) -> messages.Hello:
    lowest, highest = versions
    return messages.Hello(
        messages.MAGIC, lowest, highest, software, name, software, name, tuple(capabilities), extensions
    )


versions = st.integers(1, 2**16)
hellos: st.SearchStrategy[messages.Hello] = st.tuples(
    st.tuples(versions, versions).map(sorted),
    st.text(max_size=64),
    st.text(max_size=64),
    st.lists(st.text(max_size=9)),
    st.dictionaries(st.text(max_size=64), st.binary(max_size=64), max_size=16),
).map(lambda drawn: _hello(*drawn))
request_ids = st.integers(1, messages.REQUEST_ID_MAX)
refusals = st.builds(
    lambda error_class, text, known: error_class(text, may_have_happened=known),
    st.sampled_from(sorted(errors.ERROR_CODES.values(), key=lambda error_class: error_class.__name__)),
    st.text(max_size=ERROR_MESSAGE_CHARACTERS_MAX),
    st.booleans(),
)


def fields_of(message: Message) -> list[object]:
    """The fields of a message as they arrive: tuples have become lists, flags plain integers."""

    def arrived(value: object) -> object:
        if isinstance(value, tuple | list):
            return [arrived(item) for item in value]
        return int(value) if isinstance(value, AddFlag | ReadFlag) else value

    return [arrived(value) for value in message.to_fields()]
