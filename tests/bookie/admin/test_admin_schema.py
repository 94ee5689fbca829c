"""The description of the administration interface is valid OpenAPI, and what it says is true: schemathesis makes
requests from it, right ones and wrong ones, and compares the answers with it."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from octavo.bookie.admin.endpoints import ENDPOINTS
from octavo.bookie.admin.http import HttpListener
from octavo.bookie.admin.openapi import describe
from octavo.metadata import open_metadata_store
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from support.admin import attended_bookie
from support.metadata.ledger_metadata import fragment, open_ledger

DOCUMENT = describe(ENDPOINTS, version="0-test")
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


class AdministeredBookie:
    """A bookie in a thread of its own, whose socket is also reached over TCP, because schemathesis knows no other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = ""
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> "AdministeredBookie":
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        async with (
            await open_metadata_store("memory://", create=True) as store,
            attended_bookie(self._directory, store) as (_, attendant),
        ):
            ledger_id = await store.allocate_ledger_id()
            await store.create_ledger(open_ledger(ledger_id, fragment(0, "xyz")))
            listener = HttpListener(attendant.answer, trusted=True)
            server = await asyncio.get_running_loop().create_server(listener.connection, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._up.set()
            await self._stop.wait()
            server.close()
            listener.close()


@pytest.fixture(scope="module")
def url(module_folder: Path) -> Iterator[str]:
    with AdministeredBookie(module_folder / "b") as bookie:
        yield bookie.url


def test_the_description_is_valid_openapi() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()
    operations = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len(operations) == len(ENDPOINTS)
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)


@SCHEMA.exclude(path="/api/v1/profile").parametrize()
@settings(
    max_examples=15, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_every_answer_is_one_that_is_described(case: Any, url: str) -> None:
    case.call_and_validate(
        base_url=url,
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
            negative_data_rejection,
            positive_data_acceptance,
            unsupported_method,
        ],
    )
