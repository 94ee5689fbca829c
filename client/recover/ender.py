"""Gives a ledger its end, or the current term of a stream, whichever of the two it is.

A client, the agent of repair and the command that accepts a loss all do the same: the ledger is recovered and closed
(:mod:`octavo.client.recover.recovery`), or the term gets its end, and no other one is opened
(:mod:`octavo.client.recover.stream_taker`).
"""

import random
from collections.abc import Callable, Collection
from datetime import datetime

from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.recover.recovery import Recoverer
from octavo.client.recover.stream_taker import StreamTaker
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.entries import LedgerSecrets
from octavo.protocol.ids import BookieId


class Ender:
    """See the module. For one client."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        pool: ConnectionPool,
        placer: Placer,
        options: ClientOptions,
        rng: random.Random,
        wall_clock: Callable[[], datetime],
        client_name: str,
    ) -> None:
        """The name and the clock of the client are noted in what it fences."""
        self.recoverer = Recoverer(
            store=store, pool=pool, placer=placer, options=options, rng=rng,
            wall_clock=wall_clock, client_name=client_name,
        )  # fmt: skip
        """Recovers ledgers."""
        self.taker = StreamTaker(
            store=store, pool=pool, placer=placer, options=options, rng=rng,
            wall_clock=wall_clock, client_name=client_name,
        )  # fmt: skip
        """Takes streams over."""

    async def end(
        self,
        current: Versioned[EitherMetadata],
        secrets: LedgerSecrets,
        *,
        without: Collection[BookieId] = (),
        unsure: Collection[BookieId] = (),
        may_owe: bool = False,
    ) -> Versioned[EitherMetadata]:
        """Give the last fragment in these metadata its end, and return what is stored then: a ledger that is closed, or
        a stream at rest, by this client or by another one.

        ``without``, ``unsure`` and ``may_owe``: as in :meth:`Recoverer.recover`. Of a stream no bookie may be unsure
        (rule T12), and what is missing is always owed. Raises as :meth:`Recoverer.recover` and
        :meth:`StreamTaker.lay_to_rest`.
        """
        metadata, version = current
        if isinstance(metadata, LedgerMetadata):
            ledger = Versioned(metadata, version)
            closed = await self.recoverer.recover(ledger, secrets, without=without, unsure=unsure, may_owe=may_owe)
            return Versioned(closed.value, closed.version)
        assert not unsure, "a bookie in doubt takes adds of later terms"
        rested = await self.taker.lay_to_rest(Versioned(metadata, version), secrets, without=without)
        return Versioned(rested.value, rested.version)
