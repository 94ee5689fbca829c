"""The topics of a cluster, as they are stored: for programs that are no gateway."""

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.topics.document import TOPICS_PREFIX, Topic, decode_topic, has_topic_form, topic_document
from octavo.metadata import MetadataStore


async def read_topics(store: MetadataStore) -> list[Topic]:
    """All topics, by name, also those that are being made or deleted.

    Raises:
        OctavoError: The metadata store does not answer, or a document is damaged.
    """
    names = [name.removeprefix(TOPICS_PREFIX) async for name in store.list_documents(TOPICS_PREFIX)]
    found = [await _read(store, name) for name in sorted(names)]
    return [topic for topic in found if topic is not None]


async def read_topic(store: MetadataStore, name: str) -> Topic:
    """The topic with this name.

    Raises:
        RefusedError: There is none.
        OctavoError: As :func:`read_topics`.
    """
    topic = await _read(store, name) if has_topic_form(name) else None
    if topic is None:
        raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return topic


async def _read(store: MetadataStore, name: str) -> Topic | None:
    found = await store.read_document(topic_document(name))
    return None if found is None else decode_topic(found.value, name)
