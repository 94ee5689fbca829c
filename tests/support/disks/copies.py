"""A bookie's storage with its copies, without a bookie around it."""

from functools import partial
from pathlib import Path

from octavo.bookie.copies.local_storage import LedgerCopies
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.offline.check import Finding, OfflineCheck
from octavo.bookie.offline.layout import Layout
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.bookie.upkeep.metadata_check import KnownStart, MetadataCheck
from octavo.bookie.upkeep.relieved import RELIEF_RELEASE
from octavo.bookie.upkeep.replaced import LEDGERS_PER_ROUND, ReplacedCopies
from octavo.metadata import Cookie, MetadataStore
from octavo.metadata.updates.cluster_release import Release
from octavo.protocol.errors import BookieReadOnlyError
from octavo.protocol.ids import BookieId, LedgerId
from support.disks.faulty_filesystem import MemoryFileSystem

SMALL = StorageSettings(
    cache_bytes_max=20_000,
    entry_log_bytes=30_000,
    checkpoint_journal_bytes=400_000,
    checkpoint_seconds=3600,
    journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0),
)
DATA, JOURNAL = Path("/bookie/data"), Path("/bookie/journal")
BOOKIE = BookieId("b1")


class StorageHost:
    """The storage of bookie :data:`BOOKIE` on a file system, with a metadata store."""

    def __init__(
        self,
        filesystem: MemoryFileSystem,
        store: MetadataStore,
        *,
        keep_seconds: float = 0.0,
        ledgers_per_round: int = LEDGERS_PER_ROUND,
        relief_release: Release = RELIEF_RELEASE,
    ) -> None:
        self._relief_release = relief_release
        self._ledgers_per_round = ledgers_per_round
        self.filesystem = filesystem
        self.store = store
        self.full = False
        """Whether the disks have no room for copies."""
        self._keep_seconds = keep_seconds
        self._cut_off: list[Storage] = []
        """Storages whose power was cut: their tasks hang, and must not be collected while they do."""
        self.storage: Storage
        self.copies: LedgerCopies
        self.replaced: ReplacedCopies

    async def start(self) -> "StorageHost":
        if await self.store.read_cookie(BOOKIE) is None:
            await self.store.create_cookie(Cookie(bookie_id=BOOKIE, generation=1, address="h:1", body=b"token"))
        storage = self.storage = await Storage.open(
            self.filesystem,
            directory=DATA,
            journal_directory=JOURNAL,
            settings=SMALL,
            on_fatal=partial(_failed, self.filesystem),
        )
        check = MetadataCheck(self.store, KnownStart(BOOKIE, await self.store.cluster_id(), 1))
        self.replaced = ReplacedCopies(
            storage,
            self.store,
            check,
            BOOKIE,
            keep_seconds=self._keep_seconds,
            ledgers_per_round=self._ledgers_per_round,
            relief_release=self._relief_release,
        )
        self.copies = LedgerCopies(storage, revive=self._revive, check_space=self._check_space, replaced=self.replaced)
        return self

    async def restart(self) -> None:
        """Stop, and start again."""
        await self.storage.close()
        await self.start()

    async def cut_power(self, seed: int) -> None:
        """Start again with what is left on the disks; the storage before never gets any further."""
        self._cut_off.append(self.storage)
        self.filesystem = self.filesystem.after_crash(seed=seed)
        await self.start()

    async def offline_findings(self) -> list[Finding]:
        """What `octavo bookie check` finds wrong on the disks, but for the cookie, which there is none of."""
        check = OfflineCheck(self.filesystem, Layout.of(DATA, JOURNAL))
        return [finding async for finding in check.findings() if "cookie" not in str(finding.path)]

    async def _revive(self, ledger_id: LedgerId) -> bool:
        if await self.store.confirm_absent([ledger_id]):
            return False
        await self.storage.writer.revive(ledger_id)
        return True

    def _check_space(self) -> None:
        if self.full:
            raise BookieReadOnlyError("read-only", may_have_happened=False)


def _failed(filesystem: MemoryFileSystem, error: BaseException) -> None:
    if not filesystem.crashed.is_set():  # afterwards it is the test that cancels everything
        raise AssertionError("the storage failed") from error
