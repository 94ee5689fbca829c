"""A metadata store between a test's client and the real one: single methods of it behave as the test says."""

import asyncio
from collections.abc import Callable
from typing import Any, Self, cast

from octavo.metadata import MetadataStore
from octavo.protocol.errors import MetadataUnavailableError, OctavoError


class SilentWatch:
    """A watch that never reports anything, not even the value of now."""

    def begin(self, _on_value: object, on_end: Callable[[OctavoError], object]) -> Self:
        """Begin to say nothing."""
        return self

    def stop(self) -> None:
        """Go on saying nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Nothing to end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        await asyncio.Event().wait()


class FailingWatch(SilentWatch):
    """A watch that ends with an error before it has reported anything."""

    def __init__(self, error: OctavoError) -> None:
        self._error = error

    def begin(self, _on_value: object, on_end: Callable[[OctavoError], object]) -> Self:
        """Begin, and end."""
        asyncio.get_running_loop().call_soon(on_end, self._error)
        return self

    async def __anext__(self) -> None:
        raise self._error


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

        self.interpose(watch, lambda *_arguments: SilentWatch())

    def restore(self) -> None:
        """Pass everything on again."""
        self._interposed.clear()
