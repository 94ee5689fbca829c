"""``octavo cluster dump | restore``: the metadata of a cluster to a file, and from a file to an empty place."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo._version import __version__
from octavo.cli.session import CommandError, Session, command
from octavo.protocol.errors import NoSuchLedgerError, OctavoError

if TYPE_CHECKING:
    from octavo.metadata import MetadataStore
    from octavo.metadata.dump import ClusterFacts, DumpEnd, DumpRecord

# ruff: noqa: PLC0415 - `octavo --help` needs no metadata

LOGS_PREFIX = "logs/n"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app)(dump)
    command(app)(restore)


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
    from octavo.cli.output import print_json, print_line, progress_bar
    from octavo.metadata.dump import ClusterFacts, DumpWriter

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
        print_line(f"{written:,} records in {file}, {file.stat().st_size:,} bytes")


async def _records(store: "MetadataStore") -> "AsyncIterator[DumpRecord]":
    """Everything permanent, documents first: a ledger that a document names has been created before. The pages of a
    stream come with it: all that its metadata name, and no other."""
    from octavo.metadata.dump import Document
    from octavo.metadata.garbage_hold import DOCUMENT
    from octavo.metadata.model import LedgerMetadata
    from octavo.metadata.pages import PAGES_PREFIX
    from octavo.metadata.paging import stored_pages

    async for name in store.list_documents():
        found = await store.read_document(name)
        if found is not None and name != DOCUMENT and not name.startswith(PAGES_PREFIX):
            yield Document(name, found.value)
    for cookie in await store.list_cookies():
        yield cookie.value
    async for ledger_id in store.list_ledgers():
        try:
            metadata = (await store.read_either(ledger_id)).value
            if not isinstance(metadata, LedgerMetadata) and metadata.pages:
                metadata, pages = await stored_pages(store, metadata)
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


async def restore(
    session: Session, file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `dump` wrote.")]
) -> None:
    """Create a cluster from a dump.

    There must be no cluster in the metadata store that --metadata names. The whole file is verified before anything is
    changed. Bookies of the dumped cluster can then start with the restored metadata. What happened after the dump is
    not in it: ledgers created since are missing, and logs end where they ended then. So the restore leaves out the
    ledger ids that may have been allocated since, and puts garbage collection on hold until you run `octavo cluster
    release-garbage`. Stop all bookies and clients first.
    """
    from octavo.cli.output import print_json, print_line, progress_bar
    from octavo.metadata.connect import create_metadata_store
    from octavo.metadata.dump import first_restored_id, restored_terms_skipped
    from octavo.metadata.garbage_hold import GarbageHold, set_hold
    from octavo.metadata.records import ClusterOrigin

    facts, end = _verified(file)
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
                    await _restore_record(store, record)
                    restored += 1
                    progress(restored, f"{restored:,}")
            except OctavoError as error:
                raise CommandError(
                    f"{error.message}; the cluster at {session.metadata_uri} is incomplete: run `octavo cluster "
                    "destroy` and restore it again"
                ) from error
    if session.as_json:
        print_json({"cluster_id": facts.cluster_id, "records": restored, "first_ledger_id": first_id})
        return
    print_line(f"restored cluster {facts.cluster_id} at {session.metadata_uri}: {restored:,} records")
    print_line("garbage collection is on hold; when nothing is missing, run `octavo cluster release-garbage`")


def _verified(file: Path) -> "tuple[ClusterFacts, DumpEnd]":
    """The first and the last line of a dump that has been read to its end."""
    from octavo.metadata.dump import ClusterFacts, DumpEnd, read_dump

    facts: ClusterFacts | None = None
    end: DumpEnd | None = None
    for part in _parts(file, read_dump):
        match part:
            case ClusterFacts():
                facts = part
            case DumpEnd():
                end = part
            case _:
                _with_later_terms(part, 0)  # a log that cannot be understood is noticed before anything is changed
    assert facts is not None
    assert end is not None
    return facts, end


def _parts(file: Path, read: Any) -> Iterator[Any]:
    try:
        with file.open("rb") as lines:
            yield from read(lines, str(file))
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror or error}") from error


def _restorable(file: Path, terms_skipped: int) -> "Iterator[DumpRecord]":
    """The records of a verified dump as they are to be stored."""
    from octavo.metadata.dump import ClusterFacts, DumpEnd, read_dump

    for part in _parts(file, read_dump):
        if not isinstance(part, ClusterFacts | DumpEnd):
            yield _with_later_terms(part, terms_skipped)


def _with_later_terms(record: "DumpRecord", terms_skipped: int) -> "DumpRecord":
    """The record; the list of a log gets a term that no leader has had, and a stream gets one next. The document of a
    log that is a stream has no term."""
    from octavo.client.log.document import LogDocument
    from octavo.client.log.names import name_of_document
    from octavo.client.log.stream_document import decode_any_log
    from octavo.metadata.dump import Document
    from octavo.metadata.model import LedgerMetadata
    from octavo.metadata.registration import Cookie

    if not isinstance(record, LedgerMetadata | Cookie | Document):
        return record.restored(terms_skipped)
    if not isinstance(record, Document) or not record.name.startswith(LOGS_PREFIX):
        return record
    log = decode_any_log(record.value, name_of_document(record.name))
    if not isinstance(log, LogDocument):
        return record
    return Document(record.name, replace(log, term=log.term + terms_skipped).encode())


async def _restore_record(store: "MetadataStore", record: "DumpRecord") -> None:
    from octavo.metadata.dump import Document
    from octavo.metadata.model import LedgerMetadata
    from octavo.metadata.registration import Cookie

    match record:
        case LedgerMetadata():
            await store.create_ledger(record)
        case Cookie():
            await store.create_cookie(record)
        case Document():
            await store.create_document(record.name, record.value)
        case _:
            await store.create_stream(record)
