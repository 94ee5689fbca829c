"""Makes repair's agent the companion of a bookie: the one place where both are known."""

from collections.abc import Sequence
from pathlib import Path

from octavo.bookie.companion import Companion, CompanionView
from octavo.bookie.config import BookieConfig
from octavo.client.options import ClientOptions
from octavo.repair.agent import Agent
from octavo.repair.base.settings import RepairSettings
from octavo.security.secret_files import read_secret, without_newline
from octavo.security.tls_options import Tls


def repair_companion(config: BookieConfig) -> Companion | None:
    """The companion that repairs, with the settings of the bookie; None if repair is switched off.

    Raises :class:`InvalidArgumentError` for a password file that cannot be read.
    """
    if not config.repair:
        return None
    settings = RepairSettings(
        lost_seconds=config.repair_lost_seconds,
        audit_seconds=config.repair_audit_seconds,
        check_days=config.repair_check_days,
        open_seconds=config.repair_open_seconds,
        recover_abandoned=config.repair_recover_abandoned,
        census_bytes=config.repair_census_bytes,
        bytes_per_second=config.repair_bytes_per_second,
        balance_seconds=config.repair_balance_seconds,
    )
    passwords = _read_passwords(config.repair_password_files)
    options = ClientOptions(tls=_tls_of(config), key_file=None if config.key_file is None else str(config.key_file))

    async def run(view: CompanionView) -> None:
        await Agent(view, settings, passwords=passwords, options=options).run()

    return run


def _tls_of(config: BookieConfig) -> Tls | None:
    """How the bookie connects to others: with its own certificate; while TLS is optional, to those that speak it."""
    if config.tls == "off":
        return None
    return Tls(
        ca=None if config.tls_ca is None else str(config.tls_ca),
        certificate=str(config.tls_certificate),
        key=str(config.tls_key),
        verify="bookie-id" if config.tls_verify == "bookie-id" else "host",
        registered_only=config.tls == "optional",
    )


def _read_passwords(files: Sequence[Path]) -> list[bytes]:
    return [without_newline(read_secret(path, "repair_password_files:")) for path in files]
