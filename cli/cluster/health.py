"""Finds faults of a cluster in what its metadata and its bookies say.

A *problem* needs an operator now: entries have fewer copies than they should have, or may get fewer. A *warning* needs
one soon. Nothing here is a proof: a bookie that is not registered may be alive.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from octavo.cli.output import counted
from octavo.protocol.errors import UnauthorizedError

if TYPE_CHECKING:
    from octavo.client.bookie_status import BookieStatus
    from octavo.metadata.updates.cluster_release import Release
    from octavo.metadata.updates.garbage_hold import GarbageHold

WRITABLE_MIN: Final = 3
"""Bookies that a ledger of the default shape needs."""

CERTIFICATE_DAYS_MIN: Final = 14
"""With fewer days left an operator should replace a certificate."""


class Severity(enum.StrEnum):
    """How urgent a finding is."""

    PROBLEM = "problem"
    WARNING = "warning"


class Finding(NamedTuple):
    """One thing that is wrong."""

    severity: Severity
    text: str


def examine(
    bookies: "Sequence[BookieStatus]", hold: "GarbageHold | None", finalized: "Release | None" = None, *, now: float
) -> list[Finding]:
    """The findings, problems first. Empty for a healthy cluster. ``finalized``: the cluster's release; ``now``: the
    time in seconds since 1970."""
    from octavo.metadata.updates.cluster_release import release_of  # noqa: PLC0415

    findings: list[Finding] = []
    if not bookies:
        return [Finding(Severity.PROBLEM, "the cluster has no bookie; start one with `octavo bookie`")]
    for bookie in bookies:
        findings += _of_bookie(bookie, now)
    writable = sum(bookie.state.value == "writable" for bookie in bookies)
    if writable < WRITABLE_MIN:
        severity = Severity.PROBLEM if writable == 0 else Severity.WARNING
        text = f"{counted(writable, 'writable bookie')}: a ledger with an ensemble of {WRITABLE_MIN} cannot be created"
        findings.append(Finding(severity, text))
    versions = sorted({bookie.version for bookie in bookies if bookie.version is not None})
    if len(versions) > 1:
        findings.append(
            Finding(Severity.WARNING, f"bookies run different versions ({', '.join(versions)}): finish the upgrade")
        )
    elif finalized is not None and versions and (release := release_of(versions[0])) > finalized:
        text = (
            f"all bookies run release {release}, the cluster is at {finalized}: run `octavo cluster finalize {release}`"
        )
        findings.append(Finding(Severity.WARNING, text))
    if hold is not None:
        text = f"garbage collection is on hold since {hold.since.isoformat(timespec='seconds')}: {hold.reason}"
        findings.append(Finding(Severity.WARNING, text))
    return sorted(findings, key=lambda finding: finding.severity is Severity.WARNING)


def certificate_days(facts: Mapping[str, Any] | None, now: float) -> int | None:
    """Whole days until a bookie's certificate expires, negative once it has; None: it has none, or does not tell."""
    expires_at = _number(facts or {}, "certificate_expires_at")
    return int((expires_at - now) // 86_400) if expires_at else None


def _of_bookie(bookie: "BookieStatus", now: float) -> list[Finding]:
    name = f"bookie {bookie.bookie_id} at {bookie.address}"
    if bookie.state.value == "unavailable":
        return [Finding(Severity.PROBLEM, f"{name} is not registered: check its process and its log")]
    facts = bookie.facts
    if isinstance(bookie.error, UnauthorizedError):
        return [Finding(Severity.PROBLEM, f"{name} does not show its state to this client: {bookie.error.message}")]
    if facts is None:
        reason = "" if bookie.error is None else f" ({bookie.error.message})"
        text = f"{name} is registered but does not answer{reason}: check its host and the network"
        return [Finding(Severity.PROBLEM, text)]
    findings: list[Finding] = []
    if bookie.state.value == "read-only":
        shortage = shortage_in_words(facts)
        why = "its log says why" if shortage is None else f"a disk is short of space, {shortage}"
        findings.append(Finding(Severity.WARNING, f"{name} is read-only: {why}"))
    if facts.get("in_doubt"):
        findings.append(Finding(Severity.WARNING, f"{name} is in doubt: it may have lost entries of existing ledgers"))
    damaged = sum(_number(facts, fact) for fact in ("entries_damaged", "index_damage"))
    if damaged:
        places = counted(int(damaged), "damaged place")
        findings.append(Finding(Severity.PROBLEM, f"{name} has found {places}: see its log"))
    days = certificate_days(facts, now)
    if days is not None and days < 0:
        findings.append(Finding(Severity.PROBLEM, f"the certificate of {name} has expired: clients refuse it"))
    elif days is not None and days < CERTIFICATE_DAYS_MIN:
        text = f"the certificate of {name} expires in {counted(days, 'day')}: write a new one over its file"
        findings.append(Finding(Severity.WARNING, text))
    if facts.get("disk_space_low"):
        text = f"{name} has less than disk_warn_bytes of disk space left: free space, or add bookies"
        findings.append(Finding(Severity.WARNING, text))
    return findings


def shortage_in_words(facts: Mapping[str, Any] | None) -> str | None:
    """How much disk space a bookie has and wants that is read-only for lack of it; None of others."""
    wanted_bytes = 0.0 if facts is None else _number(facts, "disk_short_wanted_bytes")
    if facts is None or not wanted_bytes:
        return None
    return f"{_number(facts, 'disk_short_free_bytes') / 1e9:,.1f} GB free, {wanted_bytes / 1e9:,.1f} GB wanted"


def _number(facts: Mapping[str, Any], name: str) -> float:
    value = facts.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0
