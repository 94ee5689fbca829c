"""Changes of the document of a log that is a stream, and how each is decided when another client has changed it. Pure.

As in :mod:`octavo.client.log.chain.changes`, a change is a value with one method, ``decide(current)``.

=================  ====================  ==========================  =======================
change             MAKING                ACTIVE                      DELETED
=================  ====================  ==========================  =======================
MarkActive         write                 settled                     refuse
SetStreamRetention refuse                write                       refuse
RaiseFirst         refuse                write, or settled if not    refuse
                                         above what stands there, or
                                         the retention is another;
                                         refuse if its note is gone
NoteTruncation     refuse                write, or settled           refuse
ForgetTruncation   refuse                write, or settled if none   refuse
                                         is there, or another one
ForgetAbandoned    refuse                write, or settled if none   write, or settled
                                         is there
MarkStreamDeleted  write                 write                       settled
=================  ====================  ==========================  =======================

A refusal is :class:`NoSuchLogError`. Whether the document is still that of the log in question is seen by its log id
before a change decides.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final, Protocol

from octavo.client.log.documents.chain import Retention
from octavo.client.log.documents.effects import WriteDocument
from octavo.client.log.documents.states import LogState
from octavo.client.log.documents.stream import StreamLogDocument, Truncating
from octavo.client.log.seam.end_moved import end_moved
from octavo.metadata.ledger.decisions import Refuse, Settled
from octavo.protocol.errors import NoSuchLogError
from octavo.protocol.ids import LedgerId
from octavo.protocol.light_dataclass import dataclass

_MISSES_MAX: Final = 3
"""Looks for an abandoned stream that does not exist, before it is forgotten: its maker ends, or deletes it, long
before that."""


type StreamLogDecision = WriteDocument[StreamLogDocument] | Settled | Refuse


class StreamLogChange(Protocol):
    """Something a client wants of the document of a log that is a stream."""

    def decide(self, current: StreamLogDocument) -> StreamLogDecision:
        """The decision, given the stored document. Has no effects and may be called any number of times."""


@dataclass(frozen=True, slots=True)
class MarkActive:
    """The creator has made the stream: the log can be opened."""

    def decide(self, current: StreamLogDocument) -> StreamLogDecision:
        if current.state is LogState.DELETED:
            return _gone(current)
        if current.state is LogState.ACTIVE:
            return Settled()
        return WriteDocument(replace(current, state=LogState.ACTIVE))


@dataclass(frozen=True, slots=True)
class SetStreamRetention:
    """A client changes what retention drops."""

    retention: Retention

    def decide(self, current: StreamLogDocument) -> StreamLogDecision:
        if current.state is not LogState.ACTIVE:
            return _gone(current)
        if current.retention == self.retention:
            return Settled()
        return WriteDocument(replace(current, retention=self.retention))


@dataclass(frozen=True, slots=True)
class RaiseFirst:
    """A client truncates the log for its readers (rule P7)."""

    first_position: int
    noted: Truncating | None = None
    """What was noted before the end was looked at; None: the position is not above the end for certain."""
    retention: Retention | None = None
    """That by which the position was decided; None: a client has asked for it. Another one decides anew (rule P20)."""

    def decide(self, current: StreamLogDocument) -> StreamLogDecision:
        if current.state is not LogState.ACTIVE:
            return _gone(current)
        if self.first_position <= current.first_position or self.retention not in (None, current.retention):
            return Settled()
        if self.noted is None:
            return WriteDocument(replace(current, first_position=self.first_position))
        if current.truncating != self.noted:
            return end_moved(current.name)
        return WriteDocument(replace(current, first_position=self.first_position, truncating=None))


@dataclass(frozen=True, slots=True)
class NoteTruncation:
    """A client is about to truncate within the last fragment, and looks at the end after this (rule P7). It takes the
    place of any other such note: its client looks again."""

    truncating: Truncating

    def decide(self, current: StreamLogDocument) -> StreamLogDecision:
        if current.state is not LogState.ACTIVE:
            return _gone(current)
        if current.truncating == self.truncating:
            return Settled()
        return WriteDocument(replace(current, truncating=self.truncating))


@dataclass(frozen=True, slots=True)
class ForgetTruncation:
    """A leader begins: a truncation under way was decided by an end that may not hold any more. Or a client gives its
    own up."""

    only: Truncating | None = None
    """This one; None: any."""

    def decide(self, current: StreamLogDocument) -> StreamLogDecision:
        if current.state is not LogState.ACTIVE:
            return _gone(current)
        if current.truncating is None or self.only not in (None, current.truncating):
            return Settled()
        return WriteDocument(replace(current, truncating=None))


@dataclass(frozen=True, slots=True)
class ForgetAbandoned:
    """A client has looked for abandoned streams: some it has deleted, the others it did not find."""

    deleted: Collection[LedgerId]
    missing: Collection[LedgerId]

    def decide(self, current: StreamLogDocument) -> StreamLogDecision:
        if current.state is LogState.MAKING:
            return _gone(current)
        kept = []
        for one in current.abandoned:
            misses = one.misses + (one.ledger_id in self.missing)
            if one.ledger_id not in self.deleted and misses < _MISSES_MAX:
                kept.append(one._replace(misses=misses))
        if tuple(kept) == current.abandoned:
            return Settled()
        return WriteDocument(replace(current, abandoned=tuple(kept)))


@dataclass(frozen=True, slots=True)
class MarkStreamDeleted:
    """A client deletes the log. From now on no client can open it, and any may finish the deletion."""

    def decide(self, current: StreamLogDocument) -> StreamLogDecision:
        if current.state is LogState.DELETED:
            return Settled()
        return WriteDocument(replace(current, state=LogState.DELETED))


def _gone(current: StreamLogDocument) -> Refuse:
    return Refuse(NoSuchLogError(f"log {current.name} has been deleted, or is not made yet"))
