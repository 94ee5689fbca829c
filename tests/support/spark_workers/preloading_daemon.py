"""PySpark's daemon, which forks Spark's Python workers, with Octavo's modules loaded already.

Spark starts a worker for each look at a table, and in tests that takes less time than to load the client.
"""

from importlib import import_module

from pyspark import daemon

# No module may start a thread, which a fork would leave behind: not NumPy and not Arrow.
for name in (
    "octavo.client.client",
    "octavo.metadata",
    "octavo.pipeline.base.bridge",
    "octavo.pipeline.datasource",
    "octavo.pipeline.source.discovery",
    "uvloop",
):
    import_module(name)

if __name__ == "__main__":
    daemon.manager()
