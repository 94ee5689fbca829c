"""Ledger recovery's decisions: the verdict over all combinations of answers, scripts, and any order of events."""

import itertools
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.client.recover.ledger_recovery import VERDICTS, End, Evidence, LedgerRecovery, Verdict
from octavo.protocol.entries import Digest, Sealer, derive_secrets, header_of
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.quorums import Quorums
from support.scripts import check_script, scripts_in

LEDGER = LedgerId(1)
SEALER = Sealer(LEDGER, Digest.CRC32C, derive_secrets(b"", LEDGER))
SCRIPTS = Path(__file__).parents[1] / "scripts" / "recovery"
QUORUMS = [
    Quorums(ensemble, write, ack)
    for ensemble in range(1, 6)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


def sealed(entry_id: int) -> bytes:
    """Entries of one byte each, entry N at N seconds."""
    time = entry_id * 1000
    return SEALER.seal(EntryId(entry_id), [b"x"], last_add_confirmed=None, length=entry_id, sealed_at_ms=time)[0]


# --- the verdict ----------------------------------------------------------------------------------------------------


def test_the_table_has_every_combination() -> None:
    assert set(VERDICTS) == {Evidence(*values) for values in itertools.product((True, False), repeat=3)}


def test_the_table_follows_rule_f4() -> None:
    """Rule F4: a positive wins over any number of negatives, and only negatives that cover make an end."""
    for evidence, verdict in VERDICTS.items():
        assert (verdict is Verdict.RECOVERABLE) == evidence.found, evidence
        assert (verdict is Verdict.END) == (not evidence.found and evidence.negatives_cover), evidence


def test_a_positive_that_came_before_its_turn_wins_over_negatives_of_all_the_others() -> None:
    quorums = Quorums(3, 3, 2)
    recovery = LedgerRecovery(quorums, first_entry_id=0, length_before=0)
    for position in range(3):
        recovery.on_fenced(position, None)
    first, second = sealed(0), sealed(1)
    recovery.on_read(0, 0, 2, {1: second}, unknown=[0])
    recovery.on_read(1, 0, 0, {}, unknown=[0])
    recovery.on_read(1, 1, 2, {})
    assert recovery.last_recovered == -1, "entry 0 is undecided: nothing is decided above it"
    recovery.on_read(2, 0, 2, {0: first})
    assert recovery.take_recovered() == [first, second], "of entry 1 there is one copy, and two bookies deny it"
    assert recovery.end is not None
    assert recovery.end.last_entry_id == 1


def test_an_answer_that_leaves_a_gap_behind_the_one_before_says_nothing() -> None:
    quorums = Quorums(1, 1, 1)
    recovery = LedgerRecovery(quorums, first_entry_id=0, length_before=0)
    recovery.on_fenced(0, None)
    recovery.on_read(0, 1, 5, {})
    assert recovery.end is None, "entry 0 was not asked for"
    wanted = recovery.wanted_read(0)
    assert wanted is not None
    assert wanted[0] == 0


@pytest.mark.parametrize("quorums", QUORUMS, ids=str)
def test_the_verdict_on_every_combination_of_answers(quorums: Quorums) -> None:
    members = quorums.write_set(0)
    for answers in itertools.product(("found", "absent", "unknown", "gave up", "waiting"), repeat=len(members)):
        by_member = dict(zip(members, answers, strict=True))
        recovery = LedgerRecovery(quorums, first_entry_id=0, length_before=0)
        for position in range(quorums.ensemble_size):
            recovery.on_fenced(position, None)
        # A positive wins, also over negatives that would cover without it, if it is there when they come.
        for position, answer in sorted(by_member.items(), key=lambda item: item[1] != "found"):
            if answer == "gave up":
                recovery.on_gave_up(position)
            elif answer != "waiting":
                held = {0: sealed(0)} if answer == "found" else {}
                recovery.on_read(position, 0, 0, held, [0] if answer == "unknown" else [])
            recovery.check_invariants()
        # Brute force: could the entry have been acknowledged, that is, could some Qa of its bookies have it?
        could_be = any(
            all(by_member[member] != "absent" for member in quorum)
            for quorum in itertools.combinations(members, quorums.ack_quorum)
        )
        if "found" in answers:
            expected = Verdict.RECOVERABLE
        elif not could_be:
            expected = Verdict.END
        else:
            expected = Verdict.WAIT if "waiting" in answers else Verdict.BLOCKED
        assert verdict_on_first(recovery) is expected, answers
        if expected is Verdict.BLOCKED:
            blocking = {member for member, answer in by_member.items() if answer != "absent"}
            assert set(recovery.blocked_by or ()) == blocking


def verdict_on_first(recovery: LedgerRecovery) -> Verdict:
    if recovery.last_recovered >= 0:
        return Verdict.RECOVERABLE
    if recovery.end is not None:
        assert recovery.end == End(None, 0)
        return Verdict.END
    return Verdict.WAIT if recovery.blocked_by is None else Verdict.BLOCKED


# --- scripts --------------------------------------------------------------------------------------------------------


class Interpreter:
    """One recovery.

    ::

        ledger E Qw Qa [first=N] [time=1]   a last fragment from entry N on; whether the time of the end is wanted
        fenced P [lac=N] [length=N]         the fence is durable there, and this is its LAC (with its length, if told)
        gave-up P
        read P FIRST LAST [found=N,..] [unknown=N,..]
        written LAST                        on its quorum again
    """

    def __call__(self, words: list[str]) -> Iterable[str]:
        command, *arguments = words
        plain = [int(word) for word in arguments if "=" not in word]
        named = dict(word.split("=") for word in arguments if "=" in word)
        getattr(self, f"do_{command.replace('-', '_')}")(*plain, **named)
        self.recovery.check_invariants()
        yield from self.tell()

    def do_ledger(self, ensemble: int, write: int, ack: int, *, first: str = "0", time: str = "") -> None:
        self.quorums = Quorums(ensemble, write, ack)
        self.wants_time = bool(time)
        self.recovery = LedgerRecovery(
            self.quorums, first_entry_id=int(first), length_before=int(first), wants_time=self.wants_time
        )

    def do_fenced(self, position: int, *, lac: str = "", length: str = "") -> None:
        lengths = {int(lac): int(length)} if length else None
        self.recovery.on_fenced(position, int(lac) if lac else None, lengths)

    def do_gave_up(self, position: int) -> None:
        self.recovery.on_gave_up(position)

    def do_read(self, position: int, first: int, last: int, *, found: str = "", unknown: str = "") -> None:
        held = {int(number): sealed(int(number)) for number in found.split(",") if number}
        self.recovery.on_read(position, first, last, held, map(int, filter(None, unknown.split(","))))

    def do_written(self, last: int) -> None:
        self.recovery.on_written_back(last, 0)

    def tell(self) -> Iterable[str]:
        recovery = self.recovery
        taken = [header_of(entry).entry_id for entry in recovery.take_recovered()]
        if taken:
            yield f"write back {', '.join(map(str, taken))}"
        if recovery.blocked_by is not None:
            at = "" if recovery.blocked_at is None else f" at entry {recovery.blocked_at}"
            yield f"blocked{at} by {', '.join(map(str, recovery.blocked_by))}"
        elif recovery.end is not None:
            end = recovery.end
            state = "finished" if recovery.finished else "waits for what is written back"
            time = f", time {recovery.last_sealed_at_ms}" if self.wants_time else ""
            yield f"ends with {end.last_entry_id}, length {end.length}{time}; {state}"
        elif not recovery.fence_over:
            yield "fencing"
        else:
            wanted = {at: recovery.wanted_read(at) for at in range(self.quorums.ensemble_size)}
            yield "reads from " + ", ".join(f"{at}: {asked[0]} on" for at, asked in wanted.items() if asked)


@pytest.mark.parametrize("path", scripts_in(SCRIPTS))
def test_script(path: Path, *, rewrite: bool) -> None:
    check_script(path, Interpreter(), rewrite=rewrite)


# --- any order of events --------------------------------------------------------------------------------------------


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[Quorums, list[set[int]], int, random.Random]:
    """What a writer can leave behind: ``acknowledged`` entries on Qa bookies at least, those after on some."""
    quorums = draw(st.sampled_from(QUORUMS))
    acknowledged, pushed = draw(st.integers(0, 4)), draw(st.integers(0, 3))
    holders: list[set[int]] = []
    for entry_id in range(acknowledged + pushed):
        members = list(quorums.write_set(entry_id))
        at_least = quorums.ack_quorum if entry_id < acknowledged else 0
        holders.append(set(draw(st.permutations(members))[: draw(st.integers(at_least, len(members)))]))
    return quorums, holders, acknowledged, random.Random(draw(st.integers(0, 2**32)))


@settings(max_examples=400, deadline=None)
@given(ledgers(), st.integers(0, 2), st.integers(1, 3), st.booleans())
def test_whatever_is_acknowledged_is_in_it_and_the_end_is_the_first_gap_at_most(
    ledger: tuple[Quorums, list[set[int]], int, random.Random], hung: int, piece: int, wants_time: bool
) -> None:
    quorums, holders, acknowledged, chance = ledger
    recovery = LedgerRecovery(quorums, first_entry_id=0, length_before=0, wants_time=wants_time)
    size = quorums.ensemble_size
    hanging = set(chance.sample(range(size), min(hung, size)))
    answering = [position for position in range(size) if position not in hanging]
    unfenced = list(answering)
    for _ in range(1000):
        if recovery.end is not None or recovery.blocked_by is not None:
            break
        actions: list[tuple[str, int]] = [("fence", position) for position in unfenced]
        actions += [("read", position) for position in answering if recovery.wanted_read(position)]
        if not actions:
            for position in hanging:
                recovery.on_gave_up(position)
            continue
        action, position = chance.choice(actions)
        if action == "fence":
            unfenced.remove(position)
            lac = chance.randrange(-1, acknowledged)
            recovery.on_fenced(position, lac if lac >= 0 else None, {lac: lac + 1} if chance.random() < 0.5 else {})
        else:
            wanted = recovery.wanted_read(position)
            assert wanted is not None
            covered = min(wanted[1], wanted[0] + chance.randrange(piece))
            found = {
                at: sealed(at) for at in range(wanted[0], covered + 1) if at < len(holders) and position in holders[at]
            }
            recovery.on_read(position, wanted[0], covered, found)
        recovery.check_invariants()
        assert recovery.copy().state() == recovery.state()
    taken = [header_of(entry).entry_id for entry in recovery.take_recovered()]
    start = recovery.start
    if recovery.end is None:
        assert hanging, "with every bookie answering there is always an end"
        assert recovery.blocked_by is not None
        assert set(recovery.blocked_by) <= hanging | {at for held in holders for at in held} | set(range(size))
        return
    assert start is not None
    last = -1 if recovery.end.last_entry_id is None else recovery.end.last_entry_id
    assert last >= acknowledged - 1, "everything acknowledged is in it (rules I1 and I2)"
    assert recovery.end.length == last + 1
    if wants_time:
        assert recovery.last_sealed_at_ms == (last * 1000 if last >= 0 else None)
    assert taken == list(range(start + 1, last + 1)), "in order, without gaps"
    if not hanging:
        first_gap = next((at for at, held in enumerate(holders) if not held), len(holders))
        assert last <= first_gap - 1, "nothing is in it that nobody has"


def test_the_window_bounds_what_is_read_ahead() -> None:
    recovery = LedgerRecovery(Quorums(1, 1, 1), first_entry_id=0, length_before=0)
    recovery.on_fenced(0, None)
    asked = 0
    while (wanted := recovery.wanted_read(0)) is not None:
        asked += 1
        last = min(wanted[1], wanted[0] + 999)
        recovery.on_read(0, wanted[0], last, {at: sealed(at) for at in range(wanted[0], last + 1)})
        assert asked < 100, "nothing is written back, so reading must stop"
    taken = recovery.take_recovered()
    recovery.on_written_back(len(taken) - 1, sum(map(len, taken)))
    assert recovery.wanted_read(0) is not None
