"""Everything that a client needs to write: placement, recovery, takeover, and the writers of ledgers.

A client makes it with its first writer, or when it first ends a ledger or a log. One that only reads does without:
loading these modules takes as long as everything else that a short command does.
"""

import random
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from octavo.client.arguments import ORDINARY, LedgerKind, Protection
from octavo.client.choose.arrangement import Spread
from octavo.client.choose.placer import Placer
from octavo.client.departed_bookies import Departures
from octavo.client.log.seam.access import NewSegment
from octavo.client.new_ledger import new_metadata
from octavo.client.options import ClientOptions
from octavo.client.pending_creations import delete_created
from octavo.client.recover.ender import Ender
from octavo.client.terms.streams import Streams
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.core import Core, WriterTools, created_at_ms
from octavo.client.write.explicit_writer import ExplicitIdWriter
from octavo.client.write.kinds.ledgers import ledger_core, write_ledger
from octavo.client.write.writer import LedgerWriter
from octavo.metadata.ledger.model import LOG_KEY, LedgerMetadata
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.protocol.entries import LedgerSecrets, derive_secrets
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import LedgerId
from octavo.protocol.quorums import Quorums

_SALT_BYTES: Final = 16

type MakeWriter[W] = Callable[[Versioned[LedgerMetadata], LedgerSecrets], W]
"""Makes what writes a ledger that was created just now."""


class Writing:
    """See the module. Of one client."""

    def __init__(
        self,
        store: MetadataStore,
        pool: ConnectionPool,
        options: ClientOptions,
        *,
        rng: random.Random,
        wall_clock: Callable[[], datetime],
        client_name: str,
        token: Callable[[], str],
        check_open: Callable[[], None],
        on_writer_closed: Callable[[LedgerWriter], None],
    ) -> None:
        self._store = store
        self._options = options
        self._rng = rng
        self._wall_clock = wall_clock
        self._token = token
        self._check_open = check_open
        self._on_writer_closed = on_writer_closed
        self._departures = departures = Departures(store)
        self._placer = placer = Placer(
            store, rng=rng, least=Spread(*options.spread_min), watched=pool.registrations,
            quarantined=lambda: pool.quarantined() | departures.departed,
        )  # fmt: skip
        self._tools = WriterTools(store, pool, placer, options, wall_clock)
        self.ender = Ender(
            store=store, pool=pool, placer=placer, options=options, rng=rng,
            wall_clock=wall_clock, client_name=client_name,
        )  # fmt: skip
        """Gives ledgers and streams their end."""
        self.streams = Streams(
            self._tools, self.ender.taker, token=token, salt=self._salt,
            wall_clock=wall_clock, on_core=departures.tell,
        )  # fmt: skip
        """The operations on streams."""

    async def close(self) -> None:
        """Tell the writers of departed bookies no more."""
        await self._departures.close()

    async def create[W: (LedgerWriter, ExplicitIdWriter, Core)](
        self,
        ledger_id: LedgerId,
        quorums: Quorums,
        protection: Protection,
        *,
        custom_metadata: Mapping[str, bytes],
        make_writer: MakeWriter[W],
        kind: LedgerKind = ORDINARY,
    ) -> W:
        """Create a ledger, and give what writes it. If that fails or is cancelled, there is no ledger."""
        ensemble = await self._placer.new_ensemble(quorums)
        secrets = derive_secrets(protection.password, ledger_id)
        metadata = new_metadata(
            ledger_id, quorums, protection, secrets, kind, ensemble=ensemble, custom_metadata=custom_metadata,
            created_at=self._wall_clock(), salt=self._salt(), writer_token=self._token(),
        )  # fmt: skip
        try:
            version = await self._store.create_ledger(metadata)
            self._check_open()
            return make_writer(Versioned(metadata, version), secrets)
        except BaseException:
            await delete_created(self._store, ledger_id, seconds=self._options.close_timeout_seconds)
            raise

    async def create_segment(self, segment: NewSegment) -> Core:
        """Create a ledger as a segment of a log, whose writer closes it."""

        def make_core(ledger: Versioned[LedgerMetadata], secrets: LedgerSecrets) -> Core:
            core = ledger_core(ledger, secrets, self._tools, segment.front)
            core.seal_not_before(max(segment.sealed_at_ms_min, created_at_ms(ledger.value)))
            self._departures.tell(core)
            return core

        custom = {LOG_KEY: segment.log_name.encode()}
        return await self.create(
            segment.ledger_id, segment.quorums, segment.protection, custom_metadata=custom, make_writer=make_core
        )

    def writer(
        self,
        ledger: Versioned[LedgerMetadata],
        secrets: LedgerSecrets,
        *,
        on_failure: Callable[[OctavoError], object] | None = None,
    ) -> LedgerWriter:
        """The writer of a ledger that was created just now."""
        writer = write_ledger(ledger, secrets, self._tools, on_close=self._on_writer_closed, on_failure=on_failure)
        self._departures.tell(writer._core)
        return writer

    def explicit_writer(self, ledger: Versioned[LedgerMetadata], secrets: LedgerSecrets) -> ExplicitIdWriter:
        """As :meth:`writer`, for a ledger whose ids the application gives."""

        def make_writer(on_failure: Callable[[OctavoError], None]) -> LedgerWriter:
            return self.writer(ledger, secrets, on_failure=on_failure)

        return ExplicitIdWriter(make_writer, self._options)

    def _salt(self) -> bytes:
        return self._rng.randbytes(_SALT_BYTES)
