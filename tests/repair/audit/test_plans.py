"""Plans and reports between auditor and targets, pauses after failures (rules A6, A7, A10)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates, decode_states, encode_states
from octavo.metadata.store.documents import DOCUMENT_BYTES_MAX
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.audit.backoff import BlockedLedgers
from octavo.repair.audit.plans_under_way import Outstanding
from octavo.repair.base.documents import (
    BLOCKED_MAX,
    CHECKS_MAX,
    AcceptedLoss,
    BookieFigures,
    Check,
    Report,
    Summary,
    WorkPlan,
    accepted_name,
    decode_blocked,
    decode_checks,
    decode_plan,
    decode_report,
    decode_summary,
    encode_blocked,
    encode_checks,
    encode_plan,
    encode_report,
    encode_summary,
    target_of_work,
    work_name,
)
from octavo.repair.base.planning import JOBS_MAX, Blocked, BlockedClass, Job, Why
from octavo.repair.copy.progress import Progress

A, B = BookieId("a"), BookieId("host:3181")


def job(number: int, *, why: Why = Why.LOST) -> Job:
    return Job(LedgerId(number), A if why is Why.LOST else None, why)


def blocked(number: int, kind: BlockedClass = BlockedClass.SHORT) -> Blocked:
    return Blocked(LedgerId(number), 3, None, kind, (A, B), "no sound copy")


# --- the target's side --------------------------------------------------------------------------------------------


def test_a_target_does_each_job_once_and_reports_what_could_not_be_done() -> None:
    progress = Progress()
    progress.adopt(WorkPlan(5, (job(1), job(2))))
    assert [progress.next_job(), progress.next_job(), progress.next_job()] == [job(1), job(2), None]
    progress.ended(job(2), blocked(2))
    progress.check_invariants()
    report = progress.report(entries_copied=10, bytes_copied=100)
    assert report == Report(5, frozenset({1}), 10, 100, (blocked(2),))
    assert progress.left == 1
    progress.put_back(job(1))
    assert progress.next_job() == job(1)


def test_after_a_restart_a_target_goes_on_with_what_its_report_does_not_say_is_done() -> None:
    progress = Progress(Report(5, frozenset({0, 2}), failures=(blocked(3),)))
    progress.adopt(WorkPlan(5, (job(1), job(2), job(3))))
    assert [progress.next_job(), progress.next_job()] == [job(2), None]
    assert progress.report(entries_copied=0, bytes_copied=0).failures == (blocked(3),)
    progress.adopt(WorkPlan(6, (job(2), job(4)), carried=1))  # the report of plan 5 says nothing of plan 6
    assert progress.next_job() == job(4)


def test_a_new_plan_carries_jobs_over_gives_others_up_and_repeats_what_is_planned_again() -> None:
    progress = Progress()
    progress.adopt(WorkPlan(1, (job(1), job(2), job(3), job(4))))
    for _ in range(4):
        progress.next_job()
    progress.ended(job(1), blocked(1))
    progress.ended(job(2), None)
    # The auditor has read that 1 failed and plans it again; it has not read yet that 2 is done; 3 is dropped.
    adopted = progress.adopt(WorkPlan(2, (job(2), job(4), job(1)), carried=2))
    progress.check_invariants()
    assert adopted.given_up == {job(3)}
    assert progress.report(entries_copied=0, bytes_copied=0).done == {0}
    assert [progress.next_job(), progress.next_job()] == [job(1), None]
    assert progress.adopt(None).given_up == {job(4), job(1)}
    assert progress.next_job() is None


# --- the auditor's side -------------------------------------------------------------------------------------------


def test_a_target_gets_further_jobs_when_a_fourth_of_its_plan_is_left() -> None:
    outstanding = Outstanding()
    first = outstanding.next_plan(A, [job(n) for n in range(8)], 0.0, number_min=100)
    assert (first.plan.number, first.plan.carried, outstanding.room(A)) == (100, 0, 0)
    assert outstanding.on_report(A, Report(100, frozenset(range(5))), 1.0).jobs == tuple(job(n) for n in range(5))
    assert outstanding.room(A) == 0
    ended = outstanding.on_report(A, Report(100, frozenset(range(6)), failures=(blocked(5),)), 2.0)
    assert (ended.jobs, ended.failures) == ((job(5),), {5: blocked(5)})
    assert outstanding.room(A) == JOBS_MAX - 2
    second = outstanding.next_plan(A, [job(9)], 2.0, number_min=50)
    assert second.plan == WorkPlan(101, (job(6), job(7), job(9)), 2)
    outstanding.check_invariants()
    assert outstanding.on_report(A, Report(100, frozenset(range(8))), 3.0).jobs == ()  # of the plan before
    assert LedgerId(7) in outstanding
    assert LedgerId(5) not in outstanding


def test_a_silent_or_missing_target_loses_its_jobs_and_an_idle_one_does_not() -> None:
    outstanding = Outstanding()
    outstanding.adopt(A, WorkPlan(1, (job(1), job(2))), 0.0)
    outstanding.next_plan(B, [job(3)], 50.0, number_min=1)
    assert outstanding.silent([A, B], 59.0, 60.0) == []
    assert outstanding.silent([A, B], 60.0, 60.0) == [A]
    assert outstanding.silent([A], 51.0, 60.0) == [B]
    outstanding.on_report(A, Report(1, frozenset({0})), 61.0)
    assert outstanding.silent([A, B], 100.0, 60.0) == []
    assert outstanding.withdraw(A) == (job(2),)
    outstanding.on_report(B, Report(1, frozenset({0})), 61.0)
    assert outstanding.silent([], 1000.0, 60.0) == []
    assert outstanding.finished() == [B]
    assert outstanding.ledgers == 0
    outstanding.check_invariants()


def test_jobs_of_a_bookie_that_is_back_are_dropped() -> None:
    outstanding = Outstanding()
    outstanding.next_plan(A, [job(1), job(2)], 0.0, number_min=1)
    plan = outstanding.next_plan(A, [], 1.0, number_min=1, dropped=[job(1)])
    assert plan.plan.jobs == (job(2),)
    assert LedgerId(1) not in outstanding
    outstanding.check_invariants()


@given(st.lists(st.tuples(st.sampled_from(["plan", "report", "do", "restart"]), st.integers(0, 5)), max_size=40))
def test_auditor_and_target_agree_in_the_end_however_their_documents_cross(steps: list[tuple[str, int]]) -> None:
    outstanding, progress = Outstanding(), Progress()
    plan_document: WorkPlan | None = None
    report_document = Report(0)
    planned: set[Job] = set()
    done: set[Job] = set()
    number = 0
    for step, amount in [*steps, *[("do", 5), ("report", 0)] * 30]:
        if step == "plan" and outstanding.room(A):
            new = [job(number + n) for n in range(amount + 1)]
            number += amount + 1
            planned.update(new)
            plan_document = outstanding.next_plan(A, new, 0.0, number_min=1).plan
        elif step == "report":
            report_document = progress.report(entries_copied=0, bytes_copied=0)
            if report_document.plan:
                done.update(outstanding.on_report(A, report_document, 0.0).jobs)
        elif step == "do":
            progress.adopt(plan_document)
            for _ in range(amount):
                if (one := progress.next_job()) is not None:
                    progress.ended(one, None)
        elif step == "restart":
            progress = Progress(report_document if report_document.plan else None)
        progress.check_invariants()
        outstanding.check_invariants()
    assert done == planned


# --- blocked ------------------------------------------------------------------------------------------------------


def test_pauses_double_up_to_a_limit_and_end_when_a_bookie_registers() -> None:
    waiting = BlockedLedgers(retry_seconds_open=2, retry_seconds_min=60, retry_seconds_max=200)
    now = 0.0
    for pause in (60, 120, 200, 200):
        waiting.add(blocked(1), now)
        assert waiting.rests(LedgerId(1), now + pause - 1)
        assert waiting.next_at() == now + pause
        now += pause
        assert waiting.due(now) == [1]
    waiting.add(blocked(2, BlockedClass.OPEN), now)
    waiting.wake(now)
    assert waiting.due(now) == [1, 2]
    waiting.add(blocked(1), now)
    assert waiting.next_at() == now
    assert (waiting.count(BlockedClass.SHORT), waiting.count(BlockedClass.OPEN), len(waiting)) == (1, 1, 2)
    waiting.clear(LedgerId(1))
    assert list(waiting) == [blocked(2, BlockedClass.OPEN)]
    assert LedgerId(1) not in waiting


def test_open_ledgers_are_looked_at_sooner() -> None:
    waiting = BlockedLedgers(retry_seconds_open=20, retry_seconds_min=60, retry_seconds_max=200)
    now = 0.0
    for pause in (20, 40, 60, 60):
        waiting.add(blocked(1, BlockedClass.OPEN), now)
        assert waiting.next_at() == now + pause
        now += pause
    waiting.add(blocked(1), now)
    assert waiting.next_at() == now + 120


# --- documents ----------------------------------------------------------------------------------------------------

PLAN = WorkPlan(3, (job(1), Job(LedgerId(2), B, Why.DRAINING), job(3, why=Why.HOLE)), 1)
REPORT = Report(3, frozenset({0, 2}), 5, 500, (blocked(1),))
SUMMARY = Summary(
    1000, 5, 1, 2, {"short": 1}, {B: BookieFigures(3, 1)}, 5, 500, 1.5, 0.25, 900, (blocked(1),)
)  # fmt: skip


def test_documents_are_read_as_they_were_written() -> None:
    assert decode_plan(encode_plan(PLAN), "x") == PLAN
    assert decode_report(encode_report(REPORT), "x") == REPORT
    assert decode_summary(encode_summary(SUMMARY)) == SUMMARY
    assert decode_blocked(encode_blocked([blocked(1)]), "x") == (blocked(1),)
    checks = (Check(LedgerId(1), 5), Check(LedgerId(2), 6, short=True))
    assert decode_checks(encode_checks(checks)) == checks
    assert decode_checks(None) == ()
    loss = AcceptedLoss(LedgerId(7), (A, B), 99, None, "disk burnt")
    assert AcceptedLoss.decode(loss.encode(), accepted_name(LedgerId(7))) == loss


LONG = [BookieId(f"{number:03}".ljust(128, "x")) for number in range(1500)]
"""Ids as long as they may be."""


def blocked_at_length(ledger_id: int) -> Blocked:
    """One of an ensemble of six with long names: the rack that held them is lost."""
    return Blocked(LedgerId(2**62 + ledger_id), 0, 2**62, BlockedClass.NO_TARGET, tuple(LONG[:6]), "\u20ac" * 300)


def test_no_document_exceeds_the_limit_of_the_store_and_what_matters_is_in_it() -> None:
    """Rule A12: hundreds of blocked ledgers and long names must not stop repair."""
    many = tuple(map(blocked_at_length, range(JOBS_MAX)))

    jobs = tuple(Job(one.ledger_id, LONG[0], Why.DRAINING) for one in many)
    plan = encode_plan(WorkPlan(2**62, jobs, JOBS_MAX))
    assert decode_plan(plan, "x").jobs == jobs

    report = encode_report(Report(2**62, frozenset(range(JOBS_MAX)), 2**62, 2**62, many))
    failures = decode_report(report, "x").failures
    assert [(one.ledger_id, one.first, one.last, one.kind) for one in failures] == [
        (one.ledger_id, one.first, one.last, one.kind) for one in many
    ]
    assert failures[0].bookies == many[0].bookies

    figures = dict.fromkeys(LONG, BookieFigures(2**40, 2**40))
    counts = {kind.value: 2**62 for kind in BlockedClass}
    summary = encode_summary(replace(SUMMARY, bookies=figures, blocked=many, blocked_counts=counts))
    assert decode_summary(summary).blocked_counts == counts
    assert 0 < len(decode_summary(summary).blocked) < BLOCKED_MAX
    assert 0 < len(decode_summary(summary).bookies) < len(LONG)

    of_bookie = encode_blocked(many)
    assert decode_blocked(of_bookie, "x") == tuple(
        replace(one, reason=one.reason[:300]) for one in many[: len(decode_blocked(of_bookie, "x"))]
    )

    checks = encode_checks(Check(one.ledger_id, 2**62, short=False) for one in many[:CHECKS_MAX])
    loss = AcceptedLoss(LedgerId(7), tuple(LONG[:32]), 99, None, "\u20ac" * 100_000).encode()
    held = BookieCondition(Condition.HELD, 2**62, 2**62, "\u20ac" * 200)
    states = encode_states(RepairStates(dict.fromkeys(LONG, held)))
    assert {entry.until_ms for entry in decode_states(states).bookies.values()} == {2**62}

    sizes = [len(document) for document in (plan, report, summary, of_bookie, checks, loss, states)]
    assert max(sizes) <= DOCUMENT_BYTES_MAX, sizes


def test_names_of_documents_hold_any_bookie_id() -> None:
    assert target_of_work(work_name(B)) == B
    assert target_of_work("repair/work/zz") is None
    assert target_of_work("repair/work/00") is None


@pytest.mark.parametrize(
    ("good", "decode"),
    [
        (encode_plan(PLAN), lambda value: decode_plan(value, "x")),
        (encode_report(REPORT), lambda value: decode_report(value, "x")),
        (encode_summary(SUMMARY), decode_summary),
    ],
)
@given(data=st.data())
def test_a_damaged_document_is_an_error_that_names_it_and_nothing_else(
    good: bytes, decode: object, data: st.DataObject
) -> None:
    assert callable(decode)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]
    try:
        result = decode(bad)
    except MetadataError as error:
        result = error.message
    assert bad == good or str(result).startswith("document ")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=4)
    )
)
def test_fields_of_other_types_are_refused_with_one_error(value: object) -> None:
    from octavo.metadata.encoding import encode_object  # noqa: PLC0415 - a document with a right checksum and wrong fields

    for field in ("jobs", "number", "carried"):
        fields = {"number": 1, "jobs": [[1, None, "hole"]], "carried": 0} | {field: value}
        try:
            plan = decode_plan(encode_object(fields, format_number=1), "x")
        except MetadataError:
            continue
        assert encode_plan(plan) == encode_object(fields, format_number=1)
