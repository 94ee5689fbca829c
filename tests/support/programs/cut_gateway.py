"""A gateway that can be cut off: ``cut_gateway.py URI PORT``. It says on one line that it serves.

SIGUSR1 cuts it off from bookies, SIGUSR2 from the metadata, SIGHUP ends both (``leading_process.py``). Its clients
reach it all the time. SIGTERM ends it in order. It ends by itself once its session in the metadata store has ended.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from leading_process import CuttableLoop  # type: ignore[import-not-found]  # in this folder
from octavo.gateway.gateway import GatewaySettings
from octavo.gateway.serving import serving


async def main(uri: str, port: int) -> None:
    """Serve until the gateway is lost, or is to end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CuttableLoop)
    loop.metadata_port = int(uri.removeprefix("zk://").partition("/")[0].rpartition(":")[2])
    ends = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, lambda: loop.cut(metadata=False))
    loop.add_signal_handler(signal.SIGUSR2, lambda: loop.cut(metadata=True))
    loop.add_signal_handler(signal.SIGHUP, loop.restore)
    loop.add_signal_handler(signal.SIGTERM, ends.set)
    async with serving(uri, GatewaySettings(port=port)) as gateway:
        sys.stdout.write(json.dumps({"event": "ready", "address": f"127.0.0.1:{gateway.port}"}) + "\n")
        sys.stdout.flush()
        waiting = [loop.create_task(gateway.wait_lost()), loop.create_task(ends.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=CuttableLoop) as runner:
        runner.run(main(sys.argv[1], int(sys.argv[2])))
