"""A cluster for the tests of programs that use Octavo.

    with octavo.testing.cluster() as cluster:
        async with octavo.connect(cluster.uri) as client:
            ...

The bookies are those of production, on sockets of this host, with their files in memory. They run in threads of this
process, so that tests with any event loop, or with none, can use them, and so can processes that a test starts.
:mod:`octavo.testing.plugin` has the fixtures for pytest. Names are loaded when first used: pytest loads the plugin in
each run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.testing.clock import Clock
    from octavo.testing.local_cluster import Cluster, cluster

__all__ = ["Clock", "Cluster", "cluster"]

_HOMES = {
    "Clock": "octavo.testing.clock",
    "Cluster": "octavo.testing.local_cluster",
    "cluster": "octavo.testing.local_cluster",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'octavo.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
