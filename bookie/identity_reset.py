"""Lets a bookie whose disks were wiped, restored or exchanged come back under its old id, as one in doubt.

The start refuses such disks, rightly: what is not on them may have been acknowledged. Doubt makes them harmless: the
bookie answers nothing with "absent", takes no ordinary adds to ledgers that exist, and fences (PROTOCOL B4). Until its
ledgers have been copied back from their other bookies, it is worth what it still has.
"""

import random
from typing import NamedTuple

from octavo.bookie.checkpoint_manifest import EMPTY, EVERY_LEDGER, decode_manifest, encode_manifest
from octavo.bookie.cookie import DirectoryCookie, read_directory_state, write_directory_cookie
from octavo.bookie.errors import DataWrongError
from octavo.bookie.filesystem import FileSystem, read_file, replace_file
from octavo.bookie.manifest_keeper import MANIFEST_NAME
from octavo.bookie.offline import Layout
from octavo.metadata import Cookie, MetadataStore
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import BookieId


class Reset(NamedTuple):
    """Who the directories are now."""

    bookie_id: BookieId
    generation: int


async def reset_identity(
    filesystem: FileSystem, layout: Layout, store: MetadataStore, *, bookie_id: str | None, rng: random.Random
) -> Reset:
    """Put the bookie in doubt, durably, and only then give its directories cookies that the next start accepts.

    ``bookie_id`` is needed when no cookie is left that tells it. Raises :class:`InvalidArgumentError` when it is not
    given, or is another than the cookies', :class:`DataWrongError` for a manifest that must be rebuilt first, OSError.
    """
    cluster_id = await store.cluster_id()
    claimed = set()
    generations = [0]
    for role, path in layout.directories.items():
        state = await read_directory_state(filesystem, role, path)
        if state.cookie is not None:
            claimed.add(state.cookie.bookie_id)
            generations.append(state.cookie.generation)
            if state.cookie.cluster_id != cluster_id:
                raise InvalidArgumentError(
                    f"{path} belongs to cluster {state.cookie.cluster_id}, the metadata are of {cluster_id}: "
                    "check the metadata URI"
                )
    wanted = _choose(claimed, bookie_id)
    known = await store.read_cookie(wanted)
    await _put_in_doubt(filesystem, layout)
    generation = max([*generations, known.value.generation if known is not None else 0]) + 1
    token = f"{rng.getrandbits(64):016x}"
    places: dict[str, list[str]] = {}
    for role, path in layout.directories.items():
        places.setdefault(str(path), []).append(role)
    roles = tuple("+".join(names) for names in places.values())
    paths = list(dict.fromkeys(layout.directories.values()))
    for role, path in zip(roles, paths, strict=True):
        cookie = DirectoryCookie(wanted, cluster_id, generation, token, role, roles)
        await write_directory_cookie(filesystem, path, cookie)
    address = known.value.address if known is not None else ""
    told = Cookie(bookie_id=wanted, generation=generation, address=address, body=token.encode())
    if known is None:
        await store.create_cookie(told)
    else:
        await store.compare_and_set_cookie(told, known.version)
    return Reset(wanted, generation)


def _choose(claimed: set[BookieId], given: str | None) -> BookieId:
    if given is not None:
        if claimed - {BookieId(given)}:
            raise InvalidArgumentError(f"the cookies name {', '.join(sorted(claimed))}, not {given}")
        return BookieId(given)
    if len(claimed) != 1:
        names = f"the cookies name {', '.join(sorted(claimed))}" if claimed else "no cookie is left"
        raise InvalidArgumentError(f"{names}: say with --bookie-id which bookie this is; `octavo bookies` lists them")
    return claimed.pop()


async def _put_in_doubt(filesystem: FileSystem, layout: Layout) -> None:
    path = layout.data / MANIFEST_NAME
    for folder in (*layout.entries, layout.index):
        await filesystem.make_directory(folder)
    try:
        manifest = decode_manifest(await read_file(filesystem, path))
    except FileNotFoundError:
        if await filesystem.list_directory(layout.index):
            raise DataWrongError(f"{path} is missing; run `octavo bookie rebuild-index` first") from None
        manifest = EMPTY
    except ValueError as error:
        raise DataWrongError(f"{path}: {error}; run `octavo bookie rebuild-index` first") from error
    await replace_file(filesystem, path, encode_manifest(manifest._replace(doubt_stop=EVERY_LEDGER)))
