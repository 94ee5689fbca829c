"""Which bookies may start and when an upgrade may be finalized, as tables; and the document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo._version import __version__
from octavo.metadata import open_metadata_store
from octavo.metadata.updates.cluster_release import (
    Release,
    begin_cluster,
    decode_release,
    encode_release,
    finalize_refusal,
    finalized_release,
    own_releases,
    read_release,
    release_of,
    start_refusal,
    write_release,
)
from octavo.protocol.errors import InvalidArgumentError, MetadataConflictError, MetadataError
from support.metadata.memory_stores import memory_uri
from support.metadata.metadata_clusters import cookie

R1, R2, R3, R4 = (Release(0, minor) for minor in (1, 2, 3, 4))
KNOWN = {R1: [R1], R2: [R1, R2], R3: [R1, R2, R3], R4: [R1, R2, R3, R4]}


def test_this_version_is_of_the_last_release() -> None:
    assert own_releases()[-1] == Release.parse(__version__)
    assert own_releases() == sorted(set(own_releases()))


@pytest.mark.parametrize(
    ("own", "finalized", "refusal"),
    [
        (R1, R1, None),
        (R2, R1, None),
        (R2, R2, None),
        (R3, R2, None),
        (R1, R2, "finalized at release 0.2, whose formats release 0.1 does not understand"),
        (R2, R4, "start this bookie with release 0.4 or newer"),
        (R3, R1, "upgrade to 0.2 first"),
        (R4, R1, "upgrade to 0.2 first"),
        (R4, R2, "upgrade to 0.3 first"),
    ],
)
def test_a_release_starts_in_clusters_of_its_own_and_the_release_before(
    own: Release, finalized: Release, refusal: str | None
) -> None:
    said = start_refusal(KNOWN[own], finalized)
    assert said is None if refusal is None else said is not None and refusal in said


@pytest.mark.parametrize(
    ("own", "finalized", "wanted", "bookies", "refusal"),
    [
        (R2, R1, R2, [R2, R2], None),
        (R2, R1, R2, [], None),
        (R2, R2, R2, [R2], None),
        (R2, R1, R1, [R1], None),
        (R2, R1, R2, [R2, R1], "an older release than 0.2: b1 (0.1)"),
        (R2, R1, R3, [R3], "does not know a release 0.3"),
        (R2, R2, R1, [R2], "cannot go back"),
        (R3, R1, R3, [R3], "finalize 0.2 before 0.3"),
        (R3, R2, R3, [R3], None),
    ],
)
def test_an_upgrade_is_finalized_step_by_step_and_only_once_no_older_bookie_runs(
    own: Release, finalized: Release, wanted: Release, bookies: list[Release], refusal: str | None
) -> None:
    named = [(f"b{number}", release) for number, release in enumerate(bookies)]
    said = finalize_refusal(KNOWN[own], finalized, wanted, named)
    assert said is None if refusal is None else said is not None and refusal in said


@pytest.mark.parametrize("text", ["", "1", "x.y", "0.", ".1", "-1.2", "0.1 ", "1.99999", "\u0660.\u0661"])
def test_what_is_no_release_is_refused_and_counts_as_older_than_every_release(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a release"):
        Release.parse(text)
    assert release_of(text) < R1


@given(st.integers(0, 9999), st.integers(0, 9999))
def test_a_release_is_stored_and_ordered_by_its_numbers(major: int, minor: int) -> None:
    release = Release(major, minor)
    assert decode_release(encode_release(release)) == release == Release.parse(f"{release}.7")
    assert release < Release(major, minor + 1) < Release(major + 1, 0)


@pytest.mark.parametrize("value", [b"", b"{}", encode_release(R1).replace(b"0.1", b"0.2")])
def test_a_damaged_document_is_an_error(value: bytes) -> None:
    with pytest.raises(MetadataError, match="the cluster's release"):
        decode_release(value)


async def test_a_new_cluster_begins_at_our_release_and_one_with_bookies_stays_as_it_is() -> None:
    async with await open_metadata_store(memory_uri("new-release"), create=True) as store:
        await begin_cluster(store)
        assert await finalized_release(store) == own_releases()[-1]
        before = await read_release(store)
        await write_release(store, R4, before)
        await begin_cluster(store)
        assert await finalized_release(store) == R4
        with pytest.raises(MetadataConflictError):
            await write_release(store, R3, before)
    async with await open_metadata_store(memory_uri("old-release"), create=True) as store:
        await store.create_cookie(cookie("b1"))
        await begin_cluster(store)
        assert await read_release(store) is None
        assert await finalized_release(store) == own_releases()[0]
