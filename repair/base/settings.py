"""The settings of repair in one bookie. Pure."""

from octavo.protocol.light_dataclass import dataclass

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairSettings:
    """See the fields. All of them are settings of the bookie, with ``repair_`` before the name."""

    lost_seconds: float = 1200.0
    """How long a bookie may be missing before it is declared lost and its copies are made again. Longer than an upgrade
    or a reboot of a machine takes: copying everything costs more than waiting."""
    audit_seconds: float = 300.0
    """Time between two rounds of the auditor."""
    check_days: float = 7.0
    """Time in which every closed ledger is checked for holes once."""
    open_seconds: float = 900.0
    """How long an open ledger with a lost member is left to its writer before it may be recovered (rule O3)."""
    recover_abandoned: bool = True
    """Whether ledgers whose writer has gone are recovered at all (rule O3)."""
    census_bytes: int = 512 * _MEBIBYTE
    """Limit of the auditor's memory for its index of ledgers."""
    bytes_per_second: int = 64 * _MEBIBYTE
    """Most bytes that are copied into this bookie per second. The rate falls while repair makes ordinary adds slow."""
    bytes_per_second_min: int = 4 * _MEBIBYTE
    """Least rate to which slow adds press copying."""
    balance_seconds: float = 0.0
    """How often the auditor looks by itself whether bookies are unevenly full, and has copies moved then (rule A15); 0:
    only when an operator asks."""
    balance_fill_min: float = 0.01
    """How full the fullest bookie must be before the auditor begins a balance by itself: as good as empty bookies need
    none."""
    ledgers_at_once: int = 16
    """Ledgers that a target works on at the same time."""
    silent_seconds: float = 60.0
    """A target that reports no progress for so long loses its plan to another target."""
    report_seconds: float = 2.0
    """Shortest time between two reports of a target."""
    poll_seconds: float = 1.0
    """How often an auditor with plans under way looks for reports, and a target for a plan."""
    retry_seconds_open: float = 2.0
    """First pause before an open ledger is looked at again: its writer is about to replace the bookie."""
    retry_seconds_min: float = 60.0
    """First pause before work that could not be done is tried again."""
    retry_seconds_max: float = 3600.0
    """Longest pause before work that could not be done is tried again."""
    request_timeout_seconds: float = 10.0
    """Time that another bookie has to answer one request of repair."""
