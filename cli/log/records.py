"""``octavo log read --records``: the records in the entries of a partition of a Kafka topic."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import batched
from typing import Final

from octavo.cli.ledger.pieces import write_pieces
from octavo.cli.log.forms import PayloadForm, payload_alone, payload_in_object
from octavo.cli.output import json_text
from octavo.cli.session import CommandError
from octavo.client.log.seam.entries import LogEntry
from octavo.gateway.codes import RefusedError
from octavo.gateway.records.contents import Record, records_of
from octavo.gateway.records.unpacking import MissingCodecError
from octavo.gateway.topics.document import is_partition_log
from octavo.protocol.errors import InvalidArgumentError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_LINES: Final = 1000
"""Made at once: a small batch can hold millions of records."""


def check_partition(name: str) -> None:
    """Raise :class:`InvalidArgumentError` unless a log with this name holds records."""
    if not is_partition_log(name):
        raise InvalidArgumentError(
            f"log {name} is no partition of a Kafka topic, such as kafka/orders/0: --records reads those only"
        )


async def write_records(
    entries: AsyncIterable[LogEntry], name: str, form: PayloadForm | None, *, as_json: bool
) -> None:
    """Write the records in ``entries`` of the log ``name`` to standard output.

    Raises:
        CommandError: An entry is no batch of records, or cannot be unpacked. What comes before it has been written.
    """

    async def pieces() -> AsyncGenerator[tuple[bytes, int]]:
        async for entry in entries:
            for lines in batched(record_lines(entry, name, form, as_json=as_json), _LINES):
                yield b"".join(lines), entry.position + 1

    await write_pieces(pieces())


def record_lines(entry: LogEntry, name: str, form: PayloadForm | None, *, as_json: bool) -> Iterator[bytes]:
    """The records in one entry of the log ``name``, each as a line.

    Raises:
        CommandError: As :func:`write_records`.
    """
    try:
        for record in records_of(entry.payload):
            yield _as_object(record, entry.position, form) if as_json else _as_line(record, form)
    except RefusedError as error:
        raise CommandError(
            f"log {name}: the entry at position {entry.position} is no batch of records: {error.text}"
        ) from error
    except MissingCodecError as error:
        raise CommandError(f"log {name}: position {entry.position}: {error}") from error


def _as_object(record: Record, position: int, form: PayloadForm | None) -> bytes:
    time = _time(record.time_ms)
    facts = {
        "position": position,
        "offset": record.offset,
        "timestamp_ms": record.time_ms,
        "timestamp": None if time is None else time.isoformat(),
    }
    headers = ", ".join(
        f'{{"name": {json_text(name.decode(errors="backslashreplace"))}, "value": {_value_in_object(value, form)}}}'
        for name, value in record.headers
    )
    key, value = _value_in_object(record.key, form), _value_in_object(record.value, form)
    beginning = json_text(facts).removesuffix("}")
    return f'{beginning}, "key": {key}, "value": {value}, "headers": [{headers}]}}\n'.encode()


def _as_line(record: Record, form: PayloadForm | None) -> bytes:
    time = _time(record.time_ms)
    when = str(record.time_ms) if time is None else time.isoformat()
    headers = b",".join(name + b"=" + _value_alone(value, form) for name, value in record.headers)
    columns = (str(record.offset).encode(), when.encode(), _value_alone(record.key, form), headers)
    return b"\t".join((*columns, _value_alone(record.value, form))) + b"\n"


def _value_in_object(value: bytes | None, form: PayloadForm | None) -> str:
    return "null" if value is None else payload_in_object(value, form)


def _value_alone(value: bytes | None, form: PayloadForm | None) -> bytes:
    if value is None:
        return b"null" if form is PayloadForm.JSON else b""
    return payload_alone(value, form)


def _time(time_ms: int) -> datetime | None:
    """None: no calendar has that time."""
    try:
        return _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return None
