"""Words of fragments: which change may write them, what later changes keep, and who refuses to read them (rule J4)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from octavo.metadata.encoding import decode_object, encode_object
from octavo.metadata.ledger.archive_word import (
    STORE_ID_MAX,
    WORD_BYTES,
    WORDS_MAX,
    ArchiveWord,
    words_from,
    words_problem,
    words_text,
)
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.ledger.formats import ARCHIVED_STREAM_FORMAT, STREAM_FORMAT
from octavo.metadata.store.documents import DOCUMENT_BYTES_MAX
from octavo.metadata.stream.any_metadata import decode_either
from octavo.metadata.stream.archived import ArchiveTail, FragmentWords, TakeBackTail, archived_page, next_to_archive
from octavo.metadata.stream.changes import ReplacePages
from octavo.metadata.stream.encoding import decode_stream, encode_stream
from octavo.metadata.stream.glance import glance_at_stream
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.pages import (
    ARCHIVED_FORMAT,
    FORMAT,
    PAGE_BYTES_MAX,
    PAGE_FRAGMENTS_MAX,
    Page,
    decode_page,
    make_page,
    plan_paging,
    repaired_page,
)
from octavo.protocol.errors import InvalidArgumentError, MetadataConflictError, MetadataError
from octavo.protocol.ids import ID_MAX, BookieId, EntryId, LedgerId
from octavo.protocol.places import place
from support.metadata.paged_streams import many_fragments, paged_stream, resting
from support.metadata.stream_metadata import open_stream, stream_fragment

TOKEN, SHA256 = bytes(range(16)), bytes(range(32))
WHOLE = open_stream(*many_fragments(10))
ROOT, PAGES = paged_stream(20, 4, 6)
"""Pages of the fragments 0 to 3 and 4 to 9; the tail has 10 to 19."""


def word(first: int, last: int, *, token: bytes = TOKEN) -> ArchiveWord:
    return ArchiveWord(1, token, first, last, 1000, SHA256)


def words_of(part: StreamMetadata, start: int, stop: int) -> tuple[FragmentWords, ...]:
    """Words for some fragments of a part, as a mover makes them."""
    made = []
    for fragment in part.fragments[start:stop]:
        last = part.last_id_of(fragment)
        assert last is not None
        first = max(fragment.first_entry_id, part.start_place)
        made.append(FragmentWords(fragment.first_entry_id, last, (word(first, last),)))
    return tuple(made)


def written(decision: object) -> StreamMetadata:
    assert isinstance(decision, Write), decision
    assert isinstance(decision.metadata, StreamMetadata), decision
    return decision.metadata


def archived(stream: StreamMetadata, start: int, stop: int) -> StreamMetadata:
    return written(ArchiveTail(words_of(stream, start, stop)).decide(stream))


def refusal(decision: object) -> str:
    assert isinstance(decision, Refuse), decision
    assert isinstance(decision.error, MetadataConflictError)
    return str(decision.error)


# --- the word -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, WORDS_MAX])
def test_words_are_read_as_they_were_written(count: int) -> None:
    words = tuple(word(10 * at, 10 * at + 9) for at in range(count))
    assert words_from(words_text(words)) == words
    assert len(words_text(words)) == (count * WORD_BYTES + 2) // 3 * 4


def test_the_largest_numbers_fit() -> None:
    words = (ArchiveWord(STORE_ID_MAX, TOKEN, 0, ID_MAX, 2**40 - 1, SHA256),)
    assert words_from(words_text(words)) == words


@pytest.mark.parametrize(
    "words",
    [
        [word(0, 1)._replace(store_id=0)],
        [word(0, 1)._replace(store_id=STORE_ID_MAX + 1)],
        [word(0, 1)._replace(token=bytes(15))],
        [word(0, 1)._replace(sha256=bytes(31))],
        [word(1, 0)],
        [word(-1, 0)],
        [word(0, ID_MAX + 1)],
        [word(0, 1)._replace(object_bytes=0)],
        [word(0, 1)._replace(object_bytes=2**40)],
        [word(0, 1), word(3, 4)],
        [word(0, 1), word(1, 4)],
        [word(at, at) for at in range(WORDS_MAX + 1)],
    ],
)
def test_words_that_no_fragment_can_have_are_refused(words: Sequence[ArchiveWord]) -> None:
    assert words_problem(words) is not None
    with pytest.raises(InvalidArgumentError):
        replace(
            WHOLE,
            fragments=(replace(WHOLE.fragments[0], archive=tuple(words)), *WHOLE.fragments[1:]),
            archived_before=WHOLE.fragments[1].first_entry_id,
        )


@pytest.mark.parametrize("text", ["", "AAAA", "%", words_text([word(0, 1)])[:-4], words_text([word(1, 0)])])
def test_a_text_that_is_no_words_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"word|range|base64"):
        words_from(text)


# --- the archived front ---------------------------------------------------------------------------------------------


def test_words_are_written_to_the_front_in_order() -> None:
    once = archived(WHOLE, 0, 3)
    assert [bool(fragment.archive) for fragment in once.fragments] == [True] * 3 + [False] * 7
    assert once.archived_before == WHOLE.fragments[3].first_entry_id
    twice = archived(once, 3, 4)
    assert twice.archived_before == WHOLE.fragments[4].first_entry_id
    assert [fragment.bookies for fragment in twice.fragments] == [fragment.bookies for fragment in WHOLE.fragments]


def test_a_change_that_was_made_already_is_settled() -> None:
    change = ArchiveTail(words_of(WHOLE, 0, 3))
    once = written(change.decide(WHOLE))
    assert change.decide(once) == Settled()
    assert change.decide(archived(once, 3, 5)) == Settled()
    assert change.decide(once.truncated(4)) == Settled()


def test_the_second_of_two_movers_is_refused() -> None:
    once = archived(WHOLE, 0, 3)
    others = [replace(one, words=(one.words[0]._replace(token=bytes(16)),)) for one in words_of(WHOLE, 0, 3)]
    assert "does not follow its archived front" in refusal(ArchiveTail(tuple(others)).decide(once))


@pytest.mark.parametrize(("start", "stop"), [(1, 2), (4, 6), (2, 3)])
def test_words_that_leave_a_hole_or_repeat_are_refused(start: int, stop: int) -> None:
    once = archived(WHOLE, 0, 3)
    assert "does not follow" in refusal(ArchiveTail(words_of(WHOLE, start, stop)).decide(WHOLE))
    changed = [replace(one, words=(word(0, one.last_entry_id),)) for one in words_of(WHOLE, start, stop)]
    assert "does not follow" in refusal(ArchiveTail(tuple(changed)).decide(once))


@pytest.mark.parametrize(
    "words",
    [
        (),
        (word(place(1, 1), place(1, 2)),),
        (word(place(1, 0), place(1, 1)),),
        (word(place(1, 0), place(1, 0)), word(place(1, 1), place(1, 1))),
    ],
)
def test_words_that_do_not_hold_the_whole_fragment_are_refused(words: tuple[ArchiveWord, ...]) -> None:
    given = replace(words_of(WHOLE, 0, 1)[0], words=words)
    assert "do not hold the whole fragment" in refusal(ArchiveTail((given,)).decide(WHOLE))


def test_an_object_may_hold_several_fragments_and_a_fragment_several_objects() -> None:
    first, second = words_of(WHOLE, 0, 2)
    shared = (word(first.first_entry_id, second.last_entry_id),)
    change = ArchiveTail((replace(first, words=shared), replace(second, words=shared)))
    assert {one.archive for one in written(change.decide(WHOLE)).fragments[:2]} == {shared}
    parts = (word(place(1, 0), place(1, 1)), word(place(1, 2), place(1, 2), token=bytes(16)))
    assert written(ArchiveTail((replace(first, words=parts),)).decide(WHOLE)).fragments[0].archive == parts


def test_the_last_fragment_that_holds_an_entry_stays() -> None:
    """A takeover reads its last entry, and must not depend on the store."""
    ended = resting(WHOLE)
    assert archived(ended, 0, 9).archived_before == WHOLE.fragments[9].first_entry_id
    assert "is not archived" in refusal(ArchiveTail(words_of(ended, 0, 10)).decide(ended))
    assert "is not archived" in refusal(ArchiveTail(words_of(WHOLE, 0, 9)).decide(WHOLE)), "the last one may be empty"
    empty = replace(ended, last_entry_id=EntryId(ended.last_fragment.first_entry_id - 1), length=270)
    assert "is not archived" in refusal(ArchiveTail(words_of(empty, 0, 9)).decide(empty))
    assert archived(empty, 0, 8).archived_before == WHOLE.fragments[8].first_entry_id
    assert archived(WHOLE, 0, 8).archived_before == WHOLE.fragments[8].first_entry_id


def test_a_fragment_that_is_not_the_one_that_was_moved_is_refused() -> None:
    wrong = replace(words_of(WHOLE, 0, 1)[0], last_entry_id=place(1, 5), words=(word(place(1, 0), place(1, 5)),))
    assert "not the one that was moved" in refusal(ArchiveTail((wrong,)).decide(WHOLE))
    gone = words_of(WHOLE, 0, 2)
    assert "truncated or paged out" in refusal(ArchiveTail(gone).decide(WHOLE.truncated(4)))


def test_a_truncated_beginning_needs_no_object() -> None:
    cut = WHOLE.truncated(4)
    assert cut.start_place == place(1, 4)
    after = archived(cut, 0, 1)
    assert after.fragments[0].archive[0].first == place(1, 4)
    assert after.archived_before == WHOLE.fragments[2].first_entry_id


def test_after_truncation_of_all_that_was_archived_the_front_begins_at_the_start() -> None:
    cut = archived(WHOLE, 0, 2).truncated(10)
    assert not any(fragment.archive for fragment in cut.fragments)
    again = archived(cut, 0, 1)
    assert again.archived_before == WHOLE.fragments[4].first_entry_id


def test_words_are_taken_back_from_the_end_of_the_front() -> None:
    once = archived(WHOLE, 0, 2)
    twice = archived(once, 2, 4)
    change = TakeBackTail(words_of(WHOLE, 2, 4))
    after = written(change.decide(twice))
    assert [bool(fragment.archive) for fragment in after.fragments[:5]] == [True, True, False, False, False]
    assert after.archived_before == once.archived_before
    assert change.decide(after) == Settled()
    assert archived(after, 2, 3).archived_before == WHOLE.fragments[3].first_entry_id
    assert "words of later fragments follow" in refusal(TakeBackTail(words_of(WHOLE, 0, 2)).decide(twice))
    none = written(TakeBackTail(words_of(WHOLE, 0, 2)).decide(once))
    assert not any(fragment.archive for fragment in none.fragments)
    assert archived(none, 0, 1).archived_before == WHOLE.fragments[1].first_entry_id


def test_words_of_another_object_are_not_taken_back() -> None:
    once = archived(WHOLE, 0, 2)
    others = [replace(one, words=(one.words[0]._replace(token=bytes(16)),)) for one in words_of(WHOLE, 0, 2)]
    assert TakeBackTail(tuple(others)).decide(once) == Settled()


def test_words_in_a_page_are_not_taken_back_as_those_of_the_tail() -> None:
    assert "have been paged out" in refusal(TakeBackTail(words_of(part_of(ROOT, 0, PAGES[0]), 0, 2)).decide(ROOT))


def test_takeovers_repairs_and_debts_keep_words() -> None:
    once = archived(resting(WHOLE), 0, 3)
    words = [fragment.archive for fragment in once.fragments]
    opened = once.with_next_term("other", stream_fragment(1, 0, 0, opened_at_ms=10**6))
    assert [fragment.archive for fragment in opened.fragments] == [*words, ()]
    assert opened.archived_before == once.archived_before
    repaired = once.with_member(once.fragments[1].first_entry_id, 0, BookieId("b9"))
    assert repaired.fragments[1].bookies[0] == "b9"
    assert [fragment.archive for fragment in repaired.fragments] == words


def test_a_fragment_behind_the_front_has_no_words() -> None:
    once = archived(WHOLE, 0, 2)
    for before in (None, WHOLE.fragments[1].first_entry_id):
        with pytest.raises(InvalidArgumentError, match="behind the archived front"):
            replace(once, archived_before=before)


# --- pages ----------------------------------------------------------------------------------------------------------


def part_of(stream: StreamMetadata, at: int, page: Page) -> StreamMetadata:
    return decode_page(stream, stream.pages[at], page.value)


def archive_page(stream: StreamMetadata, at: int, page: Page, start: int, stop: int) -> tuple[StreamMetadata, Page]:
    part = part_of(stream, at, page)
    made, change = archived_page(stream, stream.pages[at], part, words_of(part, start, stop))
    after = written(change.decide(stream))
    assert change.decide(after) == Settled()
    return after, made


def test_pages_are_archived_one_after_another_and_then_the_tail() -> None:
    first = part_of(ROOT, 0, PAGES[0])
    assert next_to_archive(ROOT, first, is_first=True) == 0
    stream, made = archive_page(ROOT, 0, PAGES[0], 0, 2)
    assert decode_object(made.value, what="page", format_max=ARCHIVED_FORMAT, format_min=ARCHIVED_FORMAT)
    part = part_of(stream, 0, made)
    assert [bool(fragment.archive) for fragment in part.fragments] == [True, True, False, False]
    assert stream.archived_before == part.fragments[2].first_entry_id
    with pytest.raises(InvalidArgumentError, match="does not follow"):
        archive_page(stream, 1, PAGES[1], 0, 1)
    assert "does not follow" in refusal(ArchiveTail(words_of(stream, 0, 1)).decide(stream))

    stream, _ = archive_page(stream, 0, made, 2, 4)
    assert stream.archived_before == stream.pages[1].first_entry_id
    stream, _ = archive_page(stream, 1, PAGES[1], 0, 6)
    assert stream.archived_before == stream.fragments[0].first_entry_id
    assert archived(stream, 0, 2).archived_before == stream.fragments[2].first_entry_id


def test_nothing_behind_a_page_is_archived_before_it() -> None:
    assert next_to_archive(ROOT, part_of(ROOT, 1, PAGES[1]), is_first=False) is None
    with pytest.raises(InvalidArgumentError, match="does not follow"):
        archive_page(ROOT, 1, PAGES[1], 0, 2)
    assert "does not follow" in refusal(ArchiveTail(words_of(ROOT, 0, 2)).decide(ROOT))


def test_a_page_that_repair_has_replaced_meanwhile_is_archived_anew() -> None:
    part = part_of(ROOT, 0, PAGES[0])
    _, change = archived_page(ROOT, ROOT.pages[0], part, words_of(part, 0, 4))
    other = repaired_page(ROOT, ROOT.pages[1], part_of(ROOT, 1, PAGES[1]).with_member(place(1, 12), 0, BookieId("b9")))
    repaired = written(ReplacePages(((ROOT.pages[1], other.reference),)).decide(ROOT))
    assert "other pages have been named" in refusal(change.decide(repaired))
    archived_meanwhile = replace(ROOT, archived_before=part.fragments[1].first_entry_id)
    assert "other fragments have been moved" in refusal(change.decide(archived_meanwhile))


def test_the_fragments_of_a_page_below_the_start_need_no_words() -> None:
    cut = ROOT.truncated(4, place(1, 4))
    part = part_of(cut, 0, PAGES[0])
    assert next_to_archive(cut, part, is_first=True) == 1
    stream, _ = archive_page(cut, 0, PAGES[0], 1, 4)
    assert stream.archived_before == cut.pages[1].first_entry_id


def test_fragments_with_words_are_paged_out_behind_others_with_words() -> None:
    stream, made = archive_page(ROOT, 0, PAGES[0], 0, 4)
    stream, second = archive_page(stream, 1, PAGES[1], 0, 6)
    stream = archived(stream, 0, 3)
    plan = plan_paging(stream, second.value)
    assert plan is not None
    assert plan.replaced == stream.pages[1]
    assert plan.page.reference.fragments == 6 + len(plan.moved)
    after = stream.with_page(plan.page.reference, moved=len(plan.moved), replaces_last=True)
    part = decode_page(after, plan.page.reference, plan.page.value)
    assert [bool(one.archive) for one in part.fragments] == [True] * 9 + [False] * (len(part.fragments) - 9)
    assert made.reference in stream.pages


def test_a_page_without_words_keeps_its_format() -> None:
    page = make_page(WHOLE, WHOLE.fragments[:3], WHOLE.fragments[3])
    assert decode_object(page.value, what="page", format_max=FORMAT)


def test_a_page_of_the_largest_size_has_room_for_words() -> None:
    """A document holds twice what a page without words may have."""
    each = len(words_text([word(0, ID_MAX)])) + len('"archive":"",')
    assert PAGE_BYTES_MAX + PAGE_FRAGMENTS_MAX * each < DOCUMENT_BYTES_MAX


# --- the stored form ------------------------------------------------------------------------------------------------


def test_a_stream_with_words_has_a_format_that_older_versions_refuse() -> None:
    stored = encode_stream(archived(WHOLE, 0, 3))
    assert decode_object(stored, what="it", format_max=ARCHIVED_STREAM_FORMAT, format_min=ARCHIVED_STREAM_FORMAT)
    with pytest.raises(MetadataError, match=f"newer than {STREAM_FORMAT}"):
        decode_object(stored, what="it", format_max=STREAM_FORMAT)
    decode_object(encode_stream(WHOLE), what="it", format_max=STREAM_FORMAT)


def test_a_stream_with_words_is_read_as_it_was_written() -> None:
    stream = archived(WHOLE, 0, 3)
    assert decode_stream(LedgerId(7), encode_stream(stream)) == stream
    assert decode_either(LedgerId(7), encode_stream(stream)) == stream
    assert glance_at_stream(LedgerId(7), encode_stream(stream)) == glance_at_stream(LedgerId(7), encode_stream(WHOLE))


def test_damaged_words_are_refused() -> None:
    stored = encode_stream(archived(WHOLE, 0, 3))
    fields = decode_object(stored, what="it", format_max=ARCHIVED_STREAM_FORMAT)
    fields["fragments"][0]["archive"] = "AAAA"
    with pytest.raises(MetadataError, match="stream 7: the stored metadata are damaged"):
        decode_stream(LedgerId(7), encode_object(fields, format_number=ARCHIVED_STREAM_FORMAT))
