"""Questions to the metadata for which a request waits: whether a ledger that is deleted here exists, whether a key
is that of its ledger, and whether a ledger is private of which that may have been lost."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from octavo.bookie.server.ledger_privacy import PrivacyUnknownError
from octavo.bookie.server.lookups import LedgerKeyUnverifiedError
from octavo.bookie.server.new_ledgers import NewLedgers
from octavo.bookie.server.service import BookieService
from octavo.protocol.errors import NoSuchLedgerError, OctavoError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Add, Force, ListEntries, Missing, Read, ReadLac, Request, Subscribe, WriteLac

type Question = Callable[[], Awaitable[None]]
"""Returns when the request may be tried again; what it raises refuses the request."""

QUESTIONS_MAX: Final = 3
"""Most questions for one request: one of each."""


_NAMES_A_LEDGER: Final = (Add, Read, ReadLac, WriteLac, Force, ListEntries, Missing, Subscribe)


class Questions:
    """See the module."""

    def __init__(self, service: BookieService) -> None:
        self._service = service
        self._storage = service.storage

    def about(self, request: Request, refusal: OctavoError) -> Question | None:
        """The question whose answer may lift this refusal; None: nothing."""
        if isinstance(refusal, NoSuchLedgerError):
            return partial(self._check_revival, request, refusal)
        if isinstance(refusal, LedgerKeyUnverifiedError):
            return self.about_key(request, refusal.keys)
        if isinstance(refusal, PrivacyUnknownError):
            return partial(self._learn_privacy, request)
        return None

    def about_key(self, request: Request, new_ledgers: NewLedgers) -> Question:
        """The request is the first that writes or fences a ledger here, or reads a private one whose key is not pinned:
        the metadata must have the ledger, with this key."""
        return partial(self._check_existence, request, new_ledgers)

    async def _check_revival(self, request: Request, refusal: NoSuchLedgerError) -> None:
        """The request has reached a deleted ledger: it is refused only if the metadata do not have the ledger either
        (rule B5)."""
        assert isinstance(request, _NAMES_A_LEDGER), "they name it"
        if not await self._service.revive(LedgerId(request.ledger_id)):
            raise refusal

    async def _check_existence(self, request: Request, new_ledgers: NewLedgers) -> None:
        assert isinstance(request, Add | Read | ReadLac | WriteLac | Subscribe), "only these bring the key of a ledger"
        ledger_id = LedgerId(request.ledger_id)
        await new_ledgers.verify(ledger_id, request.ledger_key)
        if self._storage.ledgers.is_deleted(ledger_id):
            await self._service.revive(ledger_id)

    async def _learn_privacy(self, request: Request) -> None:
        """The request reads a ledger of which the bookie may have lost that it is private (rule S3)."""
        assert isinstance(request, Read | ReadLac | ListEntries | Missing | Subscribe), "they read it"
        await self._service.privacy.learn(LedgerId(request.ledger_id))
