"""``octavo cluster dump | restore``: the metadata of a cluster to a file, and from a file to an empty place."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo._version import __version__
from octavo.cli.session import CommandError, Session, command
from octavo.protocol.errors import InvalidArgumentError, NoSuchLedgerError, OctavoError

if TYPE_CHECKING:
    from octavo.metadata import MetadataStore
    from octavo.metadata.cluster.principals import Principal, Principals
    from octavo.metadata.updates.dump import ClusterFacts, DumpEnd, DumpRecord

# ruff: noqa: PLC0415 - `octavo --help` needs no metadata

LOGS_PREFIX = "logs/n"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, logs=False)(dump)
    command(app, logs=False)(restore)


async def dump(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write the metadata of the cluster to a file.

    The file has every ledger, log, cookie and document, but no entries: those are on the bookies. The cluster may be in
    use; each record is as it was at some moment of the dump. The file holds salts and verifiers of keys, so keep it as
    you keep the metadata. The file appears when the dump is complete. A file that exists is kept, and the command
    fails; with --overwrite the complete dump replaces it.
    """
    from octavo.cli.output import counted, print_json, print_line, progress_bar
    from octavo.metadata.updates.dump import ClusterFacts, DumpWriter

    writer = DumpWriter()
    written = 0
    async with await session.open_metadata() as store:
        with _new_file(file, overwrite=overwrite) as output, progress_bar("dumping", None) as progress:
            output.write(writer.begin(ClusterFacts(await store.cluster_id(), datetime.now(UTC), __version__)))
            async for record in _records(store):
                output.write(writer.record(record))
                written += 1
                if written % 1000 == 0:
                    progress(written, f"{written:,}")
            output.write(writer.end(await store.ledger_ids_stop()))
    if session.as_json:
        print_json({"file": str(file), "records": written, "bytes": file.stat().st_size})
    else:
        print_line(f"{counted(written, 'record')} in {file}, {counted(file.stat().st_size, 'byte')}")


async def _records(store: "MetadataStore") -> "AsyncIterator[DumpRecord]":
    """Everything permanent, documents first: a ledger that a document names has been created before. The pages of a
    stream come with it: all that its metadata name, and no other."""
    from octavo.metadata.stream.any_metadata import as_stream
    from octavo.metadata.stream.pages import PAGES_PREFIX
    from octavo.metadata.updates.dump import Document
    from octavo.metadata.updates.garbage_hold import DOCUMENT
    from octavo.metadata.updates.paging import stored_pages

    async for name in store.list_documents():
        found = await store.read_document(name)
        if found is not None and name != DOCUMENT and not name.startswith(PAGES_PREFIX):
            yield Document(name, found.value)
    for cookie in await store.list_cookies():
        yield cookie.value
    async for ledger_id in store.list_ledgers():
        try:
            metadata = (await store.read_either(ledger_id)).value
            if metadata.pages:
                metadata, pages = await stored_pages(store, as_stream(metadata))
                for name, value in pages:
                    yield Document(name, value)
        except NoSuchLedgerError:
            continue
        yield metadata


@contextmanager
def _new_file(file: Path, *, overwrite: bool) -> Iterator[Any]:
    """A file that appears at ``file`` once it is complete and synced, and that only its owner can read. Raises
    :class:`CommandError` if ``file`` exists, unless it is a file to ``overwrite``."""
    place = file.resolve()  # through a link, whose target is replaced
    partial: Path | None = None
    try:
        _check_free(file, place, overwrite=overwrite)
        # A name of its own: two dumps to one file must not write into each other.
        descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".partial", dir=place.parent)
        partial = Path(name)
        with open(descriptor, "wb") as output:
            yield output
            output.flush()
            os.fsync(output.fileno())
        _check_free(file, place, overwrite=overwrite)
        partial.replace(place)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def _check_free(file: Path, place: Path, *, overwrite: bool) -> None:
    if not place.exists():
        return
    if not place.is_file():  # a device as well: renaming a file to /dev/null would replace it for every program
        raise CommandError(f"{file} is not a regular file; name a file to write the dump to")
    if not overwrite:
        raise CommandError(f"{file} exists already; name a new file, or give --overwrite to replace it")


class PrincipalsChoice(StrEnum):
    """Values of the option ``--principals``."""

    DISABLED = "disabled"
    ENABLED = "enabled"
    NONE = "none"


async def restore(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `dump` wrote.")],
    principals: Annotated[
        PrincipalsChoice,
        typer.Option(
            "--principals",
            metavar="HOW",
            help="How the principals of the dump come back: disabled, enabled as they were, or none of them.",
        ),
    ] = PrincipalsChoice.DISABLED,
    principals_of: Annotated[
        Path | None,
        typer.Option(
            "--principals-of",
            metavar="FILE",
            help="Take the principals from this dump, a newer one, as they are there.",
        ),
    ] = None,
) -> None:
    """Create a cluster from a dump.

    There must be no cluster in the metadata store that --metadata names. The whole file is verified before anything is
    changed. Bookies of the dumped cluster can then start with the restored metadata. What happened after the dump is
    not in it: ledgers created since are missing, and logs end where they ended then. So the restore leaves out the
    ledger ids that may have been allocated since, and puts garbage collection on hold until you run `octavo cluster
    release-garbage`. Stop all bookies and clients first.

    Principals that were removed or disabled since the dump, and keys that were replaced since, are in the dump as they
    were then. So the principals come back disabled: enable those that you still trust with `octavo access enable`.
    """
    from octavo.cli.output import counted, print_json, print_line, progress_bar
    from octavo.metadata.cluster.principals import DOCUMENT as PRINCIPALS
    from octavo.metadata.cluster.principals import encode_principals
    from octavo.metadata.connect import create_metadata_store
    from octavo.metadata.store.driver import ClusterOrigin
    from octavo.metadata.updates.dump import Document, first_restored_id, restored_terms_skipped
    from octavo.metadata.updates.garbage_hold import GarbageHold, set_hold

    if principals_of is not None and principals is not PrincipalsChoice.DISABLED:
        raise InvalidArgumentError(
            "--principals-of takes the principals as they are in that dump: leave out --principals"
        )
    facts, end, known = _verified(file)
    back = _principals_to_restore(known, principals, principals_of)
    age = datetime.now(UTC) - facts.dumped_at
    first_id, terms_skipped = first_restored_id(end, age), restored_terms_skipped(age)
    reason = f"the metadata were restored from a dump of {facts.dumped_at.isoformat(timespec='seconds')}"
    restored = 0
    async with await create_metadata_store(session.metadata_uri, ClusterOrigin(facts.cluster_id, first_id)) as store:
        # The hold first: a bookie that starts in the middle of the restore must find it.
        await set_hold(store, GarbageHold(reason, datetime.now(UTC)))
        with progress_bar("restoring", end.records) as progress:
            try:
                for record in _restorable(file, terms_skipped):
                    if isinstance(record, Document) and record.name == PRINCIPALS:
                        continue
                    await _restore_record(store, record)
                    restored += 1
                    progress(restored, f"{restored:,}")
                if back is not None:
                    await store.create_document(PRINCIPALS, encode_principals(back))
                    restored += 1
            except OctavoError as error:
                raise CommandError(
                    f"{error.message}; the cluster at {session.metadata_uri} is incomplete: run `octavo cluster "
                    "destroy` and restore it again"
                ) from error
    if session.as_json:
        states = {} if back is None else {name: _state_of(one) for name, one in back.by_name.items()}
        print_json(
            {
                "cluster_id": facts.cluster_id, "records": restored, "first_ledger_id": first_id, "principals": states,
                "principals_left_out": _names_without(known, back),
            }
        )  # fmt: skip
        return
    print_line(f"restored cluster {facts.cluster_id} at {session.metadata_uri}: {counted(restored, 'record')}")
    print_line("garbage collection is on hold; when nothing is missing, run `octavo cluster release-garbage`")
    for line in _told_of_principals(known, back):
        print_line(line)


def _principals_to_restore(
    known: "Principals | None", how: PrincipalsChoice, principals_of: Path | None
) -> "Principals | None":
    """The principals of the restored cluster (rule S5); None: nothing. ``known``: those of the dump."""
    if principals_of is not None:
        return _verified(principals_of)[2]
    if known is None or how is PrincipalsChoice.NONE:
        return None
    return known if how is PrincipalsChoice.ENABLED else known.disabled()


def _names_without(known: "Principals | None", back: "Principals | None") -> list[str]:
    kept = set() if back is None else back.by_name.keys()
    return [] if known is None else [name for name in known.by_name if name not in kept]


def _state_of(principal: "Principal") -> str:
    return "disabled" if principal.disabled else "enabled"


def _told_of_principals(known: "Principals | None", back: "Principals | None") -> Iterator[str]:
    """The facts about principals that an operator must know after a restore."""
    by_state: dict[str, list[str]] = {}
    for name, one in () if back is None else back.by_name.items():
        by_state.setdefault(_state_of(one), []).append(name)
    if "enabled" in by_state:
        yield f"principals that may connect: {', '.join(by_state['enabled'])}"
    if "disabled" in by_state:
        yield f"principals that are disabled: {', '.join(by_state['disabled'])}"
        yield (
            "their roles and keys are those of the dump: enable those that you still trust with `octavo access enable "
            "NAME`, and replace keys that were replaced since with `octavo access key NAME`"
        )
    if left_out := _names_without(known, back):
        yield f"principals of the dump that were left out: {', '.join(left_out)}"


def _verified(file: Path) -> "tuple[ClusterFacts, DumpEnd, Principals | None]":
    """The first and the last line of a dump that has been read to its end, and its principals, if it has any."""
    from octavo.metadata.cluster.principals import DOCUMENT as PRINCIPALS
    from octavo.metadata.cluster.principals import decode_principals
    from octavo.metadata.updates.dump import ClusterFacts, Document, DumpEnd, read_dump

    facts: ClusterFacts | None = None
    end: DumpEnd | None = None
    principals: Principals | None = None
    for part in _parts(file, read_dump):
        match part:
            case ClusterFacts():
                facts = part
            case DumpEnd():
                end = part
            case Document() if part.name == PRINCIPALS:
                principals = decode_principals(part.value)
            case _:
                _with_later_terms(part, 0)  # a log that cannot be understood is noticed before anything is changed
    assert facts is not None
    assert end is not None
    return facts, end, principals


def _parts(file: Path, read: Any) -> Iterator[Any]:
    try:
        with file.open("rb") as lines:
            yield from read(lines, str(file))
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror or error}") from error


def _restorable(file: Path, terms_skipped: int) -> "Iterator[DumpRecord]":
    """The records of a verified dump as they are to be stored.

    Ids of producers that were given out since the dump may stand in logs of topics, so the counter is raised (rule K6).
    It comes last: there may be topics, and no counter yet.
    """
    from octavo.gateway.topics.document import TOPICS_PREFIX
    from octavo.gateway.topics.producer_ids import DOCUMENT as PRODUCER_IDS
    from octavo.gateway.topics.producer_ids import raised_counter
    from octavo.metadata.updates.dump import ClusterFacts, Document, DumpEnd, read_dump

    has_topics, counter = False, None
    for part in _parts(file, read_dump):
        if isinstance(part, Document) and part.name == PRODUCER_IDS:
            counter = part.value
        elif not isinstance(part, ClusterFacts | DumpEnd):
            has_topics |= isinstance(part, Document) and part.name.startswith(TOPICS_PREFIX)
            yield _with_later_terms(part, terms_skipped)
    if has_topics or counter is not None:
        yield Document(PRODUCER_IDS, raised_counter(counter, terms_skipped))


def _with_later_terms(record: "DumpRecord", terms_skipped: int) -> "DumpRecord":
    """The record; the list of a log gets a term that no leader has had, and a stream gets one next. The document of a
    log that is a stream has no term."""
    from octavo.client.log.documents.chain import LogDocument
    from octavo.client.log.documents.names import name_of_document
    from octavo.client.log.documents.stream import decode_any_log
    from octavo.metadata.cluster.registration import Cookie
    from octavo.metadata.updates.dump import Document

    if isinstance(record, Cookie):
        return record
    if not isinstance(record, Document):
        return record.restored(terms_skipped)
    if not record.name.startswith(LOGS_PREFIX):
        return record
    log = decode_any_log(record.value, name_of_document(record.name))
    if not isinstance(log, LogDocument):
        return record
    return Document(record.name, replace(log, term=log.term + terms_skipped).encode())


async def _restore_record(store: "MetadataStore", record: "DumpRecord") -> None:
    from octavo.metadata.cluster.registration import Cookie
    from octavo.metadata.ledger.model import LedgerMetadata
    from octavo.metadata.updates.dump import Document

    match record:
        case LedgerMetadata():
            await store.create_ledger(record)
        case Cookie():
            await store.create_cookie(record)
        case Document():
            await store.create_document(record.name, record.value)
        case _:
            await store.create_stream(record)
