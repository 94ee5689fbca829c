"""The rooms of the tree: which folder, and which part of a folder, may import which (tests/house/test_imports.py).

scripts/artifacts/draw_rooms.py draws them.
"""

MAY_IMPORT = {
    "metrics": frozenset[str](),
    "protocol": frozenset[str](),
    "security": frozenset({"protocol"}),
    "metadata": frozenset({"metrics", "protocol", "security"}),
    "bookie": frozenset({"metrics", "protocol", "security", "metadata"}),
    "client": frozenset({"metrics", "protocol", "security", "metadata"}),
    "repair": frozenset({"protocol", "metadata", "client"}),
    "gateway": frozenset({"metrics", "protocol", "security", "metadata", "client"}),
    "pipeline": frozenset({"octavo", "protocol", "security", "metadata", "client"}),
    "octavo": frozenset({"metrics", "protocol", "security", "metadata", "client", "pipeline"}),
    "cli": frozenset(
        {"octavo", "metrics", "protocol", "security", "metadata", "bookie", "client", "repair", "gateway", "pipeline"}
    ),
    "testing": frozenset({"octavo", "metadata", "protocol", "bookie", "client", "gateway"}),
    "deploy": frozenset[str](),
}
"""Each folder and the other folders its modules may import from (the direction of dependencies in the design)."""

ROOMS = {
    "bookie.disk": frozenset[str](),
    "bookie.memory": frozenset[str](),
    "bookie.entrylog": frozenset(
        {
            "bookie.disk",
        }
    ),
    "bookie.archive": frozenset(
        {
            "bookie.disk",
        }
    ),
    "bookie.index": frozenset(
        {
            "bookie.disk",
        }
    ),
    "bookie.journal": frozenset(
        {
            "bookie.disk",
        }
    ),
    "bookie.storage": frozenset(
        {
            "bookie.disk",
            "bookie.entrylog",
            "bookie.index",
            "bookie.journal",
        }
    ),
    "bookie.server": frozenset(
        {
            "bookie.disk",
            "bookie.memory",
            "bookie.storage",
        }
    ),
    "bookie.upkeep": frozenset(
        {
            "bookie.disk",
            "bookie.journal",
            "bookie.storage",
        }
    ),
    "bookie.admin": frozenset(
        {
            "bookie.disk",
            "bookie.server",
            "bookie.storage",
            "bookie.upkeep",
        }
    ),
    "bookie.copies": frozenset(
        {
            "bookie.storage",
            "bookie.upkeep",
        }
    ),
    "bookie.identity": frozenset(
        {
            "bookie.disk",
        }
    ),
    "bookie": frozenset(
        {
            "bookie.admin",
            "bookie.copies",
            "bookie.disk",
            "bookie.identity",
            "bookie.index",
            "bookie.journal",
            "bookie.memory",
            "bookie.server",
            "bookie.storage",
            "bookie.upkeep",
        }
    ),
    "bookie.offline": frozenset(
        {"bookie.disk", "bookie.entrylog", "bookie.identity", "bookie.index", "bookie.journal", "bookie.storage"}
    ),
    "client.arguments": frozenset[str](),
    "client.async_context": frozenset[str](),
    "client.awaitable_context": frozenset(
        {
            "client.async_context",
        }
    ),
    "client.counts": frozenset[str](),
    "client.options": frozenset[str](),
    "client.statistics": frozenset[str](),
    "client.supervisor": frozenset[str](),
    "client.wire": frozenset(
        {
            "client.counts",
            "client.options",
            "client.statistics",
            "client.supervisor",
        }
    ),
    "client.choose": frozenset(
        {
            "client.wire",
        }
    ),
    "client.same_loop": frozenset[str](),
    "client.write.front": frozenset(
        {
            "client.arguments",
            "client.options",
            "client.same_loop",
        }
    ),
    "client.write": frozenset(
        {
            "client.async_context",
            "client.choose",
            "client.counts",
            "client.options",
            "client.same_loop",
            "client.statistics",
            "client.supervisor",
            "client.wire",
            "client.write.front",
        }
    ),
    "client.departed_bookies": frozenset(
        {
            "client.supervisor",
            "client.write",
        }
    ),
    "client.log.documents": frozenset[str](),
    "client.log.keys": frozenset({"client.log.documents"}),
    "client.read": frozenset(
        {
            "client.arguments",
            "client.async_context",
            "client.options",
            "client.same_loop",
            "client.statistics",
            "client.wire",
        }
    ),
    "client.recover": frozenset(
        {"client.choose", "client.options", "client.supervisor", "client.wire", "client.write", "client.write.front"}
    ),
    "client.write.deferred": frozenset(
        {
            "client.wire",
            "client.write",
            "client.write.front",
        }
    ),
    "client.write.copies": frozenset(
        {
            "client.options",
            "client.wire",
            "client.write",
        }
    ),
    "client.write.kinds": frozenset(
        {
            "client.options",
            "client.write",
            "client.write.copies",
            "client.write.deferred",
        }
    ),
    "client.terms": frozenset(
        {
            "client.arguments",
            "client.choose",
            "client.read",
            "client.recover",
            "client.write",
            "client.write.front",
            "client.write.kinds",
        }
    ),
    "client.log.seam": frozenset(
        {
            "client.arguments",
            "client.counts",
            "client.log.documents",
            "client.options",
            "client.read",
            "client.terms",
            "client.write",
        }
    ),
    "client.log.ages": frozenset(
        {
            "client.log.documents",
            "client.log.seam",
        }
    ),
    "client.log.cursors": frozenset(
        {"client.arguments", "client.log.documents", "client.log.seam", "client.same_loop"}
    ),
    "client.log.writer": frozenset(
        {
            "client.arguments",
            "client.async_context",
            "client.counts",
            "client.log.documents",
            "client.log.keys",
            "client.log.seam",
            "client.options",
            "client.same_loop",
            "client.statistics",
            "client.supervisor",
            "client.write",
            "client.write.front",
        }
    ),
    "client.log.layout": frozenset(
        {
            "client.log.documents",
            "client.log.seam",
            "client.log.writer",
        }
    ),
    "client.log.chain": frozenset(
        {
            "client.arguments",
            "client.log.ages",
            "client.log.cursors",
            "client.log.documents",
            "client.log.layout",
            "client.log.seam",
            "client.log.writer",
            "client.read",
            "client.same_loop",
        }
    ),
    "client.log.read": frozenset(
        {
            "client.log.keys",
            "client.log.seam",
        }
    ),
    "client.log.stream": frozenset(
        {
            "client.log.ages",
            "client.log.cursors",
            "client.log.documents",
            "client.log.layout",
            "client.log.seam",
            "client.log.writer",
            "client.read",
            "client.same_loop",
            "client.terms",
            "client.write",
        }
    ),
    "client.log": frozenset(
        {
            "client.arguments",
            "client.async_context",
            "client.awaitable_context",
            "client.log.chain",
            "client.log.cursors",
            "client.log.documents",
            "client.log.keys",
            "client.log.layout",
            "client.log.read",
            "client.log.seam",
            "client.log.stream",
            "client.log.writer",
            "client.read",
            "client.statistics",
        }
    ),
    "client": frozenset(
        {
            "client.arguments",
            "client.async_context",
            "client.awaitable_context",
            "client.choose",
            "client.departed_bookies",
            "client.log",
            "client.log.documents",
            "client.log.seam",
            "client.options",
            "client.read",
            "client.recover",
            "client.same_loop",
            "client.statistics",
            "client.terms",
            "client.wire",
            "client.write",
            "client.write.kinds",
        }
    ),
    "metadata.encoding": frozenset[str](),
    "metadata.ledger": frozenset(
        {
            "metadata.encoding",
        }
    ),
    "metadata.cluster": frozenset(
        {
            "metadata.encoding",
            "metadata.ledger",
        }
    ),
    "metadata.own_tasks": frozenset[str](),
    "metadata.stream": frozenset(
        {
            "metadata.encoding",
            "metadata.ledger",
        }
    ),
    "metadata.store": frozenset(
        {
            "metadata.cluster",
            "metadata.ledger",
            "metadata.own_tasks",
            "metadata.stream",
        }
    ),
    "metadata.memory": frozenset(
        {
            "metadata.store",
        }
    ),
    "metadata.clocks": frozenset[str](),
    "metadata.sqlite": frozenset(
        {
            "metadata.clocks",
            "metadata.store",
        }
    ),
    "metadata.zookeeper": frozenset(
        {"metadata.clocks", "metadata.cluster", "metadata.encoding", "metadata.own_tasks", "metadata.store"}
    ),
    "metadata.connect": frozenset(
        {
            "metadata.memory",
            "metadata.sqlite",
            "metadata.store",
            "metadata.zookeeper",
        }
    ),
    "metadata.updates": frozenset(
        {"metadata.cluster", "metadata.encoding", "metadata.ledger", "metadata.store", "metadata.stream"}
    ),
    "metadata.__init__": frozenset(
        {"metadata.cluster", "metadata.connect", "metadata.ledger", "metadata.store", "metadata.updates"}
    ),
    "repair.base": frozenset[str](),
    "repair.audit": frozenset(
        {
            "repair.base",
        }
    ),
    "repair.copy": frozenset(
        {
            "repair.base",
        }
    ),
    "repair.doubt": frozenset(
        {
            "repair.base",
            "repair.copy",
        }
    ),
    "repair": frozenset(
        {
            "repair.audit",
            "repair.base",
            "repair.copy",
            "repair.doubt",
        }
    ),
    "repair.operate": frozenset(
        {
            "repair.base",
        }
    ),
    "gateway.codes": frozenset[str](),
    "gateway.records": frozenset({"gateway.codes"}),
    "gateway.access": frozenset({"gateway.codes"}),
    "gateway.wire": frozenset({"gateway.access", "gateway.codes"}),
    "gateway.topics": frozenset({"gateway.codes"}),
    "gateway.groups": frozenset({"gateway.codes"}),
    "gateway.leading": frozenset(
        {
            "gateway.codes",
            "gateway.records",
            "gateway.topics",
        }
    ),
    "gateway.coordinating": frozenset(
        {
            "gateway.codes",
            "gateway.groups",
            "gateway.leading",
            "gateway.topics",
        }
    ),
    "gateway.service": frozenset(
        {
            "gateway.codes",
            "gateway.coordinating",
            "gateway.groups",
            "gateway.leading",
            "gateway.records",
            "gateway.topics",
            "gateway.wire",
        }
    ),
    "gateway": frozenset(
        {
            "gateway.access",
            "gateway.coordinating",
            "gateway.groups",
            "gateway.leading",
            "gateway.service",
            "gateway.topics",
            "gateway.wire",
        }
    ),
    "pipeline.base": frozenset[str](),
    "pipeline.sink": frozenset(
        {
            "pipeline.base",
        }
    ),
    "pipeline.source": frozenset(
        {
            "pipeline.base",
        }
    ),
    "pipeline.datasource": frozenset(
        {
            "pipeline.base",
            "pipeline.sink",
            "pipeline.source",
        }
    ),
    "pipeline.__init__": frozenset(
        {
            "pipeline.base",
            "pipeline.datasource",
        }
    ),
    "pipeline.tables": frozenset(
        {
            "pipeline.base",
        }
    ),
    "pipeline.jobs": frozenset(
        {
            "pipeline.__init__",
            "pipeline.base",
            "pipeline.source",
            "pipeline.tables",
        }
    ),
    "cli.running_cluster": frozenset[str](),
    "cli.output": frozenset[str](),
    "cli.replacing": frozenset[str](),
    "cli.event_loop": frozenset({"cli.output"}),
    "cli.session": frozenset({"cli.event_loop", "cli.running_cluster", "cli.output"}),
    "cli.rates": frozenset[str](),
    "cli.asking": frozenset({"cli.session", "cli.output"}),
    "cli.ledger": frozenset({"cli.event_loop", "cli.session", "cli.output"}),
    "cli.log": frozenset({"cli.event_loop", "cli.session", "cli.output", "cli.asking", "cli.ledger"}),
    "cli.top": frozenset({"cli.session", "cli.output", "cli.rates", "cli.log"}),
    "cli.bench": frozenset({"cli.event_loop", "cli.running_cluster", "cli.session", "cli.output", "cli.ledger"}),
    "cli.bookie": frozenset({"cli.running_cluster", "cli.session", "cli.output", "cli.rates"}),
    "cli.cluster": frozenset({"cli.event_loop", "cli.session", "cli.output", "cli.asking"}),
    "cli.repair": frozenset({"cli.session", "cli.output", "cli.asking"}),
    "cli.own_host": frozenset[str](),
    "cli.kafka": frozenset({"cli.asking", "cli.log", "cli.session", "cli.output", "cli.own_host"}),
    "cli.console": frozenset(
        {
            "cli.session",
            "cli.output",
            "cli.rates",
            "cli.log",
            "cli.top",
            "cli.cluster",
            "cli.bookie",
            "cli.kafka",
            "cli.own_host",
        }
    ),
    "cli.deploy": frozenset({"cli.session", "cli.output", "cli.replacing"}),
    "cli.local": frozenset({"cli.event_loop", "cli.running_cluster", "cli.session", "cli.output"}),
    "cli": frozenset(
        {
            "cli.event_loop",
            "cli.session",
            "cli.output",
            "cli.replacing",
            "cli.rates",
            "cli.asking",
            "cli.ledger",
            "cli.log",
            "cli.top",
            "cli.bench",
            "cli.bookie",
            "cli.cluster",
            "cli.console",
            "cli.deploy",
            "cli.kafka",
            "cli.local",
            "cli.repair",
        }
    ),
}
"""Each room (a sub-folder, also one of a sub-folder; a module that others build on; or what else stands at the root of
its folder) and the rooms of the same folder that it may import from. Below a room stands only what has been named
before it."""
