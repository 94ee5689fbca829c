"""The schema of the source. Pure.

A module of its own, because a process that only checks options and schemas need not load NumPy and Arrow.
"""

from collections.abc import Mapping

from octavo.protocol.errors import InvalidArgumentError
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType, TimestampType

COLUMNS: Mapping[str, DataType] = {
    "ledger_id": LongType(),
    "entry_id": LongType(),
    "value": BinaryType(),
    "length": LongType(),
    "last_add_confirmed": LongType(),
}
"""The columns of a row. ``value`` is NULL only for an unreadable entry (``failOnDataLoss=false``), for which only the
ids are known. ``length``: the ledger's payload bytes up to and including this entry. ``last_add_confirmed``: the
writer's LAC when it sealed the entry; NULL before the first."""

LOG_COLUMNS: Mapping[str, DataType] = {"position": LongType(), "timestamp": TimestampType()}
"""Additional columns of a log: the position, and when the leader sealed the entry."""

KEY_COLUMNS: Mapping[str, DataType] = {"key": StringType()}
"""Additional column of a log (``includeKey=true``): the key of the entry; NULL where it has none."""

SOURCE_COLUMNS: Mapping[str, DataType] = {"bookie": StringType(), "fragment": LongType()}
"""Additional columns (``includeSource=true``): the bookie that returned the entry, and the first entry id of its
fragment."""


def source_schema(*, of_log: bool = False, include_source: bool, include_key: bool = False) -> StructType:
    """The schema of the source."""
    columns = {
        **(LOG_COLUMNS if of_log else {}),
        **(KEY_COLUMNS if include_key else {}),
        **COLUMNS,
        **(SOURCE_COLUMNS if include_source else {}),
    }
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_schema(schema: StructType, *, of_log: bool = False) -> tuple[str, ...]:
    """The names of the selected columns: any subset in any order.

    Raises :class:`InvalidArgumentError` for an unknown name or a wrong type.
    """
    known = {**({**LOG_COLUMNS, **KEY_COLUMNS} if of_log else {}), **COLUMNS, **SOURCE_COLUMNS}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            kinds = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise InvalidArgumentError(
                f"schema: no column {field.name} of type {field.dataType.simpleString()}; the columns are {kinds}"
            )
    return tuple(schema.fieldNames())
