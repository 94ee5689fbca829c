"""A replicated key-value store: every process applies the commands of one log, in one order; the leader adds them.

    key_value_store.py URI LOG        reads `set KEY VALUE` and `get KEY` from standard input once it leads

Start it twice. The second process follows the log and waits to lead. When the first ends or is killed, the second has
applied everything that was acknowledged before it answers its first command.
"""

import asyncio
import json
import sys

import octavo


class Store:
    """The state, made from the log alone."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._applied = 0
        self._changed = asyncio.Condition()

    async def apply_all(self, log: octavo.Log) -> None:
        """Follow the log for ever, also from leader to leader."""
        async for entry in log.follow(first=0):
            key, value = json.loads(entry.payload)
            self.values[key] = value
            self._applied = entry.position + 1
            async with self._changed:
                self._changed.notify_all()

    async def wait_applied(self, position: int) -> None:
        """Return once everything below ``position`` is applied."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._applied >= position)


async def serve(store: Store, log: octavo.Log, commands: asyncio.StreamReader) -> None:
    """Wait for the lead, then answer commands until their end. Raises NotLeaderError if another process takes over."""
    async with log.lead() as writer:
        await store.wait_applied(writer.end)  # what earlier leaders added
        print(f"leading in term {writer.term}", flush=True)
        async for line in commands:
            match line.decode().split(maxsplit=2):
                case ["set", key, value]:
                    await writer.add(json.dumps([key, value.rstrip("\n")]).encode())
                    print("ok", flush=True)
                case ["get", key]:
                    await store.wait_applied(writer.end)
                    writer.check_usable()  # a leader that was replaced does not answer from its old state
                    print(store.values.get(key, ""), flush=True)
                case _:
                    print("usage: set KEY VALUE | get KEY", flush=True)


async def main(uri: str, name: str) -> None:
    """Follow the log, and lead it when it is free."""
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with octavo.connect(uri, lease_seconds=5) as client, client.create_log(name, exist_ok=True) as log:
        store = Store()
        applying = asyncio.create_task(store.apply_all(log))
        serving = asyncio.create_task(serve(store, log, commands))
        await asyncio.wait([applying, serving], return_when=asyncio.FIRST_COMPLETED)
        applying.cancel()
        await serving


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
