"""Wrong use of the public face: arguments of a wrong type, or another event loop. One error says so, at once."""

import asyncio
import gc
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from octavo.client.awaitable_context import Opening
from octavo.protocol.errors import InvalidArgumentError
from support.clusters.reading import cluster_of
from support.waiting import WAIT_SECONDS

import octavo

WRONG: Mapping[str, tuple[object, ...]] = {
    "int": (None, "5", 1.5, b"5", True, -1, 2**63, 10**40),
    "int | None": ("5", 1.5, b"5", True, -1, 2**63, 10**40),
    "float | None": ("5", b"5", True, -1, float("nan")),
    "str": (None, 5, b"name"),
    "str | None": (5, b"name"),
    "bytes": (None, "text", 5),
    "bool": (None, 0, "no"),
    "Digest": (None, "crc32c", 1),
    "Digest | None": ("crc32c", 1),
    "Payload": (None, "text", 5),
    "Iterable": (None, 5, "text", b"bytes", [None], ["text"]),
    "Sequence[int]": (None, 5, "text", [None], ["0"], [-1], [2**63], []),
    "Mapping[str, bytes] | None": (5, "text", {5: b""}, {"key": "text"}, [1]),
    "Retention | None": (5, "text"),
    "Retention": (None, 5),
    "Literal": (None, 5, "other"),
    "Optional[Literal['recorded', 'required']]": (5, "other", b"recorded"),
    "Optional[Literal['recorded']]": (5, "other", "required", b"recorded"),
    "Layout": (None, 5, "other"),
    "OnTruncated": (None, 5, "other"),
    "datetime": (None, 5, "2026-01-01", datetime(2026, 1, 1)),  # noqa: DTZ001
    "OctavoError": (None, 5, ValueError("x")),
    "Random | None": (5, "text"),
    "KeyWindow | None": (5, "text", (10, 20)),
    "Callable": (5, "text"),
}
"""The annotation of a parameter -> values that are wrong for it."""


def wrong_values(parameter: inspect.Parameter) -> tuple[object, ...]:
    """Values that the parameter's annotation does not allow. A new kind of annotation needs a row in the table."""
    plain = re.sub(r"(\w+\.)+", "", inspect.formatannotation(parameter.annotation))
    for kind in ("Literal", "Iterable", "Callable"):
        if plain.startswith(kind):
            return WRONG[kind]
    return WRONG[plain]


async def settle(called: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """Call it, and wait for what it promises."""
    made = called(**arguments)
    if isinstance(made, Opening):
        thing = await made
        await thing.close()
        return thing
    if inspect.isasyncgen(made):
        async with aclosing(made):
            return await anext(made, None)
    return await made if isinstance(made, Awaitable) else made


def public_methods(kind: type) -> dict[str, inspect.Signature]:
    found = {}
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        found[name] = inspect.signature(member)
    return found


@asynccontextmanager
async def faces() -> AsyncIterator[dict[str, tuple[Any, dict[str, dict[str, object]]]]]:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_ledger() as writer:
            await writer.add_many([b"0", b"1", b"2"])
        ledger_id = writer.id
        async with (
            client.create_ledger() as ledger,
            client.create_ledger(ids="explicit") as explicit,
            client.open_ledger(ledger_id) as reader,
            client.create_log("orders") as log,
            log.lead() as leader,
        ):
            await leader.add_many([b"0", b"1", b"2"])
            cursor = await log.cursor("one")
            one: dict[str, object] = {"first": 0, "last": 1}
            (bookie, *_) = reader.metadata.members
            error = octavo.NoSuchEntryError("no", may_have_happened=False)
            now = datetime.now(UTC)
            yield {
                "Client": (
                    client,
                    {
                        "open_ledger": {"ledger_id": ledger_id},
                        "read_replica": {"bookie_id": bookie, "ledger_id": ledger_id, **one},
                        "delete_ledger": {"ledger_id": ledger_id},
                        "ledger_metadata": {"ledger_id": ledger_id},
                        "create_log": {"name": "other"},
                        "open_log": {"name": "orders"},
                        "delete_log": {"name": "orders"},
                    },
                ),
                "LedgerReader": (
                    reader,
                    {
                        "read": one,
                        "read_unconfirmed": one,
                        "batches": one,
                        "wait_last_add_confirmed": {"at_least": 1},
                    },
                ),
                "LedgerWriter": (
                    ledger,
                    {"add": {"payload": b""}, "add_nowait": {"payload": b""}, "add_many": {"payloads": [b""]}},
                ),
                "ExplicitIdWriter": (
                    explicit,
                    {"add": {"payload": b"", "entry_id": 0}, "add_nowait": {"payload": b"", "entry_id": 0}},
                ),
                "Log": (
                    log,
                    {
                        "read": one,
                        "extents": one,
                        "position_at": {"time": now},
                        "reader_at": {"position": 0},
                        "truncate": {"before": 0},
                        "give_up": {"ledger_id": ledger_id},
                        "set_retention": {"retention": octavo.Retention()},
                        "would_drop": {"retention": octavo.Retention()},
                        "cursor": {"name": "one"},
                        "position_of": {"key": "one"},
                        "outcome": {"error": error},
                        "added": {"error": error},
                    },
                ),
                "LogWriter": (
                    leader,
                    {"add": {"payload": b""}, "add_nowait": {"payload": b""}, "add_many": {"payloads": [b""]}},
                ),
                "Cursor": (cursor, {"advance": {"position": 0}}),
            }


async def complaints(
    called: Callable[..., object], name: str, signature: inspect.Signature, right: Mapping[str, object]
) -> AsyncIterator[str]:
    for parameter in signature.parameters.values():
        if parameter.name == "self" or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        for wrong in wrong_values(parameter):
            shown = f"{name}({parameter.name}={wrong!r})"
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await settle(called, {**right, parameter.name: wrong})
            except InvalidArgumentError as error:
                if error.may_have_happened:
                    yield f"{shown}: may have happened"
            except Exception as error:
                yield f"{shown}: {type(error).__name__}: {error}"
            else:
                if shown not in ALLOWED:
                    yield f"{shown}: accepted"


NOT_FOR_APPLICATIONS = {
    *(
        "segment_acknowledged",
        "segment_failed",
        "drain_segment",
        "begin_segment",
        "check_usable",
        "start",
        "abandon",
        "segment_full",
        "make_way",
        "on_forked",
    )
}

ALLOWED = {
    "Log.entries(last=-1)": "the last position of an empty log",
    "LedgerReader.wait_last_add_confirmed(timeout=-1)": "the time is over",
}


async def test_every_argument_of_a_wrong_type_is_refused_with_one_error() -> None:
    wrong: list[str] = []
    async with faces() as made:
        for kind, (thing, right) in made.items():
            for name, signature in public_methods(type(thing)).items():
                if name in NOT_FOR_APPLICATIONS:
                    continue
                wrong += [
                    line
                    async for line in complaints(getattr(thing, name), f"{kind}.{name}", signature, right.get(name, {}))
                ]
    connecting = inspect.signature(octavo.connect)
    wrong += [line async for line in complaints(octavo.connect, "connect", connecting, {"uri": "memory://none"})]
    assert not wrong, "\n".join(wrong)


HARMLESS = {"Client.metrics", "LedgerWriter.add_nowait", "ExplicitIdWriter.add_nowait", "LogWriter.add_nowait"}
"""Calls that another event loop may make: what they return refuses, or asyncio does when it is awaited."""


async def test_every_call_from_another_event_loop_is_refused_at_once_and_nothing_hangs() -> None:
    async with faces() as made:

        async def refused(kind: str, thing: object, name: str, right: Mapping[str, object]) -> str | None:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await settle(getattr(thing, name), right)
            except InvalidArgumentError as error:
                return None if "another event loop" in error.message else f"{kind}.{name}: {error}"
            except Exception as error:
                return f"{kind}.{name}: {type(error).__name__}: {error}"
            return f"{kind}.{name}: accepted"

        async def use_everything() -> list[str]:
            answers = [
                await refused(kind, thing, name, right.get(name, {}))
                for kind, (thing, right) in made.items()
                for name in public_methods(type(thing))
                if name not in NOT_FOR_APPLICATIONS and f"{kind}.{name}" not in HARMLESS
            ]
            return [answer for answer in answers if answer is not None]

        wrong = await asyncio.to_thread(lambda: asyncio.run(use_everything()))
        assert not wrong, "\n".join(wrong)
        client = made["Client"][0]
        assert not client.closed
        assert await client.ledger_metadata(made["LedgerReader"][0].id)


def test_a_client_that_outlives_its_event_loop_says_so_when_it_is_closed_and_once_it_is_gone() -> None:
    async def make() -> octavo.Client:
        async with cluster_of() as cluster:
            return await octavo.connect(cluster.uri)

    async def leave(client: octavo.Client) -> None:
        async with client:
            pass

    clients = [asyncio.run(make())]
    with pytest.raises(InvalidArgumentError, match="another event loop"):
        asyncio.run(leave(clients[0]))

    def forget() -> None:
        clients.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="Client.* was not closed"):
        forget()
