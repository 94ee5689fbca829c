"""The document of the stores of objects."""

import pytest
from octavo.metadata.cluster.object_stores import (
    STORES_MAX,
    ObjectStoreEntry,
    ObjectStores,
    StoreState,
    decode_stores,
    encode_stores,
    make_stores,
)
from octavo.metadata.encoding import encode_object
from octavo.metadata.ledger.archive_word import STORE_ID_MAX
from octavo.protocol.errors import InvalidArgumentError, MetadataError

OLD = ObjectStoreEntry(1, "s3://old/octavo", StoreState.READ_ONLY, b"a")
NEW = ObjectStoreEntry(2, "s3://new/octavo", StoreState.ACTIVE, b"b")


def test_stores_are_found_by_id_and_one_is_active() -> None:
    stores = make_stores([OLD, NEW])
    assert decode_stores(encode_stores(stores)) == stores
    assert (stores.of(1), stores.of(2), stores.of(3)) == (OLD, NEW, None)
    assert (stores.active, stores.next_id) == (NEW, 3)
    assert (ObjectStores().active, ObjectStores().next_id) == (None, 1)


@pytest.mark.parametrize(
    "stores",
    [
        [NEW, OLD],
        [OLD, OLD._replace(url="s3://other")],
        [OLD, NEW._replace(url=OLD.url)],
        [OLD._replace(state=StoreState.ACTIVE), NEW],
        [OLD._replace(store_id=0)],
        [OLD._replace(store_id=STORE_ID_MAX + 1)],
        [OLD._replace(url="")],
        [OLD._replace(url="s" * 1001)],
        [OLD._replace(owner=b"")],
        [OLD._replace(store_id=at + 1, url=f"s3://{at}") for at in range(STORES_MAX + 1)],
    ],
)
def test_stores_that_no_cluster_can_have_are_refused(stores: list[ObjectStoreEntry]) -> None:
    with pytest.raises(InvalidArgumentError):
        make_stores(stores)


@pytest.mark.parametrize(
    "entry",
    [
        {"id": 1, "url": "s3://old", "state": "asleep", "owner": "61"},
        {"id": 1, "url": "s3://old", "state": "active", "owner": "x"},
        {"id": "1", "url": "s3://old", "state": "active", "owner": "61"},
        {"id": 0, "url": "s3://old", "state": "active", "owner": "61"},
        17,
    ],
)
def test_a_damaged_document_is_refused(entry: object) -> None:
    with pytest.raises(MetadataError, match="the stores of objects"):
        decode_stores(encode_object({"stores": [entry]}, format_number=1))
