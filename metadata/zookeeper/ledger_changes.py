"""Changes of many ledgers' metadata, several in one transaction.

A transaction costs the servers and the client little more than a single change, and it is executed as a whole or not at
all. One change that is refused (another client has changed or deleted the ledger) must not fail the others: its outcome
is None, and the rest are requested again. When an answer is lost, the nodes are read before there is an outcome (rule
M1): one node found with the wanted bytes and the next version proves that the whole transaction was executed.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from octavo.metadata.store.driver import Kind
from octavo.metadata.store.values import Version
from octavo.metadata.zookeeper.layout import Paths, Stat, name_of, split_version, version_of
from octavo.metadata.zookeeper.messages import BAD_VERSION, NO_NODE, OK, ROLLED_BACK, Answer, Node, multi, set_value
from octavo.metadata.zookeeper.nodes import Nodes, Operation

TOGETHER_MAX: Final = 32
"""Changes in one transaction: as many as ledgers created in one (see ``ledger_creation``)."""

TOGETHER_BYTES_MAX: Final = 128 * 1024
"""Bytes of values in one transaction, unless one value alone has more: far below a server's limit (1 MiB)."""


class _Change(NamedTuple):
    at: int
    """Its index in the call."""
    key: str
    path: str
    value: bytes
    created: int
    version: int


async def change_ledgers(
    nodes: Nodes, paths: Paths, changes: Sequence[tuple[str, bytes, Version]]
) -> list[Version | None]:
    """Set the value (key, value, expected version) of each ledger's node; the new versions, None where the node is gone
    or has another version."""
    outcomes: list[Version | None] = [None] * len(changes)
    wanted = [
        _Change(at, key, paths.node(Kind.LEDGER, key), value, *split_version(expected))
        for at, (key, value, expected) in enumerate(changes)
    ]
    for group in _groups(wanted):
        async with nodes.operation(_names(group)) as operation:
            remaining = group
            while remaining:
                remaining = await _attempt(nodes, operation, remaining, outcomes)
    return outcomes


async def _attempt(
    nodes: Nodes, operation: Operation, changes: list[_Change], outcomes: list[Version | None]
) -> list[_Change]:
    """One transaction; returns the changes to be requested again without those that were refused."""

    async def settle() -> Answer | None:
        return _settled(changes, await nodes.read_many([change.path for change in changes]))

    requests = [set_value(change.path, change.value, change.version) for change in changes]
    largest = max(len(change.value) for change in changes)
    answer = await nodes.change(operation, multi(*requests), settle, value_bytes=largest)
    parts: list[Answer] = nodes.expect(answer, operation.what).value
    if all(part.code == OK for part in parts):
        for change, part in zip(changes, parts, strict=True):
            outcomes[change.at] = version_of(part.value)
        return []
    for change, part in zip(changes, parts, strict=True):
        nodes.expect(part, change.path, NO_NODE, BAD_VERSION, ROLLED_BACK)
    # A transaction stops at the first refusal: what it says of the parts after it is that they were rolled back.
    return [change for change, part in zip(changes, parts, strict=True) if part.code in {OK, ROLLED_BACK}]


def _settled(changes: Sequence[_Change], found: Sequence[Node | None]) -> Answer | None:
    """The answer that a transaction whose answer was lost has got, or must have got; None when it was not executed and
    may be sent again as it is."""
    if any(_is_made(change, node) for change, node in zip(changes, found, strict=True)):
        # Executed as a whole; what other clients did to some of the nodes since is for later.
        return Answer(OK, [Answer(OK, Stat(change.created, change.version + 1, 0)) for change in changes])
    codes = [_refusal_of(change, node) for change, node in zip(changes, found, strict=True)]
    if all(code == ROLLED_BACK for code in codes):
        return None
    return Answer(OK, [Answer(code) for code in codes])


def _is_made(change: _Change, node: Node | None) -> bool:
    return (
        node is not None
        and (node.stat.created, node.stat.version) == (change.created, change.version + 1)
        and node.value == change.value
    )


def _refusal_of(change: _Change, node: Node | None) -> int:
    """The code of a change that was not made. Where the node has been changed more than once since, the answer is a
    conflict in any case: a client that changes a ledger decides on the metadata that it then finds."""
    if node is None or node.stat.created != change.created:
        return NO_NODE
    return ROLLED_BACK if node.stat.version == change.version else BAD_VERSION


def _groups(changes: Sequence[_Change]) -> Iterator[list[_Change]]:
    group: list[_Change] = []
    size = 0
    for change in changes:
        if group and (len(group) == TOGETHER_MAX or size + len(change.value) > TOGETHER_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(change)
        size += len(change.value)
    if group:
        yield group


def _names(changes: Sequence[_Change]) -> str:
    """A name for error messages."""
    first = name_of(Kind.LEDGER, changes[0].key)
    return first if len(changes) == 1 else f"{first} and {len(changes) - 1} more"
