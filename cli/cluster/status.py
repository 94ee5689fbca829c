"""``octavo cluster status``: whether a cluster is healthy, in one sentence, and what is wrong with it."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, Session, command

if TYPE_CHECKING:
    from octavo.client.bookie_status import BookieStatus
    from octavo.metadata.updates.cluster_release import Release
    from octavo.metadata.updates.garbage_hold import GarbageHold


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "status", logs=False, brief=True)(status)


async def status(session: Session) -> int:
    """Show whether the cluster is healthy.

    The exit status is 0 if no problem was found, and 1 otherwise. Warnings do not count.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    facts = await cluster_facts(session)
    problems = sum(finding["severity"] == "problem" for finding in facts["findings"])
    if session.as_json:
        print_json(facts)
    else:
        print_line(f"cluster {facts['cluster_id']} {facts['health']}")
        states = ", ".join(f"{number} {state}" for state, number in facts["bookies"].items())
        print_line(f"bookies: {states}")
        for finding in facts["findings"]:
            print_line(f"{finding['severity']}: {finding['text']}")
    return EXIT_FAILURE if problems else EXIT_OK


async def cluster_facts(session: Session) -> dict[str, Any]:
    """Health, bookies by state and findings, as JSON. Raises as a connection to the cluster does."""
    from octavo.client.bookie_status import ask_bookies  # noqa: PLC0415
    from octavo.metadata.updates.cluster_release import finalized_release  # noqa: PLC0415
    from octavo.metadata.updates.garbage_hold import read_hold  # noqa: PLC0415

    async with await session.open_metadata() as store:
        bookies = await ask_bookies(store)
        cluster_id, hold = await store.cluster_id(), await read_hold(store)
        finalized = await finalized_release(store)
    return as_json(cluster_id, bookies, hold, finalized, now=time.time())


def as_json(
    cluster_id: str, bookies: "Sequence[BookieStatus]", hold: "GarbageHold | None", finalized: "Release", *, now: float
) -> dict[str, Any]:
    """The same from what has been read. ``finalized``: the cluster's release; ``now`` in seconds since 1970."""
    from octavo.cli.cluster.health import Severity, examine  # noqa: PLC0415

    findings = examine(bookies, hold, finalized, now=now)
    problems = sum(finding.severity is Severity.PROBLEM for finding in findings)
    warnings = len(findings) - problems
    states = [bookie.state.value for bookie in bookies]
    return {
        "cluster_id": cluster_id,
        "release": str(finalized),
        "healthy": not problems,
        "health": f"has {_counted(problems, 'problem')} and {_counted(warnings, 'warning')}"
        if problems
        else f"is healthy, with {_counted(warnings, 'warning')}"
        if warnings
        else "is healthy",
        "bookies": {state: states.count(state) for state in ("writable", "read-only", "unavailable")},
        "findings": [{"severity": finding.severity.value, "text": finding.text} for finding in findings],
    }


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
