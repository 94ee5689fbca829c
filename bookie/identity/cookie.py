"""The identity of a bookie, and the check at every start that its disks are its own (rule B4).

Each of a bookie's directories holds a cookie file; the metadata store holds one cookie per bookie. Both contain a
*generation*, raised at every start, and the *token* of the start that raised it. A bookie whose disks were exchanged,
emptied, restored from a copy or reordered would report lost entries as absent; it must not start.

Both contain the *lineage*, too: a name for the data, made with the id, and made anew whenever the id is given to other
data (``reset-identity``, or a new start after the bookie was forgotten). Generations tell the starts of one lineage
apart, and only these: disks of another lineage may have counted any number of starts. Cookies of versions that knew no
lineages have none; the first start of this version makes one. From then on directories without one are accepted only
if generation and token are those in the metadata.

Every start sets the generation to one more than the highest found anywhere: first in every directory, then by
compare-and-set in the metadata. A crash in between leaves directories *ahead* of the metadata, never behind, and a
directory that is ahead is always accepted, so that no crash makes a bookie refuse its own disks. A copy made before a
completed start is behind. Two processes that start from copies of one disk end with the same generation and different
tokens: the one whose token is not in the metadata is refused. A copy taken and started between two starts of the
original has the same generation and token as the original; it is refused while the original runs
(``duplicate_start``), and cannot be detected otherwise.

The decision is a table, :data:`DECISIONS`, over the state of the directories and of the metadata.
"""

import enum
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import google_crc32c
import structlog
from octavo.bookie.disk.filesystem import FileSystem, read_file, replace_file
from octavo.bookie.identity.duplicate_start import find_running_original, wait_until_unregistered
from octavo.bookie.identity.errors import BookieStartError, DataWrongError
from octavo.bookie.identity.incarnation import Incarnation
from octavo.bookie.identity.older_metadata import Seen, hold_garbage_if_older
from octavo.metadata.cluster.registration import Cookie
from octavo.metadata.cluster.repair_states import DOCUMENT, Condition, decode_states
from octavo.metadata.store.leases import LEASE_SECONDS_DEFAULT
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.ids import BookieId
from octavo.protocol.light_dataclass import dataclass

log = structlog.get_logger("octavo.bookie")

COOKIE_NAME = "cookie"
"""File name of the cookie in each directory."""

COOKIE_FORMAT = 1

IGNORED_NAMES = frozenset({COOKIE_NAME, COOKIE_NAME + ".tmp", "lock", "lost+found", "admin.sock"})
"""Files that may be in a directory that counts as unused."""

START_ATTEMPTS_MAX = 5
"""Attempts at the compare-and-set: without a duplicate, it conflicts only with a late change of an earlier process."""


class IdentityRefusedError(DataWrongError):
    """The disks do not match the bookie's registration in the cluster. Another attempt fails the same way; the message
    has the remedy."""


@dataclass(frozen=True, slots=True)
class DirectoryCookie:
    """The cookie in one directory. ``role`` names the directory, ``roles`` all directories of the bookie, in order.
    ``served``: the bookie's storage has been created, so it may have acknowledged entries."""

    bookie_id: BookieId
    cluster_id: str
    generation: int
    token: str
    role: str
    roles: tuple[str, ...]
    served: bool = False
    confirmed_generation: int = 0
    """The highest generation that the metadata are known to have had. If they have a lower one now, they are an older
    copy (``older_metadata``)."""
    ledger_ids_stop: int = 0
    """All ledger ids below this had been allocated in these metadata. If they have allocated fewer now, they are an
    older copy."""
    lineage: str = ""
    """Names the data that these directories hold. Empty: written by a version that knew no lineages."""


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """The state of one directory. ``cookie`` is None when it is missing or ``damaged``; ``used`` when the directory
    holds anything but cookie and lock."""

    role: str
    cookie: DirectoryCookie | None
    damaged: bool
    used: bool


@dataclass(frozen=True, slots=True)
class MetadataState:
    """The bookie's cookie in the metadata store."""

    generation: int
    token: str
    lineage: str = ""


class Disks(enum.Enum):
    """The state of all directories together, without the new ones (empty, and named by no cookie). The first that
    applies, in this order."""

    DAMAGED = "the cookie in {where} is damaged"
    EMPTY = "the directories are empty"
    NO_COOKIE = "{where} holds files and no directory has a cookie"
    FOREIGN = "the cookies belong to another cluster ({where})"
    MIXED = "the cookies belong to different bookies, or directories were removed or exchanged ({where})"
    SOME_MISSING = "{where} has no cookie but other directories have: it was emptied, exchanged or is not mounted"
    BEGUN = "the first start was interrupted: the directories hold only cookies"
    WHOLE = "all cookies are present"


class MetadataComparison(enum.Enum):
    """How the directories compare with the metadata of the bookie that the cookies name."""

    ABSENT = "the cluster does not know this bookie"
    BEHIND = "every directory is ahead of the metadata: an earlier start was interrupted"
    SAME = "generation and token match those of the directories"
    OTHER_TOKEN = "another process started from a copy of these disks"
    AHEAD = "a directory is behind the metadata: it was restored from an old copy"
    OTHER_LINEAGE = "these directories are of an earlier bookie of this id, which has been given to other data since"


class Verdict(enum.Enum):
    """How a start continues."""

    FIRST_START = "create an id and write cookies"
    CONTINUE_FIRST_START = "keep the id and write the cookies again"
    START = "raise the generation"
    REFUSE_DISKS = "refuse because of the state of the directories"
    REFUSE_METADATA = "refuse because of the metadata"


_FIRST, _CONTINUE, _START = Verdict.FIRST_START, Verdict.CONTINUE_FIRST_START, Verdict.START
_DISKS, _METADATA = Verdict.REFUSE_DISKS, Verdict.REFUSE_METADATA

_ROWS: Final[Mapping[Disks, tuple[Verdict, ...]]] = {
    #                     ABSENT     BEHIND  SAME    OTHER   AHEAD   LINEAGE
    # Cookies are replaced atomically: a crash damages none.
    Disks.DAMAGED: (_DISKS, _DISKS, _DISKS, _DISKS, _DISKS, _DISKS),
    # Without a cookie there is no id, hence no metadata.
    Disks.EMPTY: (_FIRST, _DISKS, _DISKS, _DISKS, _DISKS, _DISKS),
    Disks.NO_COOKIE: (_DISKS, _DISKS, _DISKS, _DISKS, _DISKS, _DISKS),
    Disks.FOREIGN: (_DISKS, _DISKS, _DISKS, _DISKS, _DISKS, _DISKS),
    Disks.MIXED: (_DISKS, _DISKS, _DISKS, _DISKS, _DISKS, _DISKS),
    # Every directory gets its cookie before the metadata does.
    Disks.SOME_MISSING: (_DISKS, _DISKS, _DISKS, _DISKS, _DISKS, _DISKS),
    # The metadata may know a bookie that has stored nothing yet.
    Disks.BEGUN: (_CONTINUE, _START, _START, _METADATA, _METADATA, _METADATA),
    # In use but unknown: the metadata was lost, or the bookie was retired and its ledgers were copied elsewhere.
    Disks.WHOLE: (_METADATA, _START, _START, _METADATA, _METADATA, _METADATA),
}

DECISIONS: Final[Mapping[tuple[Disks, MetadataComparison], Verdict]] = {
    (disks, known): verdict
    for disks, row in _ROWS.items()
    for known, verdict in zip(MetadataComparison, row, strict=True)
}
"""A row for every combination."""

_REMEDIES: Final[Mapping[Disks | MetadataComparison, str]] = {
    Disks.DAMAGED: "check the disk, then start the bookie in doubt with `octavo bookie reset-identity DIR`",
    Disks.NO_COOKIE: "configure the bookie's own directories, or empty ones",
    Disks.FOREIGN: "check the metadata URI",
    Disks.MIXED: "configure the directories in their original places",
    Disks.SOME_MISSING: (
        "mount the missing directory, or start the bookie in doubt with `octavo bookie reset-identity DIR`"
    ),
    MetadataComparison.ABSENT: "check the metadata URI; a retired bookie starts again with empty directories",
    MetadataComparison.OTHER_TOKEN: (
        "start only the original, or start this copy in doubt with `octavo bookie reset-identity DIR`"
    ),
    MetadataComparison.AHEAD: (
        "use the newest disks, or start the bookie in doubt with `octavo bookie reset-identity DIR`"
    ),
    MetadataComparison.OTHER_LINEAGE: (
        "use the disks that the id was given to, or start a new bookie on empty directories; to give the id back to "
        "these disks, stop the other bookie and run `octavo bookie reset-identity DIR` here"
    ),
}


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict, the generation that a start writes, and the reason, which includes the remedy of a refusal."""

    verdict: Verdict
    bookie_id: BookieId | None
    generation: int
    reason: str


def decide(directories: Sequence[DirectoryState], cluster_id: str, metadata: MetadataState | None) -> Decision:
    """Decide whether a bookie may start with these directories, and how. ``metadata`` is the cookie that the metadata
    store has for the id that :func:`claimed_id` returns."""
    disks, where = _examine_disks(directories, cluster_id)
    known = _compare_with_metadata(directories, metadata)
    verdict = DECISIONS[disks, known]
    bookie_id = claimed_id(directories)
    generations = [state.cookie.generation for state in directories if state.cookie]
    highest = max([*generations, metadata.generation if metadata else 0], default=0)
    fact: Disks | MetadataComparison = known if verdict is Verdict.REFUSE_METADATA else disks
    reason = fact.value.format(where=where)
    if verdict in {Verdict.REFUSE_DISKS, Verdict.REFUSE_METADATA}:
        prefix = f"bookie {bookie_id}: " if bookie_id else ""
        reason = f"{prefix}{reason}; {_REMEDIES[fact]}"
    return Decision(verdict, bookie_id, highest + 1, reason)


def claimed_id(directories: Sequence[DirectoryState]) -> BookieId | None:
    """The bookie id in the first cookie found."""
    return next((state.cookie.bookie_id for state in directories if state.cookie), None)


def _examine_disks(directories: Sequence[DirectoryState], cluster_id: str) -> tuple[Disks, str]:
    """The state of the directories, and the role of the one that decides it."""
    assert directories, "a bookie has a directory"
    cookies = [state.cookie for state in directories if state.cookie]
    used = [state.role for state in directories if state.used]
    if damaged := [state.role for state in directories if state.damaged]:
        return Disks.DAMAGED, damaged[0]
    if not cookies:
        return (Disks.NO_COOKIE, used[0]) if used else (Disks.EMPTY, "")
    if foreign := [cookie.role for cookie in cookies if cookie.cluster_id != cluster_id]:
        return Disks.FOREIGN, foreign[0]
    roles = tuple(state.role for state in directories)
    for state in directories:
        cookie = state.cookie
        if cookie and (cookie.bookie_id, cookie.role, cookie.roles) != (
            cookies[0].bookie_id,
            state.role,
            roles[: len(cookie.roles)],
        ):
            return Disks.MIXED, state.role
    # A new directory follows the existing ones, is empty, and gets its cookie before any other cookie names it.
    fewest = min((cookie.roles for cookie in cookies), key=len)
    missing = [state.role for state in directories if state.cookie is None and (state.used or state.role in fewest)]
    if missing and used:
        return Disks.SOME_MISSING, missing[0]
    return (Disks.WHOLE if used else Disks.BEGUN), ""


def _compare_with_metadata(directories: Sequence[DirectoryState], metadata: MetadataState | None) -> MetadataComparison:
    cookies = [state.cookie for state in directories if state.cookie]
    if metadata is None or not cookies:
        return MetadataComparison.ABSENT
    lineages = {cookie.lineage for cookie in cookies if cookie.lineage}
    if len(lineages) > 1 or (metadata.lineage and lineages - {metadata.lineage}):
        return MetadataComparison.OTHER_LINEAGE
    if any(cookie.generation < metadata.generation for cookie in cookies):
        return MetadataComparison.AHEAD
    same = [cookie for cookie in cookies if cookie.generation == metadata.generation]
    if any(cookie.token != metadata.token for cookie in same):
        return MetadataComparison.OTHER_TOKEN
    if metadata.lineage and any(not cookie.lineage for cookie in cookies if cookie not in same):
        return MetadataComparison.OTHER_LINEAGE  # ahead, and nothing shows of what
    return MetadataComparison.SAME if same else MetadataComparison.BEHIND


# --- the file ------------------------------------------------------------------------------------------------------


def encode_cookie(cookie: DirectoryCookie) -> bytes:
    """A line of readable JSON and a line with its checksum."""
    text = json.dumps(
        {
            "format": COOKIE_FORMAT,
            "bookie_id": cookie.bookie_id,
            "cluster_id": cookie.cluster_id,
            "generation": cookie.generation,
            "token": cookie.token,
            "role": cookie.role,
            "roles": list(cookie.roles),
            "served": cookie.served,
            "confirmed_generation": cookie.confirmed_generation,
            "ledger_ids_stop": cookie.ledger_ids_stop,
            **({} if not cookie.lineage else {"lineage": cookie.lineage}),
        }
    ).encode()
    return text + b"\ncrc32c %08x\n" % google_crc32c.value(text)


def decode_cookie(content: bytes) -> DirectoryCookie | None:
    """The cookie of a file; None when it is damaged. Raises IdentityRefusedError for a later format."""
    text, separator, rest = content.partition(b"\n")
    if not separator or rest != b"crc32c %08x\n" % google_crc32c.value(text):
        return None
    try:
        fields = json.loads(text)
        if fields["format"] > COOKIE_FORMAT:
            raise IdentityRefusedError(
                f"the cookie has format {fields['format']}, this version reads up to {COOKIE_FORMAT}: "
                "start the version that wrote it"
            )
        return DirectoryCookie(
            BookieId(str(fields["bookie_id"])),
            str(fields["cluster_id"]),
            int(fields["generation"]),
            str(fields["token"]),
            str(fields["role"]),
            tuple(map(str, fields["roles"])),
            bool(fields.get("served", False)),
            int(fields.get("confirmed_generation", 0)),
            int(fields.get("ledger_ids_stop", 0)),
            str(fields.get("lineage", "")),
        )
    except (ValueError, TypeError, KeyError):
        return None


async def read_directory_state(
    filesystem: FileSystem, role: str, directory: Path, *, nested: frozenset[str] = frozenset()
) -> DirectoryState:
    """The state of a directory, which is created when missing. ``nested``: names in it that lead to other directories
    of the bookie, which are read separately. Raises OSError."""
    await filesystem.make_directory(directory)
    names = await filesystem.list_directory(directory)
    cookie = None
    if COOKIE_NAME in names:
        cookie = decode_cookie(await read_file(filesystem, directory / COOKIE_NAME))
    return DirectoryState(
        role,
        cookie,
        damaged=COOKIE_NAME in names and cookie is None,
        used=not (IGNORED_NAMES | nested).issuperset(names),
    )


async def write_directory_cookie(filesystem: FileSystem, directory: Path, cookie: DirectoryCookie) -> None:
    """Replace the cookie durably. Raises OSError."""
    await replace_file(filesystem, directory / COOKIE_NAME, encode_cookie(cookie))


# --- a start -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """The bookie's identity since this start."""

    bookie_id: BookieId
    cluster_id: str
    generation: int
    first_start: bool
    token: str
    served: bool
    """The bookie has been ready to serve before, so its storage must exist."""
    ledger_ids_stop: int = 0
    """All ledger ids below this have been allocated."""
    lineage: str = ""

    @property
    def incarnation(self) -> Incarnation:
        """The facts that the cookie in the metadata must name for this start to own the id."""
        return Incarnation(self.bookie_id, self.lineage, self.generation, self.token)


def seen_by(cookies: Sequence[DirectoryCookie]) -> Seen:
    """The evidence about the metadata in these cookies together."""
    return Seen(
        max((cookie.confirmed_generation for cookie in cookies), default=0),
        max((cookie.ledger_ids_stop for cookie in cookies), default=0),
    )


async def claim_identity(
    filesystem: FileSystem,
    directories: Mapping[str, Path],
    store: MetadataStore,
    *,
    address: str,
    rng: random.Random,
    software: str = "",
    pinned_id: BookieId | None = None,
    lease_seconds: float = LEASE_SECONDS_DEFAULT,
) -> Identity:
    """Check the directories (role -> path, in a fixed order) against the cluster, and raise the generation in both.

    Call it with the directories locked, before anything else is written there and before the bookie listens: any
    process that answers under the bookie's id is then another one. Directories may be nested or identical.
    ``pinned_id`` is the id that the bookie must have; without it a new bookie makes one. ``lease_seconds``: how long a
    registration outlives its process.

    Raises IdentityRefusedError; BookieStartError while another process may be the bookie; OSError; and
    MetadataUnavailableError (then nothing is lost: start again).
    """
    directories = by_path(directories)
    nested = {
        role: frozenset(
            other.relative_to(path).parts[0]
            for other in directories.values()
            if other != path and other.is_relative_to(path)
        )
        for role, path in directories.items()
    }
    cluster_id = await store.cluster_id()
    for _ in range(START_ATTEMPTS_MAX):
        states = [
            await read_directory_state(filesystem, role, path, nested=nested[role])
            for role, path in directories.items()
        ]
        claimed = claimed_id(states)
        known = await store.read_cookie(claimed) if claimed else None
        metadata = None if known is None else _state_of(known.value)
        decision = decide(states, cluster_id, metadata)
        if decision.verdict in {Verdict.REFUSE_DISKS, Verdict.REFUSE_METADATA}:
            raise IdentityRefusedError(decision.reason)
        if claimed and (other := await find_running_original(store, claimed, cluster_id, software)):
            remedy = (
                "to move the bookie here, stop the original first; otherwise start a new bookie on empty directories"
            )
            if not other.certain:
                raise BookieStartError(f"{other.where}; these directories may be a copy of its directories; {remedy}")
            raise IdentityRefusedError(f"{other.where}, and these directories are a copy of its directories; {remedy}")
        await _check_pin(store, pinned_id, claimed, next(iter(directories.values())))
        if claimed is None:
            await _report_known_address(store, address)
        bookie_id = decision.bookie_id or pinned_id or BookieId(f"bookie-{rng.getrandbits(48):012x}")
        await check_not_retired(store, bookie_id)
        if known is None:
            # Nothing tells a bookie of this id, were it still there, that the id is not its own any more.
            await wait_until_unregistered(store, bookie_id, seconds=2 * lease_seconds)
        token = new_token(rng)
        lineage = _lineage_of(states, metadata) or new_token(rng)
        served = any(state.cookie.served for state in states if state.cookie)
        seen = seen_by([state.cookie for state in states if state.cookie])
        ids_stop = await hold_garbage_if_older(store, bookie_id, known.value.generation if known else 0, seen)
        roles_without_cookie = {state.role for state in states if state.cookie is None}
        for role, path in sorted(directories.items(), key=lambda item: item[0] not in roles_without_cookie):
            cookie = DirectoryCookie(
                *(bookie_id, cluster_id, decision.generation, token, role, tuple(directories), served),
                confirmed_generation=seen.generation,
                ledger_ids_stop=seen.ledger_ids_stop,
                lineage=lineage,
            )
            await write_directory_cookie(filesystem, path, cookie)
        current = known.value if known else Cookie(bookie_id=bookie_id, generation=0, address=address)
        wanted = replace(current, generation=decision.generation, address=address, body=token.encode(), lineage=lineage)
        try:
            if known is None:
                await store.create_cookie(wanted)
            else:
                await store.compare_and_set_cookie(wanted, known.version)
        except MetadataConflictError:
            # Another process changed the cookie. The next check accepts the change only if an earlier start of this
            # bookie made it.
            continue
        first_start = decision.verdict is not Verdict.START
        return Identity(bookie_id, cluster_id, decision.generation, first_start, token, served, ids_stop, lineage)
    raise IdentityRefusedError(
        f"the bookie's cookie in the metadata changed {START_ATTEMPTS_MAX} times during the start: "
        "another process runs with the same identity; stop it"
    )


def new_token(rng: random.Random) -> str:
    """A name that nothing else has."""
    return f"{rng.getrandbits(64):016x}"


def _state_of(cookie: Cookie) -> MetadataState:
    return MetadataState(cookie.generation, cookie.body.decode("ascii", "replace"), cookie.lineage)


def _lineage_of(states: Sequence[DirectoryState], metadata: MetadataState | None) -> str:
    """The lineage of directories that may start; empty if it has to be made."""
    named = (state.cookie.lineage for state in states if state.cookie and state.cookie.lineage)
    return next(named, "" if metadata is None else metadata.lineage)


async def check_not_retired(store: MetadataStore, bookie_id: BookieId) -> None:
    """Raise :class:`IdentityRefusedError` for the id of a bookie that has been retired: ledgers may have been closed on
    the strength of its absence (rule O4), so it must not come back."""
    found = await store.read_document(DOCUMENT)
    if decode_states(None if found is None else found.value).condition_of(bookie_id) is Condition.RETIRED:
        raise IdentityRefusedError(
            f"bookie {bookie_id} has been retired, and its id is never used again; start a new bookie on empty "
            "directories"
        )


async def _check_pin(
    store: MetadataStore, pinned_id: BookieId | None, claimed: BookieId | None, data_directory: Path
) -> None:
    """Raises IdentityRefusedError when the directories are not those of the pinned bookie."""
    if pinned_id is None or claimed == pinned_id:
        return
    if claimed is not None:
        raise IdentityRefusedError(
            f"the directories belong to bookie {claimed}, but bookie_id pins {pinned_id}: give the bookie its own "
            "directories, or correct bookie_id"
        )
    if await store.read_cookie(pinned_id) is not None:
        raise IdentityRefusedError(
            f"the directories are empty, but the cluster knows bookie {pinned_id}: its disk is not mounted, or its "
            "data were deleted; mount the disk, or let it come back in doubt with "
            f"`octavo bookie reset-identity {data_directory} --bookie-id {pinned_id}`"
        )


async def _report_known_address(store: MetadataStore, address: str) -> None:
    """Log an error if a new bookie starts at the address of an existing one, whose directories may have been emptied by
    mistake."""
    if address.endswith(":0"):
        return
    known = [cookie.value.bookie_id for cookie in await store.list_cookies() if cookie.value.address == address]
    if known:
        log.error(
            "the directories are empty, but the cluster knows a bookie at this address: starting as a new bookie",
            address=address, known=known, remedy="stop it and mount the disk, if the data of the known bookie exist",
        )  # fmt: skip


async def note_served(filesystem: FileSystem, directories: Mapping[str, Path], identity: Identity) -> None:
    """Record in every directory that the storage has been created (from now on its absence means that data are lost)
    and that the metadata have this start's generation and have allocated its ledger ids. Call it before the bookie
    listens, and again when more ids have been allocated. Raises OSError."""
    directories = by_path(directories)
    for role, path in directories.items():
        cookie = DirectoryCookie(
            *(identity.bookie_id, identity.cluster_id, identity.generation, identity.token, role, tuple(directories)),
            served=True,
            confirmed_generation=identity.generation,
            ledger_ids_stop=identity.ledger_ids_stop,
            lineage=identity.lineage,
        )
        await write_directory_cookie(filesystem, path, cookie)


def by_path(directories: Mapping[str, Path]) -> dict[str, Path]:
    """Each directory once, by its role as its cookie has it: ``data+journal`` where both use one directory."""
    roles: dict[Path, list[str]] = {}
    for role, path in directories.items():
        roles.setdefault(path, []).append(role)
    return {"+".join(names): path for path, names in roles.items()}
