"""Taking a bookie out of the cluster for good, and taking that back while it is not complete (rules O4 and O5).

A retirement has two steps in the metadata: the bookie is *marked* as retired, and then its cookie is deleted. Only the
second step makes it final. An operator's Ctrl-C or a store that goes away may leave a mark with a cookie: the bookie
cannot start, and nothing relies on its absence yet. ``retire`` then goes on where it was, and ``unretire`` takes the
mark back.
"""

import asyncio
from collections.abc import Awaitable, Callable

from octavo.metadata.cluster.registration import Cookie
from octavo.metadata.cluster.repair_states import BookieCondition, Condition
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import MetadataConflictError, OctavoError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.operate.operators import (
    ATTEMPTS_MAX,
    NAMED_MAX,
    RepairRefusedError,
    change_states,
    check_known,
    ledgers_naming,
    marked_as_retired,
    read_states,
)


async def retire(
    store: MetadataStore, name: str, serves: Callable[[BookieId], Awaitable[bool]], *, lost: bool, now_ms: int
) -> list[LedgerId]:
    """Take a bookie out of the cluster for good; its id is never used again.

    The bookie is marked first and looked for in all ledgers then, so that a ledger that is created meanwhile is found
    now or by the auditor. Returns the first ledgers that name it: without ``lost`` the bookie is not retired then, with
    ``lost`` it is, and the auditor has its copies made again. Whatever ends this before the retirement is final, also a
    cancellation, takes the mark back.

    Raises:
        RepairRefusedError: the bookie is registered, or it ``serves``, that is, answers a hello: a bookie whose session
            has expired serves on (rule M2), and a loss may be accepted on the strength of its retirement (rule O4). Or
            the mark could not be taken back; :func:`unretire` does it later.
    """
    marked = await marked_as_retired(store, name)
    bookie_id = BookieId(name) if marked else await check_known(store, name)
    # Read before the mark: a start that does not see the mark has changed the cookie since, or registers.
    cookie = await store.read_cookie(bookie_id)
    if marked and cookie is None:
        return []  # it is retired already
    if bookie_id in await store.list_bookies():
        raise RepairRefusedError(f"bookie {name} is registered; stop it before you retire it")
    if await serves(bookie_id):
        where = "" if cookie is None else f" at {cookie.value.address}"
        raise RepairRefusedError(f"bookie {name} is not registered, but answers{where}; stop it before you retire it")
    before = None if marked else (await read_states(store)).bookies.get(bookie_id)
    retired = BookieCondition(Condition.RETIRED, now_ms)
    try:
        await change_states(store, lambda states: states.with_bookie(bookie_id, retired))
        named = [ledger_id async for ledger_id in ledgers_naming(store, bookie_id, count=NAMED_MAX)]
        if not named or lost:
            await _check_not_started(store, bookie_id, serves)
            if cookie is not None:
                await _delete_cookie(store, cookie)
            return named
    except BaseException as error:
        await _take_back_after(error, store, bookie_id, before)
        if isinstance(error, MetadataConflictError):
            raise RepairRefusedError(f"bookie {name} has been started meanwhile") from error
        raise
    await _take_back(store, bookie_id, before)
    return named


async def _delete_cookie(store: MetadataStore, cookie: Versioned[Cookie]) -> None:
    """Make the retirement final. Nothing registers as the bookie from then on (rule B10), but it may have just before:
    then the cookie is put back."""
    name = cookie.value.bookie_id
    await store.delete_cookie(name, cookie.version)
    if name in await store.list_bookies():
        await store.create_cookie(cookie.value)
        raise RepairRefusedError(f"bookie {name} has been started meanwhile; stop it before you retire it")


async def _check_not_started(
    store: MetadataStore, bookie_id: BookieId, serves: Callable[[BookieId], Awaitable[bool]]
) -> None:
    """It may have been starting when it was marked, and not have seen that: replaying a journal takes minutes."""
    if bookie_id in await store.list_bookies() or await serves(bookie_id):
        raise RepairRefusedError(f"bookie {bookie_id} has been started meanwhile; stop it before you retire it")


async def unretire(store: MetadataStore, name: str, *, now_ms: int) -> None:
    """Take back a retirement that is not final. The bookie may start again; until it does it counts as missing.

    Raises:
        RepairRefusedError: the bookie is not marked as retired, or its retirement is final: then ledgers may have been
            closed on the strength of its absence.
    """
    if not await marked_as_retired(store, name):
        await check_known(store, name)
        raise RepairRefusedError(f"bookie {name} is not retired")
    if not await _take_back(store, BookieId(name), BookieCondition(Condition.MISSING, now_ms)):
        raise RepairRefusedError(f"bookie {name} has been retired, and its id is never used again")


async def _take_back_after(
    error: BaseException, store: MetadataStore, bookie_id: BookieId, before: BookieCondition | None
) -> None:
    """Take the mark back because of ``error``, even if that is a cancellation."""
    try:
        await asyncio.shield(asyncio.ensure_future(_take_back(store, bookie_id, before)))
    except OctavoError as failure:
        why = "it was interrupted" if isinstance(error, asyncio.CancelledError) else str(error)
        raise RepairRefusedError(
            f"bookie {bookie_id} is not retired: {why}; it is still marked as retired and cannot start, because the "
            f"mark could not be taken back ({failure.message}): run `octavo repair unretire {bookie_id}`, or retire it "
            "again"
        ) from failure


async def _take_back(store: MetadataStore, bookie_id: BookieId, before: BookieCondition | None) -> bool:
    """Give a bookie that is marked as retired its condition from ``before``; False if the retirement is final.

    The cookie is written again first. So a deletion that is still under way, by its old version, fails, and the bookie
    is never without both cookie and mark.
    """
    for _ in range(ATTEMPTS_MAX):
        cookie = await store.read_cookie(bookie_id)
        if cookie is None:
            return False
        try:
            await store.compare_and_set_cookie(cookie.value, cookie.version)
        except MetadataConflictError:
            continue
        await change_states(
            store,
            lambda states: (
                states.with_bookie(bookie_id, before) if states.condition_of(bookie_id) is Condition.RETIRED else states
            ),
        )
        return True
    raise RepairRefusedError(f"the cookie of bookie {bookie_id} changed {ATTEMPTS_MAX} times meanwhile; try again")
