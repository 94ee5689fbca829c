"""What clients of a gateway see, recorded and checked from outside: the only history of topics and groups. Pure.

A producer numbers its messages for each partition: 0, 1, 2, ... So it is known what a partition may hold, and in which
order. Methods raise :class:`BrokenHistoryError` as soon as what a client was told contradicts what clients were told
before:

===============================  =====  ===============================================================================
what                             rule   is found when
===============================  =====  ===============================================================================
an offset with two contents      K2     two messages are acknowledged or read at one offset
a message is lost                K3     it was acknowledged or read, and the partition does not hold it at the end; or
                                        an end is told that lies below what was acknowledged before it was asked for
a message is doubled             K4     it is acknowledged or read at two offsets
messages are reordered           K4     the offsets of a producer's messages do not rise with their numbers; or the
                                        partition holds one and not the one before
a poll skips                     K7     a reader is given another offset than the next one
a commit goes back by itself     K10    an offset is told that lies below one that was answered or told before it was
                                        asked for; or one that no member has committed
a stale commit lands             K10    a commit is answered that was sent after a newer generation was given out
two members own a partition      K11    both were given it in one generation
===============================  =====  ===============================================================================
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

NO_OFFSET: Final = -1
"""Told where nothing was committed."""


class BrokenHistoryError(AssertionError):
    """Something that must never happen. ``rule`` is its name in docs/rules.md."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text


class Message(NamedTuple):
    """A message of a producer to a partition."""

    producer: str
    number: int

    def __str__(self) -> str:
        return f"message {self.number} of {self.producer}"


class PartitionHistory:
    """What clients were told of one partition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: dict[int, Message] = {}
        """By offset: what was acknowledged or read."""
        self.offsets: dict[Message, int] = {}
        """The inverse."""
        self._acknowledged_stop = 0

    @property
    def end(self) -> int:
        """The offset behind the last that is known."""
        return max(self.messages, default=-1) + 1

    @property
    def acknowledged_stop(self) -> int:
        """The offset behind the highest that was acknowledged or read: no end that is told later lies below."""
        return self._acknowledged_stop

    def acknowledged(self, message: Message, offset: int) -> None:
        """A producer was told that its message has this offset."""
        self._holds(message, offset)

    def read(self, message: Message, offset: int) -> None:
        """A reader was given this message at this offset."""
        self._holds(message, offset)

    def told_end(self, end: int, asked_at_stop: int) -> None:
        """A client was told that the partition ends here; ``asked_at_stop``: :attr:`acknowledged_stop` when it
        asked."""
        if end < asked_at_stop:
            raise BrokenHistoryError("K3", f"{self.name} is said to end at {end}; {asked_at_stop} were known")

    def _holds(self, message: Message, offset: int) -> None:
        known = self.messages.setdefault(offset, message)
        if known != message:
            raise BrokenHistoryError("K2", f"{self.name}: offset {offset} has {message} and {known}")
        at = self.offsets.setdefault(message, offset)
        if at != offset:
            raise BrokenHistoryError("K4", f"{self.name}: {message} has the offsets {at} and {offset}")
        before = self.offsets.get(Message(message.producer, message.number - 1), -1)
        behind = self.offsets.get(Message(message.producer, message.number + 1), offset + 1)
        if not before < offset < behind:
            raise BrokenHistoryError(
                "K4", f"{self.name}: {message} has the offset {offset}, those beside it {before} and {behind}"
            )
        self._acknowledged_stop = max(self._acknowledged_stop, offset + 1)

    def check_whole(self, found: Mapping[int, Message]) -> None:
        """A reader has got all of it: ``found``, by offset."""
        for offset, message in sorted(self.messages.items()):
            if offset not in found:
                raise BrokenHistoryError("K3", f"{self.name}: {message} had the offset {offset} and is lost")
        if sorted(found) != list(range(len(found))):
            raise BrokenHistoryError("K2", f"{self.name}: not all of its {len(found)} offsets follow each other")
        expected: dict[str, int] = {}
        for offset in range(len(found)):
            producer, number = found[offset]
            if number != expected.get(producer, 0):
                wanted = Message(producer, expected.get(producer, 0))
                raise BrokenHistoryError("K4", f"{self.name}: {found[offset]} is at {offset} where {wanted} must be")
            expected[producer] = number + 1


class PartitionReader:
    """One reader of a partition: it gets each offset once and in order."""

    def __init__(self, partition: PartitionHistory, position: int = 0) -> None:
        self.partition = partition
        self.position = position
        """The offset that it is given next."""

    def polled(self, message: Message, offset: int) -> None:
        """It was given this message."""
        if offset != self.position:
            name = self.partition.name
            raise BrokenHistoryError("K7", f"{name}: a reader got offset {offset} where {self.position} is next")
        self.partition.read(message, offset)
        self.position += 1


class CommitHistory:
    """What members were told of the committed offset of a group in one partition. Each of them commits no lower one
    than it was told, and makes no commit whose fate it does not know before the next one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known = NO_OFFSET
        """Of the commits that were answered, and the offsets that were told, the highest."""
        self._asked = {NO_OFFSET}

    def asked(self, offset: int) -> None:
        """A member is about to commit this offset."""
        self._asked.add(offset)

    def answered(self, offset: int) -> None:
        """A member was told that this commit is durable."""
        self.known = max(self.known, offset)

    def told(self, offset: int, known_when_asked: int) -> None:
        """A client was told that this offset is committed. ``known_when_asked``: :attr:`known` when it asked."""
        if offset < known_when_asked:
            raise BrokenHistoryError(
                "K10", f"{self.name}: offset {offset} is said to be committed; {known_when_asked} was before"
            )
        if offset not in self._asked:
            raise BrokenHistoryError("K10", f"{self.name}: no member has committed offset {offset}")
        self.known = max(self.known, offset)


class Commit(NamedTuple):
    """A commit that was sent."""

    member: str
    generation: int
    offsets: Mapping[int, int]
    """By partition."""
    newest: int
    """The newest generation that was given out when it was sent."""


class GroupHistory:
    """What the members of a group were told."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.commits = [CommitHistory(f"group {name}, partition {one}") for one in range(partitions)]
        self.newest = -1
        """The newest generation that was given out."""
        self._owners: dict[tuple[int, int], str] = {}

    def given(self, member: str, generation: int, partitions: Collection[int]) -> None:
        """A member was given these partitions in this generation."""
        self.newest = max(self.newest, generation)
        for partition in partitions:
            owner = self._owners.setdefault((generation, partition), member)
            if owner != member:
                raise BrokenHistoryError(
                    "K11", f"group {self.name}, generation {generation}: {owner} and {member} own partition {partition}"
                )

    def commits_now(self, member: str, generation: int, offsets: Mapping[int, int]) -> Commit:
        """A member is about to commit."""
        for partition, offset in offsets.items():
            self.commits[partition].asked(offset)
        return Commit(member, generation, offsets, self.newest)

    def committed(self, commit: Commit) -> None:
        """The member was told that its commit is durable."""
        if commit.generation < commit.newest:
            raise BrokenHistoryError(
                "K10",
                f"group {self.name}: a commit of {commit.member} in generation {commit.generation} was answered, and "
                f"generation {commit.newest} had been given out before it was sent",
            )
        for partition, offset in commit.offsets.items():
            self.commits[partition].answered(offset)

    def found(self, partition: int, offset: int, known_when_asked: int) -> None:
        """A client was told the committed offset of a partition."""
        self.commits[partition].told(offset, known_when_asked)
