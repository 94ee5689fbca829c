"""A service with an outbox: a change of its database and the event about it are one transaction; a relay publishes the
events to a log, each exactly once and in order, although it may be killed at any point.

    outbox.py order DATABASE ITEM...          place orders: rows in `orders` and in `outbox`
    outbox.py relay DATABASE URI LOG          publish what is in the outbox

Every event carries its outbox id. A relay that starts leads the log, so that no earlier relay can add anything more,
and reads the last event: everything up to its id has been published, whatever the outbox still holds.
"""

import asyncio
import contextlib
import json
import sqlite3
import sys

import octavo

BATCH = 10
TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT);
"""


def place_order(database: sqlite3.Connection, item: str) -> None:
    """The order and its event, or neither."""
    with database:
        order = database.execute("INSERT INTO orders (item) VALUES (?)", [item]).lastrowid
        database.execute("INSERT INTO outbox (event) VALUES (?)", [json.dumps({"order": order, "item": item})])


async def last_published(log: octavo.Log, end: int) -> int:
    """The outbox id of the newest event below position ``end``; 0 where the log is empty."""
    if end == log.first_position:
        return 0
    (entry,) = await log.read(end - 1, end - 1)
    return int(json.loads(entry.payload)["id"])


async def relay(database: sqlite3.Connection, log: octavo.Log) -> int:
    """Publish everything in the outbox; how many events."""
    published = 0
    async with log.lead() as writer:
        last = await last_published(log, writer.end)
        while True:
            with database:
                database.execute("DELETE FROM outbox WHERE id <= ?", [last])
            rows = database.execute("SELECT id, event FROM outbox ORDER BY id LIMIT ?", [BATCH]).fetchall()
            if not rows:
                return published
            await writer.add_many(json.dumps({"id": id_, **json.loads(event)}).encode() for id_, event in rows)
            last = rows[-1][0]
            published += len(rows)


async def main(command: str, path: str, *arguments: str) -> None:
    """Run one of the two commands."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(TABLES)
        if command == "order":
            for item in arguments:
                place_order(database, item)
            return
        uri, name = arguments
        async with (
            octavo.connect(uri, lease_seconds=5) as client,
            client.create_log(name, exist_ok=True) as log,
        ):
            print(f"published {await relay(database, log)} events")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
