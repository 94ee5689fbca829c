"""The name under which a client fences ledgers, unless the application chooses one."""

import os
import socket


def default_client_name() -> str:
    """Host and process, for the operator who wants to know which program fenced a ledger."""
    return f"{socket.gethostname()[:64]}, process {os.getpid()}"
