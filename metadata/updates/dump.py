"""A dump of a cluster's metadata: ledgers and streams, cookies of bookies, and documents, in one file. Pure.

The file is a line of JSON for each record, between a line about the cluster and a line about the end. Every line but
the last counts towards the checksum in the last one, so that a file that was cut or changed is noticed before anything
is restored from it. Registrations and locks are not dumped: they end with the processes that hold them.

Documents are read before ledgers and ledger ids last. So every ledger that a document names is in the dump unless it
was deleted meanwhile, and every ledger in the dump has an id below ``ledger_ids_stop``.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import google_crc32c
from octavo.metadata.cluster.registration import Cookie, decode_cookie, encode_cookie
from octavo.metadata.encoding import encode_bytes
from octavo.metadata.stream.any_metadata import EitherMetadata, decode_either, encode_either
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import ID_MAX, BookieId, LedgerId

FORMAT: Final = 1

_extend: Callable[[int, bytes], int] = google_crc32c.extend

RESTORED_IDS_SKIPPED: Final = 2**32
"""Ledger ids that a restored cluster leaves out: those that may have been allocated after the dump. Bookies may hold
entries under these ids, so none may be given out again. A cluster that creates a thousand ledgers a second uses them up
in seven weeks."""

RESTORED_IDS_SKIPPED_PER_SECOND: Final = 2**20
"""More ids that it leaves out for each second since the dump. The dump may have been restored before, and that cluster
has given out the ids that follow those which it left out."""

RESTORED_TERMS_SKIPPED: Final = 2**16
"""Terms of a log or a stream that a restore leaves out: leaders of the time after the dump may have had them. An add in
doubt then never takes the entry of a later leader for its own (rule P6), and no two leaders of a stream write at one
place (rule T1)."""

RESTORED_TERMS_SKIPPED_MORE_MAX: Final = 2**26
"""For each second since the dump one term more, for the same reason as with ids, up to this number: two years. A log
has a new term a minute at most, but for the moments in which clients take it over from each other. A stream has four
times as many terms, and a clock that is far ahead must not use them up."""


class ClusterFacts(NamedTuple):
    """The first line of a dump."""

    cluster_id: str
    dumped_at: datetime
    version: str
    """Software version that made the dump."""


class Document(NamedTuple):
    """A named document."""

    name: str
    value: bytes


type DumpRecord = EitherMetadata | Cookie | Document


class DumpEnd(NamedTuple):
    """The last line of a dump."""

    ledger_ids_stop: LedgerId
    records: int


class DumpWriter:
    """Encodes a dump line by line, in this order: :meth:`begin`, any number of :meth:`record`, :meth:`end`."""

    def __init__(self) -> None:
        self._checksum = 0
        self._records = 0

    def begin(self, facts: ClusterFacts) -> bytes:
        """The first line."""
        return self._line(
            {
                "octavo_dump": FORMAT,
                "cluster_id": facts.cluster_id,
                "dumped_at": facts.dumped_at.astimezone(UTC).isoformat(),
                "version": facts.version,
            }
        )

    def record(self, record: DumpRecord) -> bytes:
        """The line of a record."""
        self._records += 1
        match record:
            case Cookie():
                return self._line({"cookie": record.bookie_id, "value": encode_cookie(record).decode("ascii")})
            case Document():
                return self._line({"document": record.name, "base64": encode_bytes(record.value)})
            case _:
                return self._line({"ledger": record.ledger_id, "value": encode_either(record).decode("ascii")})

    def end(self, ledger_ids_stop: LedgerId) -> bytes:
        """The last line."""
        checksum = f"{self._checksum:08x}"
        fields = {"ledger_ids_stop": ledger_ids_stop, "records": self._records, "crc32c": checksum}
        return _encode({"end": fields})

    def _line(self, fields: dict[str, Any]) -> bytes:
        line = _encode(fields)
        self._checksum = _extend(self._checksum, line)
        return line


def read_dump(lines: Iterable[bytes], what: str) -> Iterator[ClusterFacts | DumpRecord | DumpEnd]:
    """The parts of a dump in their order: its facts, its records, its end. ``what`` names the file in errors.

    Raises :class:`MetadataError` when the dump is not complete, was changed, or is of a newer version. An error may
    come after records, so restore nothing before the end.
    """
    checksum = 0
    records = 0
    lines = iter(lines)
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise TypeError("not an object")  # noqa: TRY301 - reported as every other damage
            if number == 1:
                yield _facts(fields, what)
            elif "end" in fields:
                end = fields["end"]
                if end["crc32c"] != f"{checksum:08x}" or end["records"] != records:
                    raise MetadataError(f"{what} is damaged: its checksum does not match")
                if next(lines, None) is not None:
                    raise MetadataError(f"{what} is damaged: there is more after its end")
                stop = end["ledger_ids_stop"]
                if type(stop) is not int or not 0 <= stop <= ID_MAX:
                    raise ValueError("ledger_ids_stop is not a ledger id")  # noqa: TRY301 - as above
                yield DumpEnd(LedgerId(stop), records)
                return
            else:
                records += 1
                yield _record(fields)
        except (ValueError, KeyError, TypeError, RecursionError, InvalidArgumentError) as error:
            raise MetadataError(f"{what} is not a dump of a cluster, or is damaged (line {number}: {error})") from error
        checksum = _extend(checksum, line)
    raise MetadataError(f"{what} is not complete: it has no end. Make the dump again")


def first_restored_id(end: DumpEnd, age: timedelta) -> LedgerId:
    """The lowest ledger id that a restored cluster may allocate. ``age``: of the dump, when it is restored. Raises
    :class:`InvalidArgumentError`."""
    first = end.ledger_ids_stop + RESTORED_IDS_SKIPPED + RESTORED_IDS_SKIPPED_PER_SECOND * _seconds(age)
    if first > ID_MAX:
        raise InvalidArgumentError(f"ledger ids are exhausted: there are none from {first} on")
    return LedgerId(first)


def restored_terms_skipped(age: timedelta) -> int:
    """How many terms of each log and stream a restore leaves out. ``age``: of the dump, when it is restored."""
    return RESTORED_TERMS_SKIPPED + min(_seconds(age), RESTORED_TERMS_SKIPPED_MORE_MAX)


def _seconds(age: timedelta) -> int:
    # A clock that is behind that of the dump gives no age.
    return max(int(age.total_seconds()), 0)


def _facts(fields: dict[str, Any], what: str) -> ClusterFacts:
    if type(fields["octavo_dump"]) is not int or fields["octavo_dump"] > FORMAT:
        raise MetadataError(f"{what}: dumps of format {fields['octavo_dump']} need a newer version of Octavo")
    cluster_id, version = fields["cluster_id"], fields["version"]
    if type(cluster_id) is not str or not cluster_id or type(version) is not str:
        raise ValueError("no cluster id")
    return ClusterFacts(cluster_id, datetime.fromisoformat(fields["dumped_at"]), version)


def _record(fields: dict[str, Any]) -> DumpRecord:
    if "ledger" in fields:
        return decode_either(LedgerId(fields["ledger"]), fields["value"].encode("ascii"))
    if "cookie" in fields:
        return decode_cookie(BookieId(fields["cookie"]), fields["value"].encode("ascii"))
    name = fields["document"]
    if type(name) is not str:
        raise ValueError("a document without a name")
    return Document(name, base64.b64decode(fields["base64"], validate=True))


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"
