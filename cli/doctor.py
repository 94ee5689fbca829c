"""``octavo doctor``: checks a host, and the cluster that it reaches, for what has caused trouble elsewhere.

Each check is a small function that returns findings. A check that cannot be made is a finding, too: the others go on.
"""

import asyncio
import os
import platform
import resource
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from octavo._version import __version__
from octavo.cli.cluster.health import CERTIFICATE_DAYS_MIN, certificate_days
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, Session, command, describe
from octavo.protocol.errors import InvalidArgumentError, MetadataUnavailableError, OctavoError

if TYPE_CHECKING:
    from octavo.bookie.config import BookieConfig
    from octavo.cli.kafka.examining import Examined
    from octavo.client.bookie_status import BookieStatus
    from octavo.gateway.leading.gateways import GatewayAddress
    from octavo.metadata import MetadataStore

# ruff: noqa: PLC0415 - `octavo --help` needs no cluster

DESCRIPTORS_MIN = 8192
"""A bookie needs one per connection and one per file; connections_max is 4096 by default."""

SYNC_SECONDS_WARN = 0.010
"""Median of a synced write of 4 KiB: slower than a disk without a write cache that survives a power failure."""

SYNC_MEASURE_SECONDS = 0.5

METADATA_SECONDS_WARN = 0.1

CLOCK_SECONDS_WARN = 1.0
"""People compare times of different hosts. What cannot be taken back does not depend on them (rule M5)."""

CONNECT_SECONDS_MAX = 3.0

EXAMINE_SECONDS_MAX = 10.0
"""Of a gateway: up to three connections."""

UNSUITABLE_FILE_SYSTEMS = {
    "tmpfs": "its files are lost at a restart",
    "ramfs": "its files are lost at a restart",
    "nfs": "locks and syncs over a network are not reliable enough",
    "nfs4": "locks and syncs over a network are not reliable enough",
    "cifs": "locks and syncs over a network are not reliable enough",
    "smb3": "locks and syncs over a network are not reliable enough",
    "overlay": "files in a container's own layer are lost with the container: mount a volume",
}


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    result: str
    """``ok``, ``warning`` or ``failed``."""
    detail: str


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(doctor)


async def doctor(
    session: Session,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings of a bookie of this host, which is checked too."),
    ] = None,
) -> int:
    """Check this host and the cluster for common problems.

    The command checks limits, clocks, versions, hosts, certificates, the metadata store, the way to every bookie and
    every gateway, and whether gateways that other hosts can reach ask clients who they are. With --config it also
    checks the certificate of a bookie of this host, and its directories: their file systems, free space and speed. It
    changes nothing for good. The exit status is 1 if a check failed.
    """
    from octavo.cli.output import print_json, print_table

    findings = await examine(session, config)
    if session.as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_table(["check", "result", "detail"], findings)
    return EXIT_FAILURE if any(finding.result == "failed" for finding in findings) else EXIT_OK


async def examine(session: Session, config_file: Path | None) -> list[Finding]:
    """The findings of all checks that apply."""
    findings = [_software(), *_limits()]
    if config_file is not None:
        findings += await _guarded("settings", lambda: _bookie_of_this_host(config_file))
    findings += await _guarded("metadata", lambda: _cluster(session))
    return findings


async def _guarded(check: str, work: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
    try:
        return await work()
    except (OctavoError, OSError, ExceptionGroup) as error:
        return [Finding(check, "failed", describe(error))]


# --- this host -------------------------------------------------------------------------------------------------------


def _software() -> Finding:
    from importlib.metadata import version

    return Finding(
        "software",
        "ok",
        f"octavo {__version__}, Python {platform.python_version()}, uvloop {version('uvloop')}, "
        f"{platform.system()} {platform.release()}",
    )


def _limits() -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    result = "ok" if soft >= DESCRIPTORS_MIN else "warning"
    advice = "" if result == "ok" else f"; a bookie should have {DESCRIPTORS_MIN} or more (ulimit -n, LimitNOFILE=)"
    findings = [Finding("open files", result, f"limit {soft}, at most {hard}{advice}")]
    core, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if core != resource.RLIM_INFINITY:
        findings.append(
            Finding("file size", "failed", f"limited to {core} bytes: entry logs could not grow (ulimit -f)")
        )
    return findings


async def _bookie_of_this_host(config_file: Path) -> list[Finding]:
    from octavo.bookie.config import load_config
    from octavo.cli.config import contradictions_in

    config = load_config(config_file, os.environ, {})
    contradictions = contradictions_in(config)
    findings = [
        Finding(
            "settings", "failed" if contradictions else "ok", "; ".join(contradictions) or f"{config_file} is valid"
        )
    ]
    if config.tls != "off":
        findings += await _guarded("certificate", lambda: _certificate(config))
    for role, directory in config.directories.items():
        findings += _directory(role, directory, config)
    findings += await _guarded("sync", lambda: _sync_speed(config.journal_directory))
    return findings


async def _certificate(config: "BookieConfig") -> list[Finding]:
    from octavo.security.contexts import server_context

    days = int((server_context(config.tls_files).expires_at - time.time()) // 86_400)
    return [certificate_finding("certificate", days)]


def _directory(role: str, directory: Path, config: "BookieConfig") -> list[Finding]:
    check = f"{role} directory"
    present = next((path for path in (directory, *directory.parents) if path.exists()), directory)
    if directory.exists() and not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return [Finding(check, "failed", f"{directory} cannot be written by user {os.getuid()}")]
    findings = []
    kind = file_system_of(present)
    if kind in UNSUITABLE_FILE_SYSTEMS:
        findings.append(Finding(check, "warning", f"{directory} is on {kind}: {UNSUITABLE_FILE_SYSTEMS[kind]}"))
    usage = shutil.disk_usage(present)
    text = f"{directory}: {usage.free / 1e9:,.1f} of {usage.total / 1e9:,.1f} GB free, {kind}"
    if usage.free < config.disk_read_only_bytes:
        findings.append(Finding(check, "failed", f"{text}; the bookie would be read-only below disk_read_only_bytes"))
    elif usage.free < config.disk_warn_bytes:
        findings.append(Finding(check, "warning", f"{text}; below disk_warn_bytes"))
    else:
        findings.append(Finding(check, "ok", text))
    return findings


def file_system_of(path: Path) -> str:
    """The type of the file system that holds an existing path, as the kernel names it."""
    wanted = path.resolve()
    kind, longest = "unknown", -1
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        if wanted.is_relative_to(point) and len(point.parts) >= longest:
            kind, longest = after.split()[0], len(point.parts)
    return kind


async def _sync_speed(directory: Path) -> list[Finding]:
    from octavo.cli.bench.disk import measure_disk

    present = next((path for path in (directory, *directory.parents) if path.exists()), directory)
    (measured,) = await measure_disk(present, (4096,), SYNC_MEASURE_SECONDS)
    result = "ok" if measured["p50_seconds"] <= SYNC_SECONDS_WARN else "warning"
    text = f"4 KiB in {1000 * measured['p50_seconds']:.2f} ms (median), {1000 * measured['p99_seconds']:.2f} ms (p99)"
    return [Finding("sync", result, f"{text} on the disk of {directory}")]


# --- the cluster -----------------------------------------------------------------------------------------------------


async def _cluster(session: Session) -> list[Finding]:
    from octavo.cli.redaction import redacted_uri

    async with await session.open_metadata() as store:
        begun = time.perf_counter()
        await store.ledger_ids_stop()
        seconds = time.perf_counter() - begun
        result = "ok" if seconds <= METADATA_SECONDS_WARN else "warning"
        findings = [Finding("metadata", result, f"{redacted_uri(store.uri)} answers in {1000 * seconds:.1f} ms")]
        findings += await _guarded("largest document", lambda: _largest_document(store))
        findings += await _guarded("clock of the metadata store", lambda: clocks_of_store(store))
        gateways = await _guarded("gateways", lambda: gateways_of(store))
        addresses = {name: found.address for name, found in (await store.list_bookies()).items()}
    if not addresses:
        return [*findings, Finding("bookies", "failed", "no bookie is registered"), *gateways]
    findings += await asyncio.gather(*(reachable(name, address) for name, address in addresses.items()))
    findings += await _facts_of_bookies(session)
    return findings + gateways


async def gateways_of(store: "MetadataStore", *, seconds_max: float = EXAMINE_SECONDS_MAX) -> list[Finding]:
    """The way to each gateway, its certificate, and who may use it; nothing for a cluster that has neither gateways nor
    topics. ``seconds_max``: for the examination of each."""
    from octavo.gateway.leading.gateways import registered
    from octavo.gateway.topics.document import TOPICS_PREFIX

    gateways = [one.address for one in await registered(store)]
    if not gateways:
        async for _ in store.list_documents(TOPICS_PREFIX):
            return [Finding("gateways", "warning", "there are topics and no gateway: Kafka clients cannot use them")]
    found = await asyncio.gather(*(_gateway(one, seconds_max) for one in gateways))
    return [finding for findings in found for finding in findings]


async def _gateway(address: "GatewayAddress", seconds_max: float) -> list[Finding]:
    """The way to a gateway, its certificate, and who may use it."""
    from octavo.security.loopback import is_loopback

    name, place = f"gateway {address.node_id}", f"{address.host}:{address.port}"
    way = await _way(name, place)
    if way.result == "failed":
        return [way]
    check = f"access to {name}"
    try:
        from octavo.cli.kafka.examining import examine_gateway

        examined = await examine_gateway(address.host, address.port, seconds_max=seconds_max)
    except ModuleNotFoundError as error:
        text = f"cannot be checked without {error.name}: install Octavo with its extra `kafka` here"
        return [way, Finding(check, "warning", text)]
    except (OSError, TimeoutError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return [way, Finding(check, "failed", f"{place} accepts connections and does not answer: {reason}")]
    findings = [way]
    if examined.expires_at is not None:
        days = int((examined.expires_at - time.time()) // 86_400)
        findings.append(certificate_finding(f"certificate of {name}", days))
    if not is_loopback(address.host):
        findings.append(access_finding(check, place, examined))
    return findings


def access_finding(check: str, place: str, examined: "Examined") -> Finding:
    """Whether a gateway that other hosts can reach asks its clients who they are."""
    if examined.serves_strangers:
        text = "serves clients that do not say who they are: every host that reaches it can read and write all topics; "
        return Finding(check, "warning", f"{place} {text}start it with --listen-tls required and without --auth none")
    return Finding(check, "ok", f"{place} serves principals only")


async def _largest_document(store: "MetadataStore") -> list[Finding]:
    """Store and delete a document of the largest size: with ZooKeeper, `jute.maxbuffer` must allow it."""
    from octavo.metadata.store.documents import DOCUMENT_BYTES_MAX

    name = f"doctor/{os.getpid()}-{os.urandom(8).hex()}"
    try:
        await store.create_document(name, b"\0" * DOCUMENT_BYTES_MAX)
        await store.delete_document(name)
    except MetadataUnavailableError as error:
        return [
            Finding(
                "largest document",
                "failed",
                f"a document of {DOCUMENT_BYTES_MAX} bytes cannot be stored ({error.message}); with ZooKeeper, "
                "jute.maxbuffer must be at least 1048576 on every server",
            )
        ]
    return [Finding("largest document", "ok", f"{DOCUMENT_BYTES_MAX} bytes can be stored")]


async def reachable(name: str, address: str) -> Finding:
    """Whether this host can connect to a bookie."""
    return await _way(f"bookie {name}", address)


async def _way(check: str, address: str) -> Finding:
    """Whether this host can connect to an address."""
    from octavo.metadata.cluster.registration import endpoint_of

    begun = time.perf_counter()
    try:
        host, port = endpoint_of(address)
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            _, writer = await asyncio.open_connection(host, port)
    except InvalidArgumentError as error:
        return Finding(check, "failed", f"{address} cannot be reached from any host: {error.message}")
    except (OSError, TimeoutError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return Finding(check, "failed", f"{address} cannot be reached from this host: {reason}")
    milliseconds = 1000 * (time.perf_counter() - begun)
    writer.close()
    return Finding(check, "ok", f"{address} accepts connections within {milliseconds:.1f} ms")


async def clocks_of_store(store: "MetadataStore") -> list[Finding]:
    """Compare the store's clock with ours, and tell what the auditor of repair has found of its own."""
    from octavo.repair.base.waits import DOCUMENT, decode_waits

    before = time.time()
    clock = await store.time_ms() / 1000
    findings = [clock_finding("the metadata store", clock, before, time.time())]
    found = await store.read_document(DOCUMENT)
    trouble = "" if found is None else decode_waits(found.value).time.trouble.replace("the client", "the auditor")
    if trouble:
        findings.append(Finding("clocks of repair", "warning", f"{trouble}: holds and grace times last longer"))
    return findings


async def _facts_of_bookies(session: Session) -> list[Finding]:
    from octavo.client.bookie_status import ask_bookies

    async with await session.open_metadata() as store:
        before = time.time()
        bookies = await ask_bookies(store)
        after = time.time()
    findings: list[Finding] = []
    versions = sorted({bookie.version for bookie in bookies if bookie.version is not None} | {__version__})
    if len(versions) == 1:
        findings.append(Finding("versions", "ok", f"this command and all bookies run {versions[0]}"))
    else:
        findings.append(Finding("versions", "warning", f"in use: {', '.join(versions)}; finish the upgrade"))
    findings.append(hosts_finding(bookies))
    for bookie in bookies:
        if (days := certificate_days(bookie.facts, after)) is not None:
            findings.append(certificate_finding(f"certificate of {bookie.bookie_id}", days))
        clock: Any = (bookie.facts or {}).get("clock_seconds")
        if isinstance(clock, int | float) and not isinstance(clock, bool):
            findings.append(clock_finding(bookie.bookie_id, clock, before, after))
    return findings


def hosts_finding(bookies: "Sequence[BookieStatus]") -> Finding:
    """Whether the copies of an entry can be on different hosts."""
    from octavo.cli.cluster.hosts import keeps_copies_apart, remarks

    found = remarks(bookies)
    result = "ok" if keeps_copies_apart(bookies) else "warning"
    return Finding("hosts", result, "; ".join(found) or "every bookie runs on a host of its own")


def certificate_finding(check: str, days: int) -> Finding:
    """Whether a certificate that expires in ``days`` must be replaced."""
    result = "failed" if days < 0 else "warning" if days < CERTIFICATE_DAYS_MIN else "ok"
    advice = "" if result == "ok" else "; write a new one over its file"
    return Finding(check, result, f"{f'expires in {days} days' if days >= 0 else 'has expired'}{advice}")


def clock_finding(bookie_id: str, clock: float, before: float, after: float) -> Finding:
    """Compare a bookie's clock with ours. It was read between ``before`` and ``after``; all in seconds since 1970."""
    skew = clock - after if clock > after else min(0.0, clock - before)
    if abs(skew) <= CLOCK_SECONDS_WARN:
        return Finding(f"clock of {bookie_id}", "ok", f"within {max(abs(skew), after - before):.2f} s of this host")
    direction = "ahead of" if skew > 0 else "behind"
    return Finding(
        f"clock of {bookie_id}", "warning", f"{abs(skew):.1f} s {direction} this host: synchronize clocks (NTP)"
    )
