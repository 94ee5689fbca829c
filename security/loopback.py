"""Which addresses only processes of this host can reach. Pure."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this host can reach what listens there. A name other than localhost counts as no."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
