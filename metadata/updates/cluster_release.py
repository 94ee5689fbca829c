"""Which release's formats the processes of a cluster may write: the document ``cluster/version``.

During an upgrade, bookies of two neighbouring releases run side by side. A new release reads the formats of the
release before it, and goes on writing them until an operator *finalizes* the upgrade. Until then every bookie can go
back to the release before; afterwards that release refuses to start. A cluster without the document has the first
release.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from octavo._version import RELEASES
from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import InvalidArgumentError, MetadataConflictError, MetadataError

DOCUMENT: Final = "cluster/version"

FORMAT: Final = 1


class Release(NamedTuple):
    """A release: versions that differ in the last number only have the same formats."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``0.2`` or from a version such as ``0.2.1``. Raises :class:`InvalidArgumentError`."""
        parts = text.split(".")[:2]
        if len(parts) < 2 or not all(part.isascii() and part.isdecimal() and len(part) <= 4 for part in parts):
            raise InvalidArgumentError(f"{text!r} is not a release such as {RELEASES[-1]}")
        return cls(int(parts[0]), int(parts[1]))


def release_of(version: str) -> Release:
    """The release of a registered bookie. A version that is none counts as older than every release."""
    try:
        return Release.parse(version)
    except InvalidArgumentError:
        return Release(0, 0)


def own_releases() -> list[Release]:
    """The releases that this one knows, in order; the last is its own."""
    return [Release.parse(text) for text in RELEASES]


def start_refusal(known: Sequence[Release], finalized: Release) -> str | None:
    """Why a bookie whose releases are ``known`` must not start in a cluster finalized at ``finalized``; None if it
    may."""
    own = known[-1]
    if finalized > own:
        return (
            f"the cluster has been finalized at release {finalized}, whose formats release {own} does not understand; "
            f"start this bookie with release {finalized} or newer"
        )
    if finalized not in known[-2:]:
        after = known[known.index(finalized) + 1] if finalized in known else known[0]
        return (
            f"the cluster is at release {finalized}, and release {own} reads formats back to {known[-2]} only; upgrade "
            f"to {after} first, and run `octavo cluster finalize {after}`"
        )
    return None


def finalize_refusal(
    known: Sequence[Release], finalized: Release, wanted: Release, bookies: Iterable[tuple[str, Release]]
) -> str | None:
    """Why the cluster cannot be finalized at ``wanted`` now; None if it can. ``bookies``: the registered bookies with
    their releases."""
    if wanted not in known:
        return f"this command is of release {known[-1]} and does not know a release {wanted}"
    if wanted < finalized:
        return f"the cluster has been finalized at release {finalized}; it cannot go back to {wanted}"
    older = [f"{name} ({release})" for name, release in bookies if release < wanted]
    if older:
        return f"these bookies run an older release than {wanted}: {', '.join(older)}; upgrade them first"
    if finalized in known and known.index(wanted) > known.index(finalized) + 1:
        after = known[known.index(finalized) + 1]
        return f"the cluster is at release {finalized}; finalize {after} before {wanted}"
    return None


async def read_release(store: MetadataStore) -> Versioned[Release] | None:
    """The release at which the cluster has been finalized; None if it never was, which means the first release.

    Raises :class:`MetadataError` for a document that cannot be understood, and what the store raises.
    """
    found = await store.read_document(DOCUMENT)
    return None if found is None else Versioned(decode_release(found.value), found.version)


async def finalized_release(store: MetadataStore) -> Release:
    """The release at which the cluster has been finalized."""
    found = await read_release(store)
    return own_releases()[0] if found is None else found.value


async def begin_cluster(store: MetadataStore) -> None:
    """Finalize a cluster that has never had a bookie at our own release: it has nothing older to go back to."""
    if not await store.list_cookies() and await read_release(store) is None:
        try:
            await store.create_document(DOCUMENT, encode_release(own_releases()[-1]))
        except MetadataConflictError:
            return  # another bookie of the new cluster was faster


async def write_release(store: MetadataStore, release: Release, before: Versioned[Release] | None) -> None:
    """Finalize at ``release`` if the document is still as it was. Raises :class:`MetadataConflictError`."""
    await store.put_document(DOCUMENT, encode_release(release), None if before is None else before.version)


def encode_release(release: Release) -> bytes:
    """The stored form (:mod:`octavo.metadata.encoding`)."""
    return encode_object({"release": str(release)}, format_number=FORMAT)


def decode_release(value: bytes) -> Release:
    """From the stored form. Raises :class:`MetadataError`."""
    what = "the cluster's release"
    reader = FieldReader(decode_object(value, what=what, format_max=FORMAT), what)
    try:
        return Release.parse(reader.get("release", str))
    except InvalidArgumentError as error:
        raise MetadataError(f"{what}: {error.message}") from error
