"""The document of the stores in which objects with old entries lie: ``cluster/object-stores``. Pure.

A store has an id, which words in the metadata of streams name (:mod:`octavo.metadata.ledger.archive_word`). Another
bucket is another store with another id; the old one stays readable until no word names it. Credentials are not here:
bookies have them. No command writes this document yet.
"""

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.metadata.ledger.archive_word import STORE_ID_MAX
from octavo.protocol.errors import InvalidArgumentError

DOCUMENT: Final = "cluster/object-stores"

FORMAT: Final = 1
STORES_MAX: Final = 100
URL_CHARACTERS_MAX: Final = 1000


class StoreState(enum.Enum):
    """Whether entries are moved into a store."""

    ACTIVE = "active"
    """Entries are moved into it, and read."""
    READ_ONLY = "read-only"
    """Its objects are read, and none is added."""


class ObjectStoreEntry(NamedTuple):
    """One store."""

    store_id: int
    url: str
    """With the prefix above those of clusters; without credentials."""
    state: StoreState
    owner: bytes
    """What the owner's document in the store holds, as long as this cluster owns it (rule J3)."""


class ObjectStores(NamedTuple):
    """All stores of the cluster. Constructed by :func:`make_stores`, which checks them."""

    stores: tuple[ObjectStoreEntry, ...] = ()
    """Ascending by id."""

    def of(self, store_id: int) -> ObjectStoreEntry | None:
        """The store with this id, if there is one."""
        return next((store for store in self.stores if store.store_id == store_id), None)

    @property
    def active(self) -> ObjectStoreEntry | None:
        """The one into which entries are moved."""
        return next((store for store in self.stores if store.state is StoreState.ACTIVE), None)

    @property
    def next_id(self) -> int:
        """The id of the next store. Ids are not used again while a later one exists."""
        return max((store.store_id for store in self.stores), default=0) + 1


def make_stores(stores: Sequence[ObjectStoreEntry]) -> ObjectStores:
    """Stores that a cluster can have.

    Raises:
        InvalidArgumentError: too many, an id or a URL twice or out of range, two that are active, or one without owner.
    """
    ids = [store.store_id for store in stores]
    urls = [store.url for store in stores]
    if len(stores) > STORES_MAX:
        raise InvalidArgumentError(f"a cluster has at most {STORES_MAX} stores of objects, not {len(stores)}")
    if ids != sorted(set(ids)) or any(not 0 < store_id <= STORE_ID_MAX for store_id in ids):
        raise InvalidArgumentError(f"ids of stores ascend from 1 to {STORE_ID_MAX}, unlike {ids}")
    if len(set(urls)) != len(urls) or any(not 0 < len(url) <= URL_CHARACTERS_MAX for url in urls):
        raise InvalidArgumentError("each store of objects has a URL of its own")
    if [store.state for store in stores].count(StoreState.ACTIVE) > 1:
        raise InvalidArgumentError("entries are moved into one store of objects at a time")
    if any(not store.owner for store in stores):
        raise InvalidArgumentError("a store of objects has an owner")
    return ObjectStores(tuple(stores))


def encode_stores(stores: ObjectStores) -> bytes:
    """The stored form (:mod:`octavo.metadata.encoding`)."""
    entries = [
        {"id": store.store_id, "url": store.url, "state": store.state.value, "owner": store.owner.hex()}
        for store in stores.stores
    ]
    return encode_object({"stores": entries}, format_number=FORMAT)


def decode_stores(value: bytes) -> ObjectStores:
    """From the stored form. Raises :class:`MetadataError`."""
    what = "the stores of objects"
    reader = FieldReader(decode_object(value, what=what, format_max=FORMAT), what)
    entries = reader.get("stores", list)
    try:
        return make_stores([_entry(fields, what) for fields in entries])
    except (InvalidArgumentError, ValueError) as error:
        raise reader.damaged(str(error)) from error


def _entry(fields: object, what: str) -> ObjectStoreEntry:
    reader = FieldReader(fields if isinstance(fields, dict) else {}, what)
    return ObjectStoreEntry(
        reader.get("id", int),
        reader.get("url", str),
        StoreState(reader.get("state", str)),
        bytes.fromhex(reader.get("owner", str)),
    )
