"""Repair in one bookie: puts the parts together and runs them beside the bookie.

Every bookie is a target and works off its own doubt and damage; every bookie stands for election as auditor.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import structlog
from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.recover.ender import Ender
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.cluster.registration import BookieRegistration
from octavo.metadata.cluster.repair_states import DOCUMENT, Condition, RepairStates, decode_states
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.store.follow import follow
from octavo.metadata.store.values import Versioned
from octavo.protocol.adaptive_rate import AdaptiveRate
from octavo.protocol.entries import derive_secrets, verifier_matches
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId
from octavo.repair.audit.auditor import Audit, Auditor
from octavo.repair.base.balance_survey import FACT as BALANCE_FACT
from octavo.repair.base.keep_running import keep_running
from octavo.repair.base.local_bookie import LocalBookie
from octavo.repair.base.settings import RepairSettings
from octavo.repair.copy.batched_naming import Naming
from octavo.repair.copy.jobs import Jobs
from octavo.repair.copy.pacing import Pace
from octavo.repair.copy.puller import Puller
from octavo.repair.copy.target import Target
from octavo.repair.doubt.refill import Refill

log = structlog.get_logger("octavo.repair")

PUBLISH_SECONDS: Final = 5.0
"""Time between two updates of the facts that the bookie shows."""

RETRY_SECONDS: Final = 1.0
"""Pause before metadata that cannot be read are read again."""

_TOKEN_BITS = 128


class Agent:
    """See the module. ``passwords``: with which abandoned ledgers may be recovered, besides the empty one. ``options``:
    how it connects to the other bookies."""

    def __init__(
        self,
        bookie: LocalBookie,
        settings: RepairSettings,
        *,
        passwords: Sequence[bytes] = (),
        options: ClientOptions | None = None,
    ) -> None:
        self._bookie = bookie
        self._settings = settings
        self._passwords = (b"", *passwords)
        self._options = options or ClientOptions()
        self._states = RepairStates()
        self._facts: dict[str, str | int | float | bool] = {}
        self._pool = ConnectionPool(bookie.store, cluster_id=bookie.cluster_id, options=self._options, rng=bookie.rng)
        control = AdaptiveRate(
            per_second_min=settings.bytes_per_second_min,
            per_second_max=settings.bytes_per_second,
        )
        self._puller = Puller(
            bookie.copies, self._pool, Pace(control, bookie.take_add_delay_seconds),
            request_timeout_seconds=settings.request_timeout_seconds,
        )  # fmt: skip
        self._naming = Naming(bookie.store, bookie.owns_id)
        self._jobs = Jobs(
            bookie, self._pool, self._puller, self._naming,
            states=lambda: self._states, token=f"{bookie.rng.getrandbits(_TOKEN_BITS):032x}",
        )  # fmt: skip
        self._target = Target(bookie.bookie_id, bookie.store, self._jobs, self._puller.copied, settings)
        self._refill = Refill(bookie, self._jobs, settings)
        self._auditor = Auditor(bookie, self._new_audit, self._show)
        placer = Placer(
            bookie.store, rng=bookie.rng,
            quarantined=lambda: self._pool.quarantined() | self._states.departed, watched=self._pool.registrations,
        )  # fmt: skip
        self._ender = Ender(
            store=bookie.store, pool=self._pool, placer=placer, options=self._options, rng=bookie.rng,
            wall_clock=self._now, client_name=f"octavo repair, bookie {bookie.bookie_id}",
        )  # fmt: skip

    @property
    def entries_copied(self) -> int:
        """Entries that this bookie has copied in since it started."""
        return self._puller.copied.entries

    @property
    def waits_because(self) -> str | None:
        """Why the metadata may be older than the data, while the doubt of this bookie waits for that to end."""
        return self._refill.waits_because

    async def run(self) -> None:
        """Work until cancelled. A part that fails begins again, and the others go on meanwhile (rule A12)."""
        parts = {
            "target": self._target.run, "doubt": self._refill.work_off_doubt, "damage": self._refill.mend_damage,
            "auditor": self._auditor.run, "states": self._follow_states, "registrations": self._follow_registrations,
            "facts": self._publish,
        }  # fmt: skip
        try:
            async with asyncio.TaskGroup() as group:
                for name, part in parts.items():
                    group.create_task(keep_running(name, part))
        finally:
            await self._naming.close()
            await self._pool.close()

    def _new_audit(self) -> Audit:
        return Audit(self._bookie, self._pool, self._settings, recover=self._recover, show=self._show)

    async def _follow_states(self) -> None:
        me, was_draining = self._bookie.bookie_id, False

        async def take(found: Versioned[bytes] | None) -> None:
            nonlocal was_draining
            self._states = decode_states(None if found is None else found.value)
            draining = self._states.condition_of(me) is Condition.DRAINING
            if draining is not was_draining:
                await self._bookie.set_draining(draining)
                was_draining = draining

        def on_error(error: OctavoError) -> None:
            log.warning("the states of the bookies cannot be read: those known before stay", reason=error.message)

        await follow(
            lambda: self._bookie.store.watch_document(DOCUMENT), take, on_error=on_error, retry_seconds=RETRY_SECONDS
        )

    async def _follow_registrations(self) -> None:
        boots: dict[str, str] = {}

        async def take(registrations: Mapping[BookieId, BookieRegistration]) -> None:
            nonlocal boots
            before, boots = boots, {name: one.boot_id for name, one in registrations.items()}
            if any(before.get(name) != boot_id for name, boot_id in boots.items()):
                self._refill.try_again()

        def on_error(error: OctavoError) -> None:
            log.warning("the registered bookies cannot be read", reason=error.message)

        await follow(self._bookie.store.watch_bookies, take, on_error=on_error, retry_seconds=RETRY_SECONDS)

    async def _publish(self) -> None:
        while True:
            self._show(
                {
                    "repair_entries_copied": self.entries_copied,
                    "repair_bytes_copied": self._puller.copied.bytes,
                    "repair_conflicts": self._naming.conflicts,
                    "repair_ledgers_named": self._jobs.ledgers_named,
                    "repair_entries_short": self._jobs.entries_short,
                    "repair_moves": self._jobs.balancing.moved,
                    BALANCE_FACT: True,
                }
            )
            await asyncio.sleep(PUBLISH_SECONDS)

    def _show(self, facts: Mapping[str, str | int | float | bool]) -> None:
        self._facts |= facts
        self._bookie.publish(self._facts)

    async def _recover(self, metadata: StoredLedger) -> bool:
        """Recover an abandoned ledger, or lay an abandoned stream to rest (rule O3), if one of the passwords fits;
        returns whether it has an end now."""
        ledger_id = metadata.ledger_id
        try:
            await self._bookie.check_metadata()
        except OctavoError as error:  # older metadata name bookies that lack what was acknowledged since (rule D5)
            log.warning("abandoned ledger is not recovered now", ledger=int(ledger_id), reason=error.message)
            return False
        key = metadata.key_at(metadata.last_fragment.first_entry_id)
        for password in self._passwords:
            secrets = derive_secrets(password, ledger_id)
            if verifier_matches(key.verifier, secrets, key.digest, key.salt):
                break
        else:
            log.warning("abandoned ledger needs a password", ledger=int(ledger_id))
            return False
        try:
            current = await self._bookie.store.read_either(ledger_id)
            if current.value.written_part != metadata.written_part:
                return False  # it has changed since it was looked at: it is not abandoned
            return (await self._ender.end(current, secrets, may_owe=True)).value.has_end
        except OctavoError as error:
            log.warning("abandoned ledger could not be recovered", ledger=int(ledger_id), reason=error.message)
            return False

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._bookie.wall_clock(), UTC)
