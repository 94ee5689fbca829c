"""Objects in a bucket of S3, or of a store that speaks its protocol, by the library obstore.

obstore cuts the parts, sends several at a time, and repeats single requests. Uploads that were begun and not ended are
not listed by it: where a process was killed, the bucket's own rule for unfinished uploads removes them.
"""

import re
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

import obstore
from obstore import exceptions
from obstore.store import S3Store
from octavo.bookie.archive.errors import ArchiveError, ObjectMissingError, StoreAwayError, StoreRefusedError
from octavo.bookie.archive.store import ObjectFacts
from octavo.bookie.archive.writing import PART_BYTES

if TYPE_CHECKING:
    from obstore import ObjectMeta

_REFUSALS = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.UnknownConfigurationKeyError,
)
_STATUS = re.compile(r"non-2xx status code: (\d+)")
"""obstore gives some answers, and those to listings, an error class that says nothing. Their text has the status."""
_IGNORES_RANGES = "Received non-partial response"
"""In the text of an error: the answer to a request for a range was the whole object, as rclone's is."""
MESSAGE_CHARACTERS_MAX = 500


class RemoteStore:
    """A driver of ``s3://bucket/prefix``."""

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        config: Mapping[str, str] | None = None,
        part_bytes: int = PART_BYTES,
        parts_under_way: int = 2,
        allow_http: bool = False,
        request_timeout_seconds: float = 60.0,
        retries: int = 3,
        retry_timeout_seconds: float = 60.0,
    ) -> None:
        """``config``: what obstore does not find in the environment, in a file or from the host's role.

        Memory for ``parts_under_way`` parts, one that is being filled, and one of the caller's."""
        self._url = f"s3://{bucket}/{prefix}"
        self._part_bytes = part_bytes
        self._parts_under_way = parts_under_way
        self._store = S3Store(
            bucket,
            prefix=prefix,
            config={**(config or {})},  # type: ignore[arg-type]
            client_options={
                "allow_http": allow_http,
                "timeout": timedelta(seconds=request_timeout_seconds),
                "connect_timeout": timedelta(seconds=min(request_timeout_seconds, 10.0)),
            },
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=retry_timeout_seconds)},
        )

    @property
    def url(self) -> str:
        return self._url

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> None:
        try:
            await obstore.put_async(
                *(self._store, key, parts), chunk_size=self._part_bytes, max_concurrency=self._parts_under_way
            )
        except (exceptions.BaseError, OSError) as error:
            self._raise(key, error)

    async def get(self, key: str, start: int, stop: int) -> bytes:
        try:
            return bytes(await obstore.get_range_async(self._store, key, start=start, end=stop))
        except exceptions.GenericError as error:
            if _status_of(error) == "416":
                return b""
            if _IGNORES_RANGES in str(error):
                raise StoreRefusedError(f"{self._url}: the store ignores ranges, so that it cannot be used") from error
            self._raise(key, error)
        except (exceptions.BaseError, OSError) as error:
            self._raise(key, error)

    async def head(self, key: str) -> ObjectFacts:
        try:
            found = await obstore.head_async(self._store, key)
        except (exceptions.BaseError, OSError) as error:
            self._raise(key, error)
        return _facts(found)

    async def delete(self, key: str) -> None:
        try:
            await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return
        except (exceptions.BaseError, OSError) as error:
            self._raise(key, error)

    async def list(self, prefix: str) -> AsyncIterator[ObjectFacts]:
        try:
            async for found in obstore.list(self._store, prefix=prefix or None):
                for one in found:
                    yield _facts(one)
        except (exceptions.BaseError, OSError) as error:
            self._raise(prefix, error)

    async def close(self) -> None:
        """Nothing is held: connections close when they have been idle."""

    def _raise(self, key: str, error: Exception) -> NoReturn:
        raise translated(f"{self._url}/{key}", error) from error


def translated(about: str, error: Exception) -> ArchiveError:
    """The error of this room for one of obstore."""
    message = f"{about}: {str(error).partition('Debug source')[0].strip()[:MESSAGE_CHARACTERS_MAX]}"
    status = _status_of(error)
    if isinstance(error, FileNotFoundError) or status == "404":
        return ObjectMissingError(message)
    if isinstance(error, _REFUSALS) or status in {"401", "403"}:
        return StoreRefusedError(message)
    return StoreAwayError(message)


def _status_of(error: Exception) -> str | None:
    found = _STATUS.search(str(error))
    return found and found[1]


def _facts(found: "ObjectMeta") -> ObjectFacts:
    return ObjectFacts(found["path"], found["size"], int(found["last_modified"].timestamp() * 1000))
