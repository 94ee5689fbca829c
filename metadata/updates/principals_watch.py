"""Follows the document of principals while a server runs. In an outage of the metadata store, or if the document
cannot be read, the server goes on with the principals that it knew."""

import asyncio
from typing import Protocol

import structlog
from octavo.metadata.cluster.principals import DOCUMENT, Principals, decode_principals
from octavo.metadata.store.follow import follow
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import OctavoError
from octavo.security.audit import Audit

log = structlog.get_logger("octavo.metadata")

RETRY_SECONDS = 10.0
"""Pause before a document that cannot be read is read again."""


class PrincipalsAccess(Protocol):
    """The part of a server that decides who is served."""

    @property
    def audit(self) -> Audit: ...

    @property
    def principals(self) -> Principals: ...

    def update(self, principals: Principals) -> None:
        """The principals have changed."""


class PrincipalsWatch:
    """See the module. :meth:`start` once, :meth:`stop` at the end."""

    def __init__(self, store: MetadataStore, access: PrincipalsAccess) -> None:
        self._store = store
        self._access = access
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the document, and follow it from then on. Raises as the store does: a server that does not know its
        principals serves no client."""
        await self._take(await self._store.read_document(DOCUMENT))
        self._task = asyncio.get_running_loop().create_task(self._run(), name="octavo-principals")

    async def stop(self) -> None:
        """Follow it no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        def on_error(error: OctavoError) -> None:
            log.error("principals cannot be read: those known before stay", reason=error.message)

        await follow(
            lambda: self._store.watch_document(DOCUMENT), self._take, on_error=on_error, retry_seconds=RETRY_SECONDS
        )

    async def _take(self, stored: Versioned[bytes] | None) -> None:
        principals = Principals() if stored is None else decode_principals(stored.value)
        if principals != self._access.principals:
            if self._task is not None:  # what was found at the start is no change
                note_changes(self._access.audit, self._access.principals, principals)
            self._access.update(principals)
            log.info("principals read", principals=len(principals.by_name))


def note_changes(audit: Audit, before: Principals, after: Principals) -> None:
    """A line for each principal that is not what it was."""
    for name in sorted({*before.by_name, *after.by_name}):
        was, one = before.by_name.get(name), after.by_name.get(name)
        if was != one:
            audit.note(
                "principal_changed",
                name=name,
                change="removed" if one is None else "added" if was is None else "changed",
                roles=None if one is None else list(one.role_names()),
                rights=None if one is None or not one.grants else list(one.grant_texts()),
                disabled=None if one is None else one.disabled,
            )
