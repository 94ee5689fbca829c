"""The document of a log that is a stream, its changes, and its creation, which no crash leaves half done (rule P13)."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from octavo.client.client import Client
from octavo.client.log.documents.chain import NO_RETENTION, LogDocument, Retention, decode_log
from octavo.client.log.documents.effects import WriteDocument
from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.reading import read_stream_log
from octavo.client.log.documents.states import LogState
from octavo.client.log.documents.stream import (
    Abandoned,
    StreamLogDocument,
    Truncating,
    decode_any_log,
)
from octavo.client.log.documents.terms import log_term, stream_term
from octavo.client.log.log import Log
from octavo.client.log.seam.end_moved import EndMovedError
from octavo.client.log.stream.changes import (
    ForgetAbandoned,
    ForgetTruncation,
    MarkActive,
    MarkStreamDeleted,
    NoteTruncation,
    RaiseFirst,
    SetStreamRetention,
    StreamLogChange,
    StreamLogDecision,
)
from octavo.client.log.stream.housekeeping import StreamHousekeeper
from octavo.metadata import MetadataStore
from octavo.metadata.encoding import decode_object, encode_object
from octavo.metadata.ledger.decisions import Refuse, Settled
from octavo.metadata.ledger.model import LOG_KEY
from octavo.metadata.stream.model import StreamState
from octavo.protocol.entries import Digest
from octavo.protocol.errors import (
    LogExistsError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLogError,
    NotEnoughBookiesError,
)
from octavo.protocol.ids import LedgerId
from support.clusters.log_cluster import LogCluster, open_log_cluster
from support.inside import access_of
from support.metadata.log_documents import empty_log
from support.metadata.metadata_clusters import DRIVERS

DOCUMENT = StreamLogDocument(
    name="orders",
    log_id="id-1",
    ledger_id=LedgerId(7),
    created_at_ms=1000,
    retention=Retention(seconds=60, bytes=None, cursors=True),
    first_position=3,
    abandoned=(Abandoned(LedgerId(5), 1),),
)

# --- the stored form --------------------------------------------------------------------------------------------------


def test_the_stored_form_keeps_everything_and_what_a_newer_version_has_added() -> None:
    assert decode_any_log(DOCUMENT.encode(), "orders") == DOCUMENT
    newer = replace(DOCUMENT, unknown={"colour": "red"})
    assert decode_any_log(newer.encode(), "orders").unknown == {"colour": "red"}


def test_the_stored_form_of_a_chain_is_as_it_was() -> None:
    chain = empty_log()
    assert decode_any_log(chain.encode(), "orders") == chain == decode_log(chain.encode(), "orders")


def test_a_version_that_knows_only_chains_refuses_it_clearly() -> None:
    with pytest.raises(MetadataError, match=r"log orders: metadata format 2 is newer than 1.*upgrade Octavo"):
        decode_log(DOCUMENT.encode(), "orders")


def test_a_layout_of_a_newer_version_is_refused_clearly() -> None:
    value = replace(DOCUMENT, unknown={}).encode()
    other = _stored_with(value, layout="ring")
    with pytest.raises(MetadataError, match=r"layout 'ring'.*upgrade"):
        decode_any_log(other, "orders")


def test_a_truncation_under_way_is_kept_and_known() -> None:
    noted = replace(DOCUMENT, truncating=NOTED)
    assert decode_any_log(noted.encode(), "orders") == noted
    done = replace(DOCUMENT, first_position=9)
    decisions: list[tuple[StreamLogChange, StreamLogDecision]] = [
        (RaiseFirst(9, NOTED), WriteDocument(done)),
        (NoteTruncation(NOTED), Settled()),
        (NoteTruncation(ANOTHER), WriteDocument(replace(DOCUMENT, truncating=ANOTHER))),
        (ForgetTruncation(), WriteDocument(DOCUMENT)),
        (ForgetTruncation(NOTED), WriteDocument(DOCUMENT)),
        (ForgetTruncation(ANOTHER), Settled()),
    ]
    for change, decision in decisions:
        assert change.decide(noted) == decision
    refused = RaiseFirst(9, ANOTHER).decide(noted)
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, EndMovedError)


@pytest.mark.parametrize(
    "fields",
    [
        {"truncating": [1]},
        {"truncating": [-1, "a"]},
        {"truncating": [1, 2]},
        {"ledger_id": -1},
        {"first_position": "3"},
        {"retention": [1]},
        {"state": "GONE"},
        {"abandoned": [[1]]},
        {"abandoned": [[1, -1]]},
    ],
)
def test_a_damaged_document_is_an_error_of_the_metadata(fields: dict[str, Any]) -> None:
    with pytest.raises(MetadataError):
        decode_any_log(_stored_with(DOCUMENT.encode(), **fields), "orders")


def _stored_with(value: bytes, **fields: Any) -> bytes:
    return encode_object({**decode_object(value, what="log", format_max=2), **fields}, format_number=2)


def test_a_log_counts_its_leaders_and_not_its_creator() -> None:
    assert [log_term(term) for term in (1, 2, 7)] == [0, 1, 6]
    assert all(log_term(stream_term(term)) == term for term in range(5))


# --- changes ----------------------------------------------------------------------------------------------------------

NOTED, ANOTHER = Truncating(9, "a"), Truncating(9, "b")
MAKING, ACTIVE, DELETED = (replace(DOCUMENT, state=state) for state in LogState)


@pytest.mark.parametrize(
    ("change", "making", "active", "deleted"),
    [
        (MarkActive(), ACTIVE, Settled, Refuse),
        (MarkStreamDeleted(), DELETED, DELETED, Settled),
        (SetStreamRetention(NO_RETENTION), Refuse, replace(ACTIVE, retention=NO_RETENTION), Refuse),
        (SetStreamRetention(DOCUMENT.retention), Refuse, Settled, Refuse),
        (RaiseFirst(4), Refuse, replace(ACTIVE, first_position=4), Refuse),
        (RaiseFirst(3), Refuse, Settled, Refuse),
        (RaiseFirst(3, NOTED), Refuse, Settled, Refuse),
        (NoteTruncation(NOTED), Refuse, replace(ACTIVE, truncating=NOTED), Refuse),
        (ForgetTruncation(), Refuse, Settled, Refuse),
        (ForgetAbandoned([LedgerId(5)], []), Refuse, replace(ACTIVE, abandoned=()), replace(DELETED, abandoned=())),
        (
            ForgetAbandoned([], [LedgerId(5)]),
            Refuse,
            replace(ACTIVE, abandoned=(Abandoned(LedgerId(5), 2),)),
            replace(DELETED, abandoned=(Abandoned(LedgerId(5), 2),)),
        ),
        (ForgetAbandoned([LedgerId(6)], []), Refuse, Settled, Settled),
    ],
)
def test_what_becomes_of_a_change_in_each_state(
    change: StreamLogChange, making: object, active: object, deleted: object
) -> None:
    for current, expected in ((MAKING, making), (ACTIVE, active), (DELETED, deleted)):
        decision = change.decide(current)
        if isinstance(expected, StreamLogDocument):
            assert decision == WriteDocument(expected)
        else:
            assert isinstance(expected, type)
            assert isinstance(decision, expected)
        if isinstance(decision, Refuse):
            assert isinstance(decision.error, NoSuchLogError)


def test_an_abandoned_stream_that_is_never_found_is_forgotten_after_three_looks() -> None:
    current = replace(ACTIVE, abandoned=(Abandoned(LedgerId(5)),))
    for _ in range(3):
        assert current.abandoned
        decision = ForgetAbandoned([], [LedgerId(5)]).decide(current)
        assert isinstance(decision, WriteDocument)
        current = decision.document
    assert not current.abandoned


# --- creation ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def logs(tmp_path: Path) -> Any:
    async with open_log_cluster(DRIVERS["memory"](tmp_path), "stream") as made:
        yield made


async def create(client: Client, *, layout: Any = "stream", private: bool = False) -> Log:
    return await client.create_log(
        "orders", password=b"secret", digest=Digest.HMAC_SHA256, private=private, layout=layout
    )


async def document(store: MetadataStore) -> StreamLogDocument | LogDocument | None:
    found = await store.read_document(list_document("orders"))
    return None if found is None else decode_any_log(found.value, "orders")


async def test_a_new_log_is_a_stream_at_rest_that_names_its_log(logs: LogCluster) -> None:
    client, _ = await logs.interposed_client()
    await create(client, private=True)
    stored = await document(logs.store)
    assert isinstance(stored, StreamLogDocument)
    assert stored.state is LogState.ACTIVE
    stream = (await logs.store.read_stream(stored.ledger_id)).value
    assert (stream.state, stream.term, stream.end_position, stream.private) == (StreamState.AT_REST, 1, -1, True)
    assert stream.custom_metadata[LOG_KEY] == b"orders"
    assert stream.keys[0].digest is Digest.HMAC_SHA256
    assert [name async for name in client.list_logs()] == ["orders"]


@pytest.mark.parametrize("second", ["stream", "chain"])
async def test_a_log_is_created_once_whatever_the_layout(logs: LogCluster, second: str) -> None:
    client, _ = await logs.interposed_client()
    await create(client)
    ledgers = await logs.ledgers()
    with pytest.raises(LogExistsError):
        await create(client, layout=second)
    assert await logs.ledgers() == ledgers


async def test_of_concurrent_creators_one_wins_and_nothing_is_left_of_the_others(logs: LogCluster) -> None:
    clients = [(await logs.interposed_client())[0] for _ in range(8)]
    results = await asyncio.gather(*map(create, clients), return_exceptions=True)
    assert sum(isinstance(one, Log) for one in results) == 1
    assert all(isinstance(one, Log | LogExistsError) for one in results), results
    stored = await document(logs.store)
    assert isinstance(stored, StreamLogDocument)
    assert await logs.ledgers() == {stored.ledger_id}


@pytest.mark.parametrize("answers", ["not made", "made"])
@pytest.mark.parametrize("step", ["create_document", "create_stream", "compare_and_set_document"])
@pytest.mark.parametrize("second", ["stream", "chain"])
async def test_a_creator_that_dies_in_any_step_leaves_a_name_that_can_be_used(
    logs: LogCluster, step: str, answers: str, second: str
) -> None:
    """The store's answer is lost, and the creator does nothing any more: it is as good as dead."""
    dying, store = await logs.interposed_client()
    real = getattr(store.real, step)

    async def lost(*arguments: Any) -> Any:
        if answers == "made":
            await real(*arguments)
        for method in ("read_document", "read_stream", "compare_and_set_document", "delete_document", "delete_ledger"):
            store.make_unavailable(method)
        raise MetadataUnavailableError("no answer")

    store.interpose(step, lost)
    with pytest.raises(MetadataUnavailableError):
        await create(dying)
    other, _ = await logs.interposed_client()
    left = await document(logs.store)
    if left is not None and left.state is LogState.ACTIVE:
        # It was created all the same.
        assert [name async for name in other.list_logs()] == ["orders"]
        await other.open_log("orders", password=b"secret")
        return
    assert [name async for name in other.list_logs()] == []
    with pytest.raises(NoSuchLogError):
        await other.open_log("orders", password=b"secret")
    with pytest.raises(NoSuchLogError):
        await other.delete_log("orders")
    log = await create(other, layout=second)
    await log.retain()
    stored = await document(logs.store)
    used = {stored.ledger_id} if isinstance(stored, StreamLogDocument) else set()
    assert await logs.ledgers() == used
    await other.delete_log("orders")
    assert not await logs.ledgers()
    assert await document(logs.store) is None


async def test_a_slow_creator_that_was_taken_for_dead_leaves_nothing(logs: LogCluster) -> None:
    slow, store = await logs.interposed_client()
    reached, go_on = asyncio.Event(), asyncio.Event()
    real = store.real.create_stream

    async def held(*arguments: Any) -> Any:
        reached.set()
        await go_on.wait()
        return await real(*arguments)

    store.interpose("create_stream", held)
    creating = asyncio.create_task(create(slow))
    await reached.wait()
    other, _ = await logs.interposed_client()
    log = await create(other)
    go_on.set()
    with pytest.raises(LogExistsError):
        await creating
    stored = await document(logs.store)
    assert isinstance(stored, StreamLogDocument)
    assert stored.log_id == log.log_id
    assert await logs.ledgers() == {stored.ledger_id}


async def test_a_stream_that_a_dead_creator_has_made_late_is_deleted_by_the_log(logs: LogCluster) -> None:
    """It was looked for before it existed, and its creator died right after it did."""
    slow, store = await logs.interposed_client()
    reached, go_on = asyncio.Event(), asyncio.Event()
    real = store.real.create_stream

    async def held(*arguments: Any) -> Any:
        reached.set()
        await go_on.wait()
        await real(*arguments)
        for method in ("read_document", "compare_and_set_document", "delete_ledger"):
            store.make_unavailable(method)
        raise MetadataUnavailableError("dead")

    store.interpose("create_stream", held)
    creating = asyncio.create_task(create(slow))
    await reached.wait()
    other, _ = await logs.interposed_client()
    log = await create(other)
    go_on.set()
    with pytest.raises(MetadataUnavailableError):
        await creating
    assert len(await logs.ledgers()) == 2
    keeper = StreamHousekeeper(access_of(other), "orders", log.log_id)
    await keeper.delete_abandoned(await read_stream_log(logs.store, "orders"))
    assert len(await logs.ledgers()) == 1


@pytest.mark.parametrize("step", ["create_document", "create_stream", "compare_and_set_document"])
async def test_a_cancelled_creation_leaves_no_log_or_a_whole_one(logs: LogCluster, step: str) -> None:
    client, store = await logs.interposed_client()
    reached = asyncio.Event()
    real = getattr(store.real, step)

    async def slow(*arguments: Any) -> Any:
        result = await real(*arguments)
        reached.set()
        await asyncio.Event().wait()
        return result

    store.interpose(step, slow)
    creating = asyncio.create_task(create(client))
    await reached.wait()
    store.restore()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    other, _ = await logs.interposed_client()
    stored = await document(logs.store)
    if stored is None:
        assert not await logs.ledgers()
    elif stored.state is LogState.MAKING:
        # Cancelled while the document was made: there is no stream yet, and the name can be used.
        assert not await logs.ledgers()
        await create(other)
    else:
        assert stored.state is LogState.ACTIVE
        await other.open_log("orders", password=b"secret")


async def test_without_bookies_no_log_is_made_and_nothing_is_left(logs: LogCluster) -> None:
    client, _ = await logs.interposed_client()
    with pytest.raises(NotEnoughBookiesError):
        await client.create_log("orders", 9, 9, 9, layout="stream")
    assert await document(logs.store) is None
    assert not await logs.ledgers()


async def test_a_creation_that_fails_forgets_no_stream_that_a_dead_creator_has_made_late(logs: LogCluster) -> None:
    dying, store = await logs.interposed_client()
    reached, go_on = asyncio.Event(), asyncio.Event()
    real = store.real.create_stream

    async def held(*arguments: Any) -> Any:
        reached.set()
        await go_on.wait()
        await real(*arguments)
        for method in ("read_document", "compare_and_set_document", "delete_ledger"):
            store.make_unavailable(method)
        raise MetadataUnavailableError("dead")

    store.interpose("create_stream", held)
    creating = asyncio.create_task(create(dying))
    await reached.wait()
    other, _ = await logs.interposed_client()
    with pytest.raises(NotEnoughBookiesError):
        await other.create_log("orders", 9, 9, 9, layout="stream")
    assert [name async for name in other.list_logs()] == []
    go_on.set()
    with pytest.raises(MetadataUnavailableError):
        await creating
    log = await create(other)
    await log.retain()
    stored = await document(logs.store)
    assert isinstance(stored, StreamLogDocument)
    assert await logs.ledgers() == {stored.ledger_id}


async def test_a_creation_that_fails_leaves_nothing_when_it_finds_what_the_dead_creator_has_made(
    logs: LogCluster,
) -> None:
    dying, store = await logs.interposed_client()
    for method in ("compare_and_set_document", "delete_ledger"):
        store.make_unavailable(method)
    with pytest.raises(MetadataUnavailableError):
        await create(dying)
    assert len(await logs.ledgers()) == 1
    other, _ = await logs.interposed_client()
    with pytest.raises(NotEnoughBookiesError):
        await other.create_log("orders", 9, 9, 9, layout="stream")
    assert await document(logs.store) is None
    assert not await logs.ledgers()


async def test_a_log_that_is_being_deleted_is_finished_and_created_again(logs: LogCluster) -> None:
    client, store = await logs.interposed_client()
    first = await create(client)
    store.make_unavailable("delete_ledger")
    with pytest.raises(MetadataUnavailableError):
        await client.delete_log("orders")
    other, _ = await logs.interposed_client()
    with pytest.raises(NoSuchLogError):
        await other.open_log("orders", password=b"secret")
    second = await create(other)
    assert second.log_id != first.log_id
    assert len(await logs.ledgers()) == 1
