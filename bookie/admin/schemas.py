"""The JSON schemas of the answers of the administration interface. Pure."""

from collections.abc import Mapping
from typing import Any

type Schema = Mapping[str, Any]


def _object(**properties: Schema) -> Schema:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SECONDS: Schema = {"type": "number", "minimum": 0}
_ANY_OBJECT: Schema = {"type": "object"}

ERROR = _object(error=_TEXT, message=_TEXT, retryable=_FLAG)
HEALTH = _object(healthy=_FLAG, reasons=_list(_TEXT))
READY = _object(ready=_FLAG, reasons=_list(_TEXT))

_DISK = _object(role=_TEXT, path=_TEXT, free_bytes=_COUNT, total_bytes=_COUNT, short_of_space=_FLAG)
BOOKIE = _object(
    bookie_id=_TEXT,
    cluster_id=_TEXT,
    state={"type": "string", "enum": ["starting", "writable", "read-only", "stopping"]},
    read_only=_object(operator=_or_null(_TEXT), disks=_FLAG),
    registered=_FLAG,
    metadata_up=_FLAG,
    compaction_paused_seconds=_SECONDS,
    log_level=_TEXT,
    disks=_list(_DISK),
    facts=_ANY_OBJECT,
    settings=_ANY_OBJECT,
)
CONNECTIONS = _object(
    items=_list(
        _object(
            peer=_TEXT,
            principal=_or_null(_TEXT),
            tls={"type": "boolean"},
            outstanding=_COUNT,
            long_polls=_COUNT,
            unsent_bytes=_COUNT,
        )
    ),
)
CLUSTER = _object(
    cluster_id=_TEXT,
    metadata=_TEXT,
    bookies={"type": "object", "additionalProperties": _COUNT},
)
BOOKIES = _object(
    items=_list(
        _object(
            bookie_id=_TEXT,
            address=_TEXT,
            state=_TEXT,
            version=_or_null(_TEXT),
            rack=_or_null(_TEXT),
            host_id=_or_null(_TEXT),
            free_bytes=_or_null(_COUNT),
        )
    )
)

_SUMMARY: dict[str, Schema] = {
    "ledger_id": _COUNT,
    "kind": {"type": "string", "enum": ["ledger", "stream"]},
    "state": _TEXT,
    "entries": _or_null(_COUNT),
    "last_entry_id": _or_null(_COUNT),
    "first_position": _or_null(_COUNT),
    "last_position": _or_null(_COUNT),
    "length": _or_null(_COUNT),
    "created_at": _TEXT,
    "private": _FLAG,
    "log": _or_null(_TEXT),
    "withheld": _FLAG,
}
LEDGERS = _object(items=_list(_object(**_SUMMARY)), next=_or_null(_COUNT))
LEDGER = _object(
    **_SUMMARY,
    ensemble_size=_COUNT,
    write_quorum=_COUNT,
    ack_quorum=_COUNT,
    digest=_TEXT,
    custom_metadata=_or_null({"type": "object", "additionalProperties": {"anyOf": [_TEXT, _object(base64=_TEXT)]}}),
    fragments=_list(
        _object(first_entry_id=_or_null(_COUNT), first_position=_or_null(_COUNT), term=_COUNT, bookies=_list(_TEXT))
    ),
)

READ_ONLY = _object(read_only=_FLAG, operator=_or_null(_TEXT), disks=_FLAG)
PAUSE = _object(paused_seconds=_SECONDS)
LOG_LEVEL = _object(level=_TEXT, seconds=_SECONDS)
JOB_STARTED = _object(job=_COUNT)
JOB = _object(
    job=_COUNT,
    kind=_TEXT,
    state={"type": "string", "enum": ["running", "done", "failed", "cancelled"]},
    started_at=_SECONDS,
    seconds=_SECONDS,
    result=_or_null(_ANY_OBJECT),
    error=_or_null(_TEXT),
)
JOBS = _object(items=_list(JOB))
STACKS = _object(
    tasks=_list(_object(name=_TEXT, stack=_list(_TEXT))),
    threads=_list(_object(name=_TEXT, stack=_list(_TEXT))),
)
PROFILE = _object(
    seconds=_SECONDS,
    samples=_COUNT,
    stacks=_list(_object(stack=_TEXT, samples=_COUNT)),
)
