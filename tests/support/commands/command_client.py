"""``octavo`` for shell scripts of tests: hand the command over to the server of command_server.py, and end as it ends.

Run as ``python -I -S command_client.py ADDRESS ARGUMENTS...``; imports little, since every command starts it.
"""

import os
import socket
import sys
from json import dumps, loads


def main(address: str, *arguments: str) -> int:
    """Run the command with this process's streams, folder and variables; its exit status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(address)
        request = dumps({"arguments": arguments, "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
        socket.send_fds(channel, [request], [0, 1, 2])
        channel.recv(64)  # its process id
        status: int = loads(channel.recv(64))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
