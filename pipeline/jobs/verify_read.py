"""A task of the job ``verify``: reads every replica of a run of entries from the bookies that should hold it, and
compares them.

Several chunks are read concurrently, each from all of its bookies. The chunks bound the memory of the task.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

from octavo.client.client import Client
from octavo.metadata.ledger.term import StoredFragment, Term
from octavo.pipeline.base.bridge import LoopThread
from octavo.pipeline.base.cluster import connected, read_password
from octavo.pipeline.base.options import ClusterOptions
from octavo.pipeline.base.planning import EntryRange, pieces_of
from octavo.pipeline.base.worker_memory import prepare_worker
from octavo.pipeline.jobs.coverage import kept_of
from octavo.pipeline.jobs.replicas import Finding, Problem, Replica, Verify, compare_replicas, ids_held
from octavo.protocol.entries import Digest, Opener, derive_secrets, verifier_matches, verify_batch
from octavo.protocol.errors import NoSuchLedgerError, OctavoError
from octavo.protocol.ids import LedgerId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_PAYLOAD_BYTES_TARGET
from octavo.protocol.quorums import Quorums

CHUNKS_IN_FLIGHT_MAX = 4
"""Largest number of chunks of a task that are read concurrently."""

ATTEMPTS_MAX = 3
"""Failed requests after which a bookie counts as unreachable for the rest of the task."""

RETRY_SECONDS = 0.5
"""Delay before a failed request is repeated."""


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """The ranges that one task verifies, each within one fragment."""

    cluster: ClusterOptions
    ranges: tuple[EntryRange, ...]


@dataclass(slots=True)
class ReplicaReport:
    """The findings about one fragment's entries in one bookie. Of a stream, ids are positions."""

    ledger_id: int
    is_stream: bool
    fragment: int
    """Its first entry id, or first position."""
    bookie: str
    entries: int = 0
    """That it should hold."""
    sealed_bytes: int = 0
    """That it gave."""
    macs_checked: bool = False
    """Whether digests with a password were checked, too, and not only checksums."""
    problems: Counter[Problem] = field(default_factory=Counter)
    findings: list[tuple[int, int, Problem]] = field(default_factory=list)
    """Runs of entries: first, last, problem."""


def verify_in_worker(task: VerifyTask) -> Iterator[ReplicaReport]:
    """A report for each range and each of its bookies; for Spark's worker."""
    prepare_worker()
    with LoopThread("octavo verifying") as loop:
        yield from loop.iterate(partial(_verify, task))


async def _verify(task: VerifyTask) -> AsyncGenerator[ReplicaReport]:
    password = read_password(task.cluster)
    async with connected(task.cluster) as client:
        replicas = _ReplicaReader(client)
        for wanted in task.ranges:
            try:
                for report in await _verify_wanted(replicas, wanted, password):
                    yield report
            except NoSuchLedgerError:
                continue


async def _verify_wanted(replicas: "_ReplicaReader", wanted: EntryRange, password: bytes) -> Sequence[ReplicaReport]:
    """Of what is kept by now of a range that was planned. Raises as :func:`_verify_range`."""
    kept = await kept_of(replicas.client, wanted.ledger_id, wanted.last)
    if kept is None:  # it was truncated meanwhile: nothing of it is missing
        return []
    rest = replace(wanted, first=max(wanted.first, kept.first_kept))
    return await _verify_range(replicas, kept.term, rest, password)


async def _verify_range(
    replicas: "_ReplicaReader", term: Term, wanted: EntryRange, password: bytes
) -> Sequence[ReplicaReport]:
    """Raises :class:`NoSuchLedgerError` when the ledger was deleted meanwhile: then nothing is missing; nor is anything
    of what was truncated meanwhile."""
    fragment = term.fragment_of(wanted.first)
    assert fragment is not None, "the term holds what was planned"
    quorums = term.quorums
    verify, macs_checked = _verifier(term, password)
    reports = [
        ReplicaReport(
            term.ledger_id,
            term.number > 0,
            fragment.first_entry_id + wanted.base,
            bookie_id,
            macs_checked=macs_checked,
        )
        for bookie_id in fragment.bookies
    ]
    findings: list[Finding] = []
    pending: deque[asyncio.Task[dict[int, Replica]]] = deque()
    chunks = deque(_chunks(term, wanted))
    bounds: deque[EntryRange] = deque()
    try:
        while chunks or pending:
            while chunks and len(pending) < CHUNKS_IN_FLIGHT_MAX:
                bounds.append(chunks.popleft())
                pending.append(
                    asyncio.ensure_future(
                        replicas.read(quorums, fragment, bounds[-1], password if term.private else b"")
                    )
                )
            chunk, found = bounds.popleft(), await pending.popleft()
            for position, replica in found.items():
                reports[position].entries += len(list(ids_held(quorums, position, chunk.first, chunk.last)))
                reports[position].sealed_bytes += sum(map(len, replica.sealed))
            findings += compare_replicas(quorums, chunk.first, chunk.last, found, verify)
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    if findings:
        kept = await kept_of(replicas.client, term.ledger_id, wanted.last)
        first_kept = wanted.last + 1 if kept is None else kept.first_kept
        findings = [finding for finding in findings if finding.entry_id >= first_kept]
    for position, report in enumerate(reports):
        own = [finding for finding in findings if finding.position == position]
        report.problems.update(finding.problem for finding in own)
        report.findings.extend(
            (first + wanted.base, last + wanted.base, problem) for first, last, problem in _as_runs(own)
        )
    return reports


def _chunks(term: Term, wanted: EntryRange) -> Iterator[EntryRange]:
    (piece,) = pieces_of(term, wanted.first, wanted.last, term.length)
    entry_bytes = piece.entry_bytes
    size = max(1, min(ENTRIES_PER_FRAME_MAX, int(FRAME_PAYLOAD_BYTES_TARGET / (entry_bytes + 64))))
    for first in range(wanted.first, wanted.last + 1, size):
        yield EntryRange(wanted.ledger_id, first, min(first + size - 1, wanted.last))


def _verifier(term: Term, password: bytes) -> tuple[Verify, bool]:
    """How entries of the ledger are verified: by their MACs, where the password is right, else by their checksums."""
    if term.key.digest is Digest.HMAC_SHA256:
        secrets = derive_secrets(password, term.ledger_id)
        if verifier_matches(term.key.verifier, secrets, term.key.digest, term.key.salt):
            opener = Opener(term.ledger_id, term.key.digest, secrets)
            return lambda batch: [entry.entry_id for entry in opener.open_batch(batch)], True
    ledger_id = LedgerId(term.ledger_id)
    return lambda batch: verify_batch(ledger_id, batch).entry_ids, False


def _as_runs(findings: Sequence[Finding]) -> Iterator[tuple[int, int, Problem]]:
    """Runs of consecutive entries with the same problem (first, last, problem); ``findings`` ascend."""
    keyed = groupby(enumerate(findings), key=lambda item: (item[1].entry_id - item[0], item[1].problem))
    for (_, problem), group in keyed:
        ids = [finding.entry_id for _, finding in group]
        yield ids[0], ids[-1], problem


class _ReplicaReader:
    """Reads replicas, and remembers unreachable bookies."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._unreachable: set[str] = set()

    async def read(
        self, quorums: Quorums, fragment: StoredFragment, chunk: EntryRange, password: bytes
    ) -> dict[int, Replica]:
        """The replica of each bookie of the fragment, by position. ``password``: that of a private ledger."""
        replicas = await asyncio.gather(
            *(
                self._read_one(quorums, position, bookie, chunk, password)
                for position, bookie in enumerate(fragment.bookies)
            )
        )
        return dict(enumerate(replicas))

    async def _read_one(
        self, quorums: Quorums, position: int, bookie_id: str, chunk: EntryRange, password: bytes
    ) -> Replica:
        modulus = quorums.ensemble_size if quorums.striped else 1
        residues = quorums.residues_at(position) if quorums.striped else (0,)
        sealed: list[bytes] = []
        unknown: list[tuple[int, int]] = []
        at, failures = chunk.first, 0
        while at <= chunk.last and bookie_id not in self._unreachable:
            try:
                answer = await self.client.read_replica(
                    bookie_id,
                    chunk.ledger_id,
                    at,
                    chunk.last,
                    modulus=modulus,
                    residues=residues,
                    password=password,
                )
            except OctavoError:
                failures += 1
                if failures == ATTEMPTS_MAX:
                    self._unreachable.add(bookie_id)
                else:
                    await asyncio.sleep(RETRY_SECONDS)
                continue
            sealed += answer.sealed
            unknown += answer.unknown
            at = answer.last_covered + 1
        return Replica(sealed, tuple(unknown), reachable=at > chunk.last)
