"""Moves the entries of some fragments into one object: which step follows which outcome. Pure.

The order is the promise (rule J6): the object, then its reading back, then the word, and never the other way round.

=============  ================  ==============================================================================
step           in words          when it is done
=============  ================  ==============================================================================
UPLOAD         put the object    the store has confirmed it, whole
READ_BACK      read all of it    each entry is intact, and the SHA-256 is that of what was put
WRITE_WORD     name it           a compare-and-set has written the word, or it stands there already
LOOK_AGAIN     ask for it        the object is still there
TAKE_BACK      unname it         the word is gone: the object was deleted before it had its word
=============  ================  ==============================================================================

A move ends in one of three ways. DONE: the word is written, and its object was there afterwards. GARBAGE: no word names
the object, if there is one; a sweeper finds it, and the entries are moved again under another token. IN_QUESTION: a
word names an object that is gone and cannot be taken back, because others follow it.

A move that takes longer than :data:`GIVE_UP_SECONDS` writes no word: a sweeper may take the object for garbage by then.
A move that was paused between its last look at the clock and its word looks at the object afterwards. A word that may
have been written is treated as one that was.

A process that dies between two steps leaves an object without a word, or a word whose object was read back. Copies on
bookies are not touched here, so both are harmless.
"""

import enum
from typing import Final

GIVE_UP_SECONDS: Final = 6 * 3600.0
"""Between the first byte and the word, by a clock that counts on while the host is suspended. An object without a word
is garbage after a day."""


class Step(enum.Enum):
    """The step to take next, or the end of a move."""

    UPLOAD = "upload"
    READ_BACK = "read back"
    WRITE_WORD = "write word"
    LOOK_AGAIN = "look again"
    TAKE_BACK = "take back"
    DONE = "done"
    GARBAGE = "garbage"
    IN_QUESTION = "in question"

    @property
    def is_end(self) -> bool:
        return self in {Step.DONE, Step.GARBAGE, Step.IN_QUESTION}


class Outcome(enum.Enum):
    """How a step went."""

    OK = "ok"
    UNKNOWN = "unknown"
    """No answer: it may have been done."""
    REFUSED = "refused"
    """By the store, or by the metadata: another client got ahead."""
    MISSING = "missing"
    DAMAGED = "damaged"


NEXT: Final = {
    # An object that may be there whole is not asked for: another token costs as little, and no key is put twice.
    (Step.UPLOAD, Outcome.OK): Step.READ_BACK,
    (Step.UPLOAD, Outcome.UNKNOWN): Step.GARBAGE,
    (Step.UPLOAD, Outcome.REFUSED): Step.GARBAGE,
    (Step.UPLOAD, Outcome.MISSING): Step.GARBAGE,
    (Step.UPLOAD, Outcome.DAMAGED): Step.GARBAGE,
    (Step.READ_BACK, Outcome.OK): Step.WRITE_WORD,
    (Step.READ_BACK, Outcome.UNKNOWN): Step.READ_BACK,
    (Step.READ_BACK, Outcome.REFUSED): Step.READ_BACK,
    (Step.READ_BACK, Outcome.MISSING): Step.GARBAGE,
    (Step.READ_BACK, Outcome.DAMAGED): Step.GARBAGE,
    (Step.WRITE_WORD, Outcome.OK): Step.LOOK_AGAIN,
    (Step.WRITE_WORD, Outcome.UNKNOWN): Step.WRITE_WORD,
    (Step.WRITE_WORD, Outcome.REFUSED): Step.GARBAGE,
    (Step.WRITE_WORD, Outcome.MISSING): Step.GARBAGE,  # the stream was deleted
    (Step.LOOK_AGAIN, Outcome.OK): Step.DONE,
    (Step.LOOK_AGAIN, Outcome.UNKNOWN): Step.LOOK_AGAIN,
    (Step.LOOK_AGAIN, Outcome.REFUSED): Step.LOOK_AGAIN,
    (Step.LOOK_AGAIN, Outcome.MISSING): Step.TAKE_BACK,
    (Step.LOOK_AGAIN, Outcome.DAMAGED): Step.TAKE_BACK,
    (Step.TAKE_BACK, Outcome.OK): Step.GARBAGE,
    (Step.TAKE_BACK, Outcome.UNKNOWN): Step.TAKE_BACK,
    (Step.TAKE_BACK, Outcome.REFUSED): Step.IN_QUESTION,
    (Step.TAKE_BACK, Outcome.MISSING): Step.GARBAGE,
}
"""Every outcome that a step can have, and what follows."""


class Move:
    """One object on its way."""

    def __init__(self, *, began_at_seconds: float) -> None:
        self._began_at_seconds = began_at_seconds
        self._word_may_exist = False
        self.step = Step.UPLOAD

    def look_at_clock(self, now_seconds: float) -> Step:
        """The step to take now. Called before every step, with a clock that counts on while the host is suspended."""
        if now_seconds - self._began_at_seconds > GIVE_UP_SECONDS:
            if self.step in {Step.UPLOAD, Step.READ_BACK}:
                self.step = Step.GARBAGE
            elif self.step is Step.WRITE_WORD:
                self.step = Step.LOOK_AGAIN if self._word_may_exist else Step.GARBAGE
        return self.step

    def taken(self, outcome: Outcome) -> Step:
        """The step was taken; the one that follows."""
        assert not self.step.is_end, "a move that has ended takes no step"
        if self.step is Step.WRITE_WORD:
            self._word_may_exist = self._word_may_exist or outcome in {Outcome.OK, Outcome.UNKNOWN}
            # Refused after an attempt without an answer: the first one may have been made, and words have followed it.
            if self._word_may_exist and outcome is Outcome.REFUSED:
                self.step = Step.LOOK_AGAIN
                return self.step
        self.step = NEXT[self.step, outcome]
        return self.step
