"""The writer of a stream without a log: callers get futures of positions, as those of a ledger's writer get ids."""

from collections.abc import Callable

from octavo.client.terms.term import OpenedTerm
from octavo.client.write.core import Core, CoreFront, WriterTools
from octavo.client.write.writer import LedgerWriter
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.entries import LedgerSecrets
from octavo.protocol.quorums import Quorums


class TermWriter(LedgerWriter):
    """See the module. ``stream``: as just opened by this client. The properties and methods below are those
    of its :class:`~octavo.client.terms.term.OpenedTerm`."""

    _own: OpenedTerm

    def __init__(
        self,
        stream: Versioned[StreamMetadata],
        secrets: LedgerSecrets,
        tools: WriterTools,
        *,
        token: Callable[[], str],
    ) -> None:
        """``token`` gives a random token."""

        def make_core(front: CoreFront) -> Core:
            self._own = OpenedTerm(stream, secrets, tools, front, token=token, full_copies=None)
            return self._own.core

        super().__init__(tools, make_core)

    @property
    def term(self) -> int:
        """As :attr:`OpenedTerm.term`."""
        return self._own.term

    @property
    def stream(self) -> StreamMetadata:
        """As :attr:`OpenedTerm.stream`."""
        return self._own.stream

    @property
    def root(self) -> Versioned[StreamMetadata]:
        """As :attr:`OpenedTerm.root`."""
        return self._own.root

    @property
    def last_position(self) -> int:
        """As :attr:`OpenedTerm.last_position`."""
        return self._own.last_position

    @property
    def is_refused_for_doubt(self) -> bool:
        """As :attr:`OpenedTerm.is_refused_for_doubt`."""
        return self._own.is_refused_for_doubt

    async def roll(self) -> bool:
        """As :meth:`OpenedTerm.roll`."""
        return await self._own.roll()

    async def renew(self) -> None:
        """As :meth:`OpenedTerm.renew`."""
        await self._own.renew()

    async def change_quorums(self, quorums: Quorums) -> None:
        """As :meth:`OpenedTerm.change_quorums`."""
        await self._own.change_quorums(quorums)
