"""The write pipeline and its ensemble changes, driven by scripts.

Commands (positions are numbers, bookies words, times seconds)::

    quorums E Qw Qa [loss=S] [delay=S] [retry=S] [copies=KIND]   begin; bookies a, b, c, ...
                                KIND: recorded or required, for a ledger with full copies
    time T                      the clock
    up P...                     connected and taking requests
    down P                      the connection broke: what was outstanding there fails
    push N                      N entries become one run
    ok P RUN [old]              the bookie (old: the one before) confirms its share of the run
    refuse P RUN                the bookie does not take it
    poll                        is any bookie to be replaced?
    spares P=BOOKIE...          what the search found; nothing: none
    joiner P                    the joiner for position P takes requests
    joined P RUN                it confirms its share of the run
    copied                      is enough copied for the change?
    failed                      a joiner cannot join
    roll BOOKIE...              begin a new fragment on these bookies
    debt                        what the last fragment owes
    committed                   the metadata have the new fragment
    stop
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from octavo.client.write.copies.full_copies import FullCopiesPipeline, RequiredChanges
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges, Phase
from octavo.client.write.pipeline import Acknowledge, Effect, Full, Pipeline, Send
from octavo.protocol.entries import Digest, Sealer, derive_secrets, header_of
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.quorums import Quorums
from support.scripts import check_script, scripts_in

LEDGER = LedgerId(1)
SEALER = Sealer(LEDGER, Digest.CRC32C, derive_secrets(b"", LEDGER))
SCRIPTS = Path(__file__).parents[1] / "scripts" / "writing"


class Interpreter:
    """One writer's pure parts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.outstanding: set[tuple[int, int]] = set()

    def __call__(self, words: list[str]) -> Iterable[str]:
        command, *arguments = words
        answers = list(getattr(self, f"do_{command}")(*arguments) or ())
        self.pipeline.check_invariants()
        self.changes.check_invariants()
        return answers

    def do_quorums(self, ensemble: str, write: str, ack: str, *options: str) -> None:
        quorums = Quorums(int(ensemble), int(write), int(ack))
        words = dict(option.split("=") for option in options)
        copies = words.pop("copies", None)
        given = {name: float(value) for name, value in words.items()}
        self.pipeline: Pipeline = Pipeline(quorums, retained_bytes_max=1 << 20)
        if copies is not None:
            self.pipeline = FullCopiesPipeline(quorums, required=copies == "required", retained_bytes_max=1 << 20)
        make: Callable[..., EnsembleChanges] = RequiredChanges if copies == "required" else EnsembleChanges
        self.size = quorums.ensemble_size
        self.changes = make(
            self.pipeline,
            quorums,
            [BookieId(chr(ord("a") + at)) for at in range(quorums.ensemble_size)],
            now=0.0,
            loss_seconds=given.get("loss", 0.0),
            delay_seconds=given.get("delay", 0.0),
            retry_seconds=given.get("retry", 0.0),
        )

    def do_time(self, now: str) -> None:
        self.now = float(now)

    def do_up(self, *positions: str) -> Iterable[str]:
        for position in map(int, positions):
            self.changes.on_connected(position)
            yield from self.tell(self.pipeline.on_ready(position))

    def do_down(self, position: str) -> None:
        at = int(position)
        for sent in sorted(self.outstanding):
            if sent[0] == at:
                self.outstanding.remove(sent)
                self.pipeline.on_failed(*sent, self.pipeline.tenure(at))
        self.pipeline.on_unsent(at, 1 << 30, self.pipeline.tenure(at))
        self.changes.on_lost(at, self.now)

    def do_push(self, count: str) -> Iterable[str]:
        first, lac = self.pipeline.next_entry_id, self.pipeline.last_add_confirmed
        sealed = SEALER.seal(EntryId(first), [b"x"] * int(count), last_add_confirmed=lac, length=first, sealed_at_ms=0)
        size = sum(map(len, sealed))
        return self.tell(self.pipeline.push(sealed, sealed_bytes=size, length_after=first + int(count), now=self.now))

    def do_ok(self, position: str, run: str, old: str = "") -> Iterable[str]:
        at, number = int(position), int(run)
        tenure = self.pipeline.tenure(at) - bool(old)
        if not old:
            self.outstanding.discard((at, number))
            self.changes.on_confirmed(at)
        return self.tell(self.pipeline.on_confirmed(at, number, tenure))

    def do_refuse(self, position: str, run: str) -> None:
        at, number = int(position), int(run)
        self.outstanding.discard((at, number))
        self.pipeline.on_failed(at, number, self.pipeline.tenure(at))
        self.changes.on_refused(at, self.now)

    def do_poll(self) -> Iterable[str]:
        wanted = self.changes.poll(self.now)
        if wanted is not None:
            yield "find spares for " + ", ".join(map(str, wanted.positions))
            return
        wake_at = self.changes.wake_at()
        yield "nothing to do" + ("" if wake_at is None else f" before {wake_at:g}")

    def do_spares(self, *spares: str) -> Iterable[str]:
        found = {int(position): BookieId(name) for position, name in (spare.split("=") for spare in spares)}
        yield from self.tell_commit(self.changes.on_spares(found, self.now))

    def tell_commit(self, commit: Commit | None) -> Iterable[str]:
        if self.changes.phase is Phase.COPYING:
            yield "copies first"
        elif commit is None:
            yield "nobody is replaced"
        else:
            ensemble, length = " ".join(commit.ensemble), commit.length_before
            yield f"commit fragment from {commit.first_entry_id}: {ensemble} (length before {length})"
            if isinstance(self.pipeline, FullCopiesPipeline) and not commit.debt.is_empty:
                yield f"the fragment that ends owes {commit.debt.first} to {commit.debt.last}"

    def do_joiner(self, position: str) -> Iterable[str]:
        pipeline, _ = self.books
        return self.tell(pipeline.on_joiner_ready(int(position), pipeline.attempt))

    def do_joined(self, position: str, run: str) -> None:
        pipeline, _ = self.books
        pipeline.on_joiner_confirmed(int(position), int(run), pipeline.attempt)

    def do_copied(self) -> Iterable[str]:
        pipeline, changes = self.books
        yield from self.tell_commit(changes.on_copied())
        yield from self.tell(pipeline.resume())

    def do_failed(self) -> Iterable[str]:
        pipeline, changes = self.books
        changes.on_joiner_failed(self.now)
        return self.tell(pipeline.resume())

    def do_roll(self, *bookies: str) -> Iterable[str]:
        assert self.changes.begin_roll()
        return self.tell_commit(self.changes.on_placement(tuple(map(BookieId, bookies))))

    def do_debt(self) -> Iterable[str]:
        debt = self.pipeline.debt()
        yield "nothing is owed" if debt.is_empty else f"owes {debt.first} to {debt.last}"

    @property
    def books(self) -> tuple[FullCopiesPipeline, RequiredChanges]:
        assert isinstance(self.pipeline, FullCopiesPipeline)
        assert isinstance(self.changes, RequiredChanges)
        return self.pipeline, self.changes

    def do_committed(self) -> Iterable[str]:
        assert self.changes.phase is Phase.COMMITTING
        before = self.changes.ensemble
        effects = self.changes.on_committed(self.now)
        replaced = {at for at, (old, new) in enumerate(zip(before, self.changes.ensemble, strict=True)) if old != new}
        self.outstanding = {sent for sent in self.outstanding if sent[0] not in replaced}
        return self.tell(effects)

    def do_stop(self) -> None:
        self.pipeline.stop()

    def tell(self, effects: Sequence[Effect]) -> Iterable[str]:
        for effect in effects:
            if isinstance(effect, Acknowledge):
                yield f"acknowledge {effect.first} to {effect.last}; length {self.pipeline.length}"
            elif isinstance(effect, Full):
                yield f"full up to {effect.last}"
            elif isinstance(effect, Send) and effect.position >= self.size:
                position = effect.position - self.size
                share = [header_of(sealed).entry_id for sealed in self.pipeline.share(effect.run, position)]
                joiner = self.books[1].joiners[position]
                yield f"send run {effect.run.number} to joiner {joiner}: entries {', '.join(map(str, share))}"
            else:
                assert isinstance(effect, Send)
                self.outstanding.add((effect.position, effect.run.number))
                share = [header_of(sealed).entry_id for sealed in self.pipeline.share(effect.run, effect.position)]
                bookie = self.changes.ensemble[effect.position]
                yield f"send run {effect.run.number} to {bookie}: entries {', '.join(map(str, share))}"


@pytest.mark.parametrize("path", scripts_in(SCRIPTS))
def test_script(path: Path, *, rewrite: bool) -> None:
    check_script(path, Interpreter(), rewrite=rewrite)


def test_the_example_in_the_protocol_document_is_what_the_script_gives() -> None:
    document = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    assert f"\n```\n{(SCRIPTS / 'protocol-example.expected').read_text()}```\n" in document
