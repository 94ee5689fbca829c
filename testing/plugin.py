"""Fixtures for pytest, which finds them once Octavo is installed.

===================  =======  ======================================================================================
fixture              lives    gives
===================  =======  ======================================================================================
``octavo_cluster``   session  a running :class:`octavo.testing.Cluster`
``octavo_kafka``     session  the address of a gateway of that cluster, for clients of Kafka's protocol
``octavo_client``    test     a client of it: what ``octavo.connect`` gives
``octavo_log``       test     a new log, which has the name of the test
===================  =======  ======================================================================================

The last two are async fixtures: they need pytest-asyncio, or anyio's plugin. Nothing is imported and nothing is started
for tests that use none of them.
"""

import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import octavo.testing
import pytest

import octavo

try:
    from pytest_asyncio import fixture as _async_fixture
except ImportError:  # anyio's plugin takes async fixtures as they are
    _async_fixture: Callable[..., Any] = pytest.fixture  # type: ignore[no-redef]

_NAME_CHARACTERS_MAX: Final = 100

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def octavo_cluster() -> "Iterator[octavo.testing.Cluster]":
    """A cluster of three bookies, which all tests of the run share."""
    with octavo.testing.cluster() as running:
        yield running


@pytest.fixture(scope="session")
def octavo_kafka(octavo_cluster: "octavo.testing.Cluster") -> str:
    """Where clients of Kafka's protocol connect."""
    return octavo_cluster.serve_kafka()


@_async_fixture
async def octavo_client(octavo_cluster: "octavo.testing.Cluster") -> "AsyncIterator[octavo.Client]":
    """A client of the cluster; it is closed after the test."""
    async with octavo.connect(octavo_cluster.uri) as client:
        yield client


@_async_fixture
async def octavo_log(octavo_client: "octavo.Client", request: pytest.FixtureRequest) -> "AsyncIterator[octavo.Log]":
    """A log that no other test uses."""
    async with octavo_client.create_log(log_name(request.node.name)) as log:
        yield log


def log_name(test: str) -> str:
    """A name for the log of a test: that of the test, as far as a log can have it, and a number."""
    fit = re.sub(r"[^A-Za-z0-9_.-]+", "-", test).strip("-.")[:_NAME_CHARACTERS_MAX]
    return f"{fit or 'test'}-{next(_numbers)}"
