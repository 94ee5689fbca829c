"""The ids of producers in a restored cluster: those given out since the dump are not given again (rule K6)."""

import asyncio
from pathlib import Path

import pytest
from octavo.cli.main import main
from octavo.gateway.topics.document import Topic, topic_document
from octavo.gateway.topics.producer_ids import DOCUMENT, ProducerIds
from octavo.metadata import open_metadata_store
from octavo.metadata.updates.dump import RESTORED_TERMS_SKIPPED

TOPIC = Topic("orders", "5f" * 16, partitions=1, write_quorum=3, ack_quorum=2)
IDS_SINCE_THE_DUMP = 500_000


async def dumped(uri: str, *, has_topic: bool, has_counter: bool) -> None:
    async with await open_metadata_store(uri, create=True) as store:
        if has_topic:
            await store.create_document(topic_document(TOPIC.name), TOPIC.encode())
        if has_counter:
            await ProducerIds(store).take()


async def next_id(uri: str) -> int | None:
    async with await open_metadata_store(uri) as store:
        return await ProducerIds(store).take() if await store.read_document(DOCUMENT) is not None else None


@pytest.mark.parametrize(("has_topic", "has_counter"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_counter_is_raised_where_there_are_topics_or_ids(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], has_topic: bool, has_counter: bool
) -> None:
    before, after = f"sqlite:///{tmp_path}/before.db", f"sqlite:///{tmp_path}/after.db"
    asyncio.run(dumped(before, has_topic=has_topic, has_counter=has_counter))
    file = str(tmp_path / "dump")
    assert main(["cluster", "dump", file, "--metadata", before]) == 0, capfd.readouterr().err
    assert main(["cluster", "restore", file, "--metadata", after]) == 0, capfd.readouterr().err
    taken = asyncio.run(next_id(after))
    if not has_topic and not has_counter:
        assert taken is None, "a cluster without topics has no counter"
    else:
        assert taken is not None
        assert taken > RESTORED_TERMS_SKIPPED * IDS_SINCE_THE_DUMP
