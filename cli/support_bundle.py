"""``octavo support-bundle``: what one needs to see to help with a cluster, in one file, without secrets.

Everything goes through :mod:`octavo.cli.redaction`. Metadata of ledgers are counted, not copied: they hold salts and
verifiers of keys, and the application's own metadata.
"""

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from octavo._version import __version__
from octavo.cli.session import CommandError, Session, command, describe, directory_of_cluster
from octavo.protocol.errors import OctavoError

# ruff: noqa: PLC0415 - `octavo --help` needs no cluster

LOG_BYTES_MAX = 1024 * 1024
"""The end of each log."""

SETTINGS_DIRECTORY = Path("/etc/octavo")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "support-bundle")(support_bundle)


async def support_bundle(
    session: Session,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="The file to write. The default is octavo-support-TIME.tar.gz, here."
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Settings of a bookie. May be given several times. The default is every file in /etc/octavo.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Data directory of an `octavo up`, whose logs are added."),
    ] = None,
) -> None:
    """Collect what helps to find a problem, without secrets.

    The archive contains versions, settings, the state of the cluster and of its bookies, the findings of `octavo
    doctor`, counts of ledgers, metrics and stacks of the bookies on this host, and the ends of logs. It contains no
    payload, no key, no password and no credentials. Parts that cannot be collected are named in it. Look through it
    before you hand it on.
    """
    from octavo.cli.output import counted, print_json, print_line
    from octavo.cli.redaction import redacted_environment

    path = output or Path(time.strftime("octavo-support-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    if path.is_file():
        raise CommandError(f"{path} exists already; name a new file")
    parts: dict[str, str] = {
        "versions.json": _json(_versions()),
        "environment.json": _json(redacted_environment(os.environ)),
    }
    for file in config if config is not None else _settings_of_this_host():
        _add_text(parts, f"settings/{file.name}", file)
    await _add(parts, "cluster.json", lambda: _cluster(session))
    await _add(parts, "doctor.json", lambda: _doctor(session))
    await _add(parts, "ledgers.json", lambda: _ledger_counts(session))
    await _add_bookies(parts, session)
    for file in sorted(_logs_of(session, data_dir)):
        _add_text(parts, f"logs/{file.name}", file, only_end=True)
    _write_archive(path, parts)
    if session.as_json:
        print_json({"file": str(path), "parts": list(parts)})
    else:
        print_line(f"{path}: {counted(len(parts), 'part')}. Look through it before you hand it on")


def _settings_of_this_host() -> list[Path]:
    return sorted(SETTINGS_DIRECTORY.glob("*.toml"))


def _versions() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, requires, version

    found = {}
    for requirement in requires("octavo") or []:
        name = requirement.partition(";")[0].split(">")[0].split("[")[0].strip()
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return {
        "octavo": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "dependencies": found,
    }


async def _add(parts: dict[str, str], name: str, collect: Callable[[], Awaitable[Any]]) -> None:
    try:
        parts[name] = _json(await collect())
    except (OctavoError, OSError, CommandError, ExceptionGroup) as error:
        from octavo.cli.redaction import redacted_text

        parts[f"{name}.missing"] = redacted_text(f"could not be collected: {describe(error)}\n")


async def _add_bookies(parts: dict[str, str], session: Session) -> None:
    """The answers of each bookie on this host about itself: state, settings and load, metrics, and what it is doing."""
    from octavo.cli.bookie.admin_client import bookies_here
    from octavo.cli.redaction import redacted_text

    for bookie_id, client in bookies_here(directory_of_cluster(session.metadata_uri)).items():
        folder = f"bookies/{bookie_id}"
        for name in ("bookie", "connections", "stacks"):
            await _add(parts, f"{folder}/{name}.json", partial(client.get, f"/api/v1/{name}"))
        try:
            parts[f"{folder}/metrics.txt"] = await client.text("/metrics")
        except CommandError as error:
            parts[f"{folder}/metrics.txt.missing"] = redacted_text(f"could not be collected: {error}\n")


def _add_text(parts: dict[str, str], name: str, file: Path, *, only_end: bool = False) -> None:
    from octavo.cli.redaction import redacted_text

    try:
        with file.open("rb") as stream:
            if only_end:
                stream.seek(max(0, file.stat().st_size - LOG_BYTES_MAX))
            parts[name] = redacted_text(stream.read().decode(errors="replace"))
    except OSError as error:
        parts[f"{name}.missing"] = f"could not be read: {error.strerror or error}\n"


async def _cluster(session: Session) -> dict[str, Any]:
    from octavo.cli.bookies import as_json
    from octavo.cli.cluster.status import cluster_facts
    from octavo.client.bookie_status import ask_bookies

    async with await session.open_metadata() as store:
        bookies = [as_json(bookie) for bookie in await ask_bookies(store)]
    return {**await cluster_facts(session), "bookies_in_detail": bookies}


async def _doctor(session: Session) -> list[dict[str, str]]:
    from octavo.cli.doctor import examine

    return [finding._asdict() for finding in await examine(session, None)]


async def _ledger_counts(session: Session) -> dict[str, Any]:
    from octavo.metadata.ledger.stored import StoredKind

    states: Counter[str] = Counter()
    fragments = 0
    async with await session.open_metadata() as store:
        async for ledger_id in store.list_ledgers():
            try:
                metadata = (await store.read_either(ledger_id)).value
            except OctavoError:
                states["unreadable"] += 1
                continue
            kind = "" if metadata.kind is StoredKind.LEDGER else "stream "
            states[kind + metadata.state.value] += 1
            fragments += len(metadata.fragments) + sum(page.fragments for page in metadata.pages)
    return {"ledgers": dict(states), "fragments": fragments}


def _logs_of(session: Session, data_dir: Path | None) -> list[Path]:
    """The logs of the `octavo up` in ``data_dir``, or of the one whose embedded store the command uses."""
    directory = data_dir
    if directory is None and session.metadata_uri.startswith("sqlite:///"):
        directory = Path(session.metadata_uri.removeprefix("sqlite:///")).parent
    return list((directory / "logs").glob("*.log")) if directory is not None else []


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _write_archive(path: Path, parts: dict[str, str]) -> None:
    """Write the archive; only its owner can read it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.fchmod(descriptor, 0o600)  # the file may have been there, readable by others
        with open(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for name, text in parts.items():
                data = text.encode()
                entry = tarfile.TarInfo(f"octavo-support/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
