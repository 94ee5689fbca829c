"""Reading a journal back: the table of all the ways a place can look, and surgery on every byte."""

import base64
import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import PurePath

import google_crc32c
import pytest
from octavo.bookie.journal.format import (
    DATA_START,
    HEADER_BYTES,
    KIND_SEGMENT_END,
    PAGE_BYTES,
    JournalCorruption,
    JournalPosition,
    RecordKind,
    SegmentHeader,
    UnsupportedJournalError,
    decode_header,
    encode_header,
    encode_record,
    record_bytes,
    segment_name,
    segment_number,
)
from octavo.bookie.journal.group_commit import GroupCommit, encode_group
from octavo.bookie.journal.replay import (
    DECISIONS,
    Decision,
    DeliverRecord,
    Follower,
    JournalScan,
    ReadBytes,
    ReportCorruption,
    ScanEnd,
    Sight,
)
from support.golden import FOLDER

SEGMENT_BYTES = 4 * DATA_START
DIRECTORY = PurePath("/journal")


@dataclass
class Replay:
    """What a scan of images gave."""

    bodies: list[bytes] = field(default_factory=list)
    corruption: list[JournalCorruption] = field(default_factory=list)
    end: ScanEnd | None = None

    def corrupt_places(self) -> list[tuple[str, int]]:
        return [(corruption.path.name, corruption.offset) for corruption in self.corruption]


def replay(
    images: dict[int, bytes],
    start: JournalPosition | None = None,
    unreadable: Sequence[tuple[int, int]] = (),
) -> Replay:
    """Run a scan over segment images; reads that touch an ``unreadable`` (segment, page) fail."""
    result = Replay()
    scan = JournalScan(DIRECTORY, {number: len(image) for number, image in images.items()}, start).run()
    answer: bytes | None = None
    while True:
        try:
            effect = scan.send(answer)
        except StopIteration as finished:
            result.end = finished.value
            return result
        answer = None
        if isinstance(effect, ReadBytes):
            pages = range(effect.offset // PAGE_BYTES, (effect.offset + effect.size - 1) // PAGE_BYTES + 1)
            if not any((effect.segment, page) in unreadable for page in pages):
                answer = images[effect.segment][effect.offset : effect.offset + effect.size]
        elif isinstance(effect, DeliverRecord):
            result.bodies.append(effect.record.body)
        else:
            assert isinstance(effect, ReportCorruption)
            result.corruption.append(effect.corruption)


class Writer:
    """Writes segment images group by group, as the journal does."""

    def __init__(self, *, stale: bytes = b"\0") -> None:
        self.images: dict[int, bytearray] = {}
        self._headers: dict[int, SegmentHeader] = {}
        self._stale = stale
        self._incarnation = 0
        self._cut: JournalPosition | None = None
        self.places: dict[bytes, JournalPosition] = {}
        """Body -> where its record starts."""

    def begin(self, cut: JournalPosition | None = None) -> None:
        number = max(self.images, default=0) + 1
        self._incarnation, self._cut = number, cut
        self.add_segment(number)
        self.commit = GroupCommit(JournalPosition(number, DATA_START), segment_bytes=SEGMENT_BYTES)

    def add_segment(self, number: int) -> None:
        header = SegmentHeader(number, 0xA1B2C300 + number, SEGMENT_BYTES, self._incarnation, self._cut)
        body = (self._stale * (SEGMENT_BYTES // len(self._stale) + 1))[: SEGMENT_BYTES - DATA_START]
        self._headers[number] = header
        self.images[number] = bytearray(encode_header(header) + body)

    def reseed(self, number: int, seed: int) -> None:
        """Give an empty segment another seed."""
        self._headers[number] = replace(self._headers[number], seed=seed)
        self.images[number][:DATA_START] = encode_header(self._headers[number])

    def group(self, *bodies: bytes) -> None:
        """Write these records as one group (two, when the segment ends in between)."""
        for body in bodies:
            self.commit.append(RecordKind.ADD, [body], len(body), None)
            at = self.commit.position
            self.places[body] = JournalPosition(at.segment, at.offset - record_bytes(len(body)))
        self.flush()

    def flush(self) -> None:
        while self.commit.waiting:
            group = self.commit.take()
            if group.segment not in self.images:
                self.add_segment(group.segment)
            data = b"".join(encode_group(group, self._headers[group.segment], self.commit.synced_position))
            self.images[group.segment][group.offset : group.offset + len(data)] = data
            self.commit.settle()
            self.commit.check_invariants()

    def damage(self, body: bytes, at: int = 30, mask: int = 0x10) -> None:
        """Flip a bit of a record; ``at`` counts from the record's start."""
        place = self.places[body]
        self.images[place.segment][place.offset + at] ^= mask

    def blank(self, body: bytes) -> None:
        place = self.places[body]
        stop = place.offset + record_bytes(len(body))
        self.images[place.segment][place.offset : stop] = bytes(stop - place.offset)

    def replay(self, start: JournalPosition | None = None, unreadable: Sequence[tuple[int, int]] = ()) -> Replay:
        return replay({number: bytes(image) for number, image in self.images.items()}, start, unreadable)


# --- the table -----------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_every_combination() -> None:
    assert set(DECISIONS) == set(product(Sight, Follower))


def test_the_table_says_corruption_only_with_proof_or_when_no_crash_can_explain_the_sight() -> None:
    for (sight, follower), decision in DECISIONS.items():
        explained_by_a_crash = sight in {Sight.BLANK, Sight.DAMAGED}
        if sight in {Sight.RECORD, Sight.SEGMENT_END}:
            assert decision in {Decision.DELIVER, Decision.NEXT_SEGMENT}
        elif explained_by_a_crash and follower is not Follower.PROVING:
            assert decision in {Decision.END, Decision.TORN}
        else:
            assert decision is Decision.CORRUPT


FOLLOWERS: dict[Follower, list[list[bytes]]] = {
    # The groups that are written from the place on; the first record of the first group is the place.
    Follower.NOTHING: [[b"place"]],
    Follower.UNPROVING: [[b"place", b"same group"]],
    Follower.PROVING: [[b"place"], [b"next group"]],
}


@pytest.mark.parametrize("stale", [b"\0", b"\xa5"], ids=["zeros behind", "stale bytes behind"])
@pytest.mark.parametrize("follower", list(Follower))
@pytest.mark.parametrize(
    "sight", [Sight.RECORD, Sight.SEGMENT_END, Sight.BLANK, Sight.DAMAGED, Sight.UNREADABLE, Sight.CUT_OFF]
)
def test_images_of_every_combination_are_decided_by_the_table(sight: Sight, follower: Follower, stale: bytes) -> None:
    writer = Writer(stale=stale)
    writer.begin()
    filler = b"f" * (DATA_START - 32)  # the place begins a page of its own
    writer.group(filler)
    for group in FOLLOWERS[follower]:
        writer.group(*(body.ljust(PAGE_BYTES - 32, b".") for body in group))
    place = writer.places[b"place".ljust(PAGE_BYTES - 32, b".")]
    assert place.offset % PAGE_BYTES == 0
    unreadable: list[tuple[int, int]] = []
    image = writer.images[1]
    match sight:
        case Sight.BLANK:
            image[place.offset : place.offset + PAGE_BYTES] = bytes(PAGE_BYTES)
        case Sight.DAMAGED:
            image[place.offset + 40] ^= 1
        case Sight.UNREADABLE:
            unreadable.append((1, place.offset // PAGE_BYTES))
        case Sight.CUT_OFF:
            del image[place.offset :]
        case Sight.SEGMENT_END:
            header = decode_header(bytes(image[:DATA_START]), 1)
            assert header is not None
            head, _ = encode_record(
                header, place.offset, KIND_SEGMENT_END, (), body_bytes=0, synced=JournalPosition(1, place.offset)
            )
            image[place.offset : place.offset + len(head)] = head

    result = writer.replay(unreadable=unreadable)

    rest = [body.ljust(PAGE_BYTES - 32, b".") for group in FOLLOWERS[follower] for body in group]
    decision = DECISIONS[sight, follower]
    expected_bodies = [filler]
    if decision is Decision.DELIVER:
        expected_bodies += rest
    elif decision is Decision.CORRUPT and sight is not Sight.CUT_OFF:
        expected_bodies += rest[1:]
    assert result.bodies == expected_bodies
    expected_corruption = [(segment_name(1), place.offset)] if decision is Decision.CORRUPT else []
    assert result.corrupt_places() == expected_corruption
    assert result.end is not None
    if decision in {Decision.END, Decision.TORN}:
        assert result.end == ScanEnd(place, decision is Decision.TORN)


@pytest.mark.parametrize("later_records", [True, False])
@pytest.mark.parametrize("sight", [Sight.HEADER_BAD, Sight.MISSING])
def test_a_segment_that_is_lost_as_a_whole_is_corruption_whatever_follows(sight: Sight, later_records: bool) -> None:
    writer = Writer()
    writer.begin()
    big = [bytes([65 + number]) * (SEGMENT_BYTES // 2) for number in range(3)]  # one to a segment
    for body in big:
        writer.group(body)
    if not later_records:
        writer.images[3][DATA_START:] = bytes(SEGMENT_BYTES - DATA_START)
    if sight is Sight.MISSING:
        del writer.images[2]
    else:
        writer.images[2][0] ^= 1
        writer.images[2][PAGE_BYTES] ^= 1
    result = writer.replay()
    assert result.bodies == [big[0], *([big[2]] if later_records else [])]
    assert [(found.path.name, found.offset, found.what) for found in result.corruption] == [
        (segment_name(2), 0, sight.value)
    ]


# --- stories -------------------------------------------------------------------------------------------------------


def test_a_clean_log_is_delivered_in_order_across_segments() -> None:
    writer = Writer()
    writer.begin()
    bodies = [bytes([number]) * (number * 97) for number in range(1, 60)]
    for start in range(0, len(bodies), 5):
        writer.group(*bodies[start : start + 5])
    assert len(writer.images) > 2
    result = writer.replay()
    assert result.bodies == bodies
    assert result.corruption == []
    assert result.end == ScanEnd(writer.commit.position, torn=False)


def test_replay_from_a_position_gives_what_comes_after_it() -> None:
    writer = Writer()
    writer.begin()
    bodies = [bytes([number]) * 1500 for number in range(1, 60)]
    positions = []
    for body in bodies:
        writer.group(body)
        positions.append(writer.commit.position)
    for index, position in enumerate(positions):
        assert writer.replay(position).bodies == bodies[index + 1 :]


def test_a_missing_first_segment_is_noticed_when_the_start_is_known() -> None:
    result = replay({}, JournalPosition(7, DATA_START))
    assert result.corrupt_places() == [(segment_name(7), 0)]


def test_corruption_of_the_last_record_of_a_segment_is_proven_by_the_next_segment() -> None:
    writer = Writer()
    writer.begin()
    writer.group(b"a" * 14000)
    writer.group(b"b" * 14000)  # does not fit behind c
    writer.group(b"c" * 14000)
    assert writer.places[b"b" * 14000].segment != writer.places[b"a" * 14000].segment or len(writer.images) > 1
    last = max((place, body) for body, place in writer.places.items() if place.segment == 1)[1]
    writer.damage(last)
    result = writer.replay()
    assert result.bodies == [body for body in writer.places if body != last]
    assert result.corrupt_places() == [(segment_name(1), writer.places[last].offset)]


def test_proof_is_looked_for_in_later_segments() -> None:
    """Nothing after the damage in its own segment is valid: the record that ended it is damaged too."""
    writer = Writer()
    writer.begin()
    bodies = [bytes([65 + number]) * 14000 for number in range(3)]  # one to a segment
    for body in bodies:
        writer.group(body)
    place = writer.places[bodies[1]]
    assert place.segment == 2
    writer.images[2][place.offset + 40 :] = bytes(SEGMENT_BYTES - place.offset - 40)
    result = writer.replay()
    assert result.bodies == [bodies[0], bodies[2]]
    assert result.corrupt_places() == [(segment_name(2), place.offset)]


def test_a_blank_place_inside_a_group_is_a_torn_tail_and_never_a_clean_end() -> None:
    writer = Writer()
    writer.begin()
    writer.group(b"kept")
    writer.group(b"first of the torn group", b"lost")
    writer.blank(b"lost")
    result = writer.replay()
    assert result.bodies == [b"kept", b"first of the torn group"]
    assert (result.corruption, result.end) == ([], ScanEnd(writer.places[b"lost"], torn=True))


def test_a_lost_page_before_a_later_group_is_corruption_and_never_a_torn_tail() -> None:
    """Whatever an interrupted write leaves, it leaves in pages of its own group: those of earlier groups are proven."""
    writer = Writer()
    writer.begin()
    groups = [[b"group %d record %d " % (number, at) * 40 for at in range(4)] for number in range(3)]
    for group in groups:
        writer.group(*group)
    pristine = bytes(writer.images[1])
    log_stop = writer.commit.position.offset
    last_group_start = writer.places[groups[-1][0]].offset
    for junk in (bytes(PAGE_BYTES), random.Random(1).randbytes(PAGE_BYTES)):
        for offset in range(DATA_START, log_stop, PAGE_BYTES):
            image = bytearray(pristine)
            image[offset : offset + PAGE_BYTES] = junk
            result = replay({1: bytes(image)})
            if offset >= last_group_start:
                assert result.corruption == [], "an interrupted write of the last group"
                assert result.bodies[:8] == [*groups[0], *groups[1]]
            else:
                assert [found.path.name for found in result.corruption] == [segment_name(1)], offset
                assert result.bodies[-4:] == groups[-1]


def test_pages_of_different_groups_never_meet() -> None:
    """Each page of the disk is written by one group: no write touches a page that holds an acknowledged record."""
    chance = random.Random(2)
    writer = Writer()
    writer.begin()
    owners: dict[tuple[int, int], int] = {}
    for number in range(40):
        before = {segment: bytes(image) for segment, image in writer.images.items()}
        writer.group(*(chance.randbytes(chance.choice([0, 30, 700, 5000])) for _ in range(chance.randrange(1, 4))))
        for segment, image in writer.images.items():
            for page in range(DATA_START // PAGE_BYTES, SEGMENT_BYTES // PAGE_BYTES):
                span = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
                if segment in before and before[segment][span] != image[span]:
                    assert owners.setdefault((segment, page), number) == number


def test_a_journal_of_format_1_is_read_as_before() -> None:
    """Written when groups were adjacent: four segments, two incarnations, a torn tail between them."""
    golden = json.loads((FOLDER / "disk" / "journal-format-1.json").read_text())
    images = {
        number: zlib.decompress(base64.b64decode(text))
        for name, text in golden["segments"].items()
        if (number := segment_number(name)) is not None
    }
    header = decode_header(images[1][:DATA_START], 1)
    assert header is not None
    assert (header.journal_format, header.marks_groups) == (1, False)
    result = replay(images)
    assert [(body[:12].decode("latin-1"), len(body)) for body in result.bodies] == [
        (start, size) for _, start, size in golden["records"]
    ]
    assert result.corruption == []
    for segment, offset in golden["marks"]:
        later = replay(images, JournalPosition(segment, offset))
        assert later.bodies == result.bodies[len(result.bodies) - len(later.bodies) :]
        assert later.corruption == []
    # Damage in the middle is still corruption, and the rest is still found.
    damaged = {number: bytearray(image) for number, image in images.items()}
    damaged[1][DATA_START + 33] ^= 1
    assert replay({number: bytes(image) for number, image in damaged.items()}).bodies == result.bodies[1:]


def test_damage_in_several_places_is_reported_place_by_place() -> None:
    writer = Writer()
    writer.begin()
    bodies = [bytes([number]) * 300 for number in range(1, 14)]
    for body in bodies:
        writer.group(body)
    for body in (bodies[3], bodies[4], bodies[9]):
        writer.damage(body, at=9)  # the length: untrusted, so that the next record has to be searched
    result = writer.replay()
    assert result.bodies == [body for index, body in enumerate(bodies) if index not in {3, 4, 9}]
    assert [(found.offset, found.size) for found in result.corruption] == [
        (writer.places[bodies[3]].offset, 2 * PAGE_BYTES),
        (writer.places[bodies[9]].offset, PAGE_BYTES),
    ]


def test_a_payload_that_holds_a_copied_record_is_no_record() -> None:
    writer = Writer()
    writer.begin()
    writer.group(b"original")
    place = writer.places[b"original"]
    copied = bytes(writer.images[1][place.offset : place.offset + record_bytes(8)])
    writer.group(b"carrier " + copied)
    writer.group(b"last")
    writer.damage(b"carrier " + copied, at=33)
    assert writer.replay().bodies == [b"original", b"last"]


def test_bytes_of_an_earlier_life_of_a_recycled_segment_never_parse() -> None:
    old = Writer()
    old.begin()
    for number in range(40):
        old.group(b"old %d" % number * 50)
    writer = Writer(stale=bytes(old.images[1][DATA_START:]))
    writer.begin()
    writer.reseed(1, 0x77777777)
    writer.group(b"new")
    assert writer.replay().bodies == [b"new"]
    assert writer.replay().end == ScanEnd(writer.commit.position, torn=False)


def test_a_torn_tail_stays_a_torn_tail_after_the_next_life_has_written() -> None:
    writer = Writer()
    writer.begin()
    writer.group(b"kept")
    writer.group(b"torn", b"same group as torn")
    writer.damage(b"torn")
    first = writer.replay()
    assert first.bodies == [b"kept"]
    assert first.end == ScanEnd(writer.places[b"torn"], torn=True)
    writer.begin(cut=first.end.position)
    for number in range(5):
        writer.group(b"new %d" % number)
    second = writer.replay()
    assert second.bodies == [b"kept", *(b"new %d" % number for number in range(5))]
    assert second.corruption == []
    assert second.end == ScanEnd(writer.commit.position, torn=False)
    # Not even if the torn record's page turns up after all.
    writer.damage(b"torn")
    assert writer.replay().bodies == second.bodies


def test_records_of_the_next_life_prove_nothing_about_what_was_replayed_from_the_page_cache() -> None:
    writer = Writer()
    writer.begin()
    writer.group(b"synced")
    writer.group(b"never synced, but read back by the second life")
    end = writer.replay().end
    assert end is not None
    writer.begin(cut=end.position)
    writer.group(b"second life")
    writer.group(b"second life, again")
    writer.blank(b"never synced, but read back by the second life")  # then the power went
    result = writer.replay()
    assert result.bodies == [b"synced", b"second life", b"second life, again"]
    assert result.corruption == []


def test_corruption_found_once_is_found_again_by_the_next_life() -> None:
    writer = Writer()
    writer.begin()
    for body in (b"one", b"two", b"three"):
        writer.group(body)
    writer.damage(b"two")
    first = writer.replay()
    assert first.end is not None
    writer.begin(cut=first.end.position)
    assert writer.replay().corruption == first.corruption != []


def test_an_unreadable_page_behind_the_log_is_reported_and_does_no_harm() -> None:
    writer = Writer()
    writer.begin()
    writer.group(b"one")
    result = writer.replay(unreadable=[(1, SEGMENT_BYTES // PAGE_BYTES - 1)])
    assert result.bodies == [b"one"]
    assert result.corrupt_places() == [(segment_name(1), SEGMENT_BYTES - PAGE_BYTES)]


def test_one_bad_copy_of_a_header_loses_nothing() -> None:
    for copy in (0, PAGE_BYTES):
        writer = Writer()
        writer.begin()
        writer.group(b"one")
        writer.images[1][copy : copy + HEADER_BYTES] = bytes(HEADER_BYTES)
        assert (writer.replay().bodies, writer.replay().corruption) == ([b"one"], [])


def test_a_later_format_is_refused_with_a_remedy() -> None:
    header = bytearray(encode_header(SegmentHeader(1, 5, SEGMENT_BYTES, 1, None))[:HEADER_BYTES])
    header[8:10] = (9).to_bytes(2, "big")
    header[-4:] = google_crc32c.value(bytes(header[:-4])).to_bytes(4, "big")
    with pytest.raises(UnsupportedJournalError, match="start the version that wrote it"):
        replay({1: bytes(header).ljust(SEGMENT_BYTES, b"\0")})


def test_a_prepared_segment_behind_a_torn_tail_does_not_move_the_end() -> None:
    writer = Writer()
    writer.begin()
    writer.group(b"kept")
    writer.group(b"torn")
    writer.damage(b"torn")
    writer.add_segment(2)
    assert writer.replay().end == ScanEnd(writer.places[b"torn"], torn=True)


def test_a_header_under_another_number_is_not_believed() -> None:
    pages = encode_header(SegmentHeader(4, 5, SEGMENT_BYTES, 4, None))
    assert decode_header(pages, 4) is not None
    assert decode_header(pages, 5) is None


# --- surgery -------------------------------------------------------------------------------------------------------


def surgery_log() -> Writer:
    writer = Writer()
    writer.begin()
    writer.group(b"a" * 21)
    writer.group(b"b" * 40, b"c" * 3)
    writer.group(b"d" * 64)
    return writer


def test_any_flipped_byte_spares_all_other_records_and_is_classified_rightly() -> None:
    pristine = surgery_log()
    bodies = list(pristine.places)
    last_group = {b"d" * 64}
    image = bytes(pristine.images[1])
    log_stop = pristine.commit.position.offset
    for offset in [*range(HEADER_BYTES), *range(PAGE_BYTES, PAGE_BYTES + HEADER_BYTES), *range(DATA_START, log_stop)]:
        flipped = bytearray(image)
        flipped[offset] ^= 0xFF
        result = replay({1: bytes(flipped)})
        hit = [
            body
            for body, place in pristine.places.items()
            if place.offset <= offset < place.offset + 32 + len(body)  # padding belongs to no record
        ]
        assert result.bodies == [body for body in bodies if body not in hit], offset
        corrupt = [body for body in hit if body not in last_group]
        assert result.corrupt_places() == [(segment_name(1), pristine.places[body].offset) for body in corrupt], offset


def test_a_log_cut_at_any_length_keeps_every_record_before_the_cut() -> None:
    pristine = surgery_log()
    image = bytes(pristine.images[1])
    for length in [*range(HEADER_BYTES + 8), *range(DATA_START - 8, pristine.commit.position.offset + 8)]:
        result = replay({1: image[:length]})
        whole = [body for body, place in pristine.places.items() if place.offset + 32 + len(body) <= length]
        assert result.bodies == whole, length
        assert len(result.corruption) == 1, length


def test_a_log_zeroed_from_any_offset_on_is_an_ordinary_torn_tail() -> None:
    pristine = surgery_log()
    image = bytes(pristine.images[1])
    for offset in range(DATA_START, pristine.commit.position.offset + 8):
        result = replay({1: image[:offset].ljust(SEGMENT_BYTES, b"\0")})
        whole = [body for body, place in pristine.places.items() if place.offset + 32 + len(body) <= offset]
        # A body may end in zeros of its own accord only if it does; these do not.
        assert result.bodies == whole, offset
        assert result.corruption == [], offset


def test_random_damage_never_raises_and_never_invents_a_record() -> None:
    rng = random.Random(5)
    pristine = Writer()
    pristine.begin()
    bodies = [bytes([number]) * rng.randrange(2000) for number in range(60)]
    for start in range(0, 60, 3):
        pristine.group(*bodies[start : start + 3])
    for _ in range(150):
        images = {number: bytearray(image) for number, image in pristine.images.items()}
        for _ in range(rng.randrange(1, 6)):
            image = images[rng.choice(list(images))]
            at = rng.randrange(len(image))
            length = rng.choice([1, 8, 512, 4096, 20000])
            junk = rng.choice([bytes(length), rng.randbytes(length)])
            image[at : at + length] = junk[: len(image) - at]
        if rng.random() < 0.3:
            del images[rng.choice(list(images))]
        unreadable = [(rng.choice([1, 2, 3]), rng.randrange(8))] if rng.random() < 0.3 else []
        result = replay({number: bytes(image) for number, image in images.items()}, None, unreadable)
        remaining = iter(bodies)
        assert all(body in remaining for body in result.bodies), "delivered records are a subsequence"
