"""A metadata store between a test's client and the real one: single methods of it behave as the test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from octavo.metadata import MetadataStore
from octavo.protocol.errors import MetadataUnavailableError


class InterposedStore:
    """Passes everything on to ``store``, but for the methods given to :meth:`interpose`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._interposed: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return self._interposed.get(name) or getattr(self._store, name)

    @property
    def face(self) -> MetadataStore:
        """This store, as clients see it."""
        return cast(MetadataStore, self)

    @property
    def real(self) -> MetadataStore:
        """The store behind it."""
        return self._store

    def interpose(self, method: str, call: Callable[..., Any]) -> None:
        """Call ``call`` in place of a method from now on."""
        assert hasattr(self._store, method), method
        self._interposed[method] = call

    def make_unavailable(self, method: str) -> None:
        """Fail this method as if the store did not answer."""

        async def unavailable(*_arguments: object, **_named: object) -> Any:
            raise MetadataUnavailableError("no answer")

        self.interpose(method, unavailable)

    def silence(self, watch: str) -> None:
        """Let watches of this kind report nothing, not even the value of now."""

        @contextlib.asynccontextmanager
        async def silent(*_arguments: object) -> AsyncIterator[AsyncIterator[Any]]:
            async def nothing() -> AsyncIterator[Any]:
                await asyncio.Event().wait()
                yield None

            yield nothing()

        self.interpose(watch, silent)

    def restore(self) -> None:
        """Pass everything on again."""
        self._interposed.clear()
