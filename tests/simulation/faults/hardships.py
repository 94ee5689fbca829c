"""What a universe has besides the faults of the nemesis; ``endurance.py`` draws it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Hardships:
    """The hardships of one universe. Chances from 0 to 1, times in seconds."""

    absences: bool = False
    """Whether processes are away for longer than their leases (``absences.py``)."""
    candidate_absent_chance: float = 0.0
    """Chance that a client stands still between getting the lock of a log and taking the log over."""
    turns: bool = False
    """Whether turns of the loop take long now and then, so that several things are due in the next one."""
    stall_chance: float = 0.0
    stall_seconds: float = 0.0
    """Longest such turn."""
    clocks: bool = False
    """Whether clocks are wrong by hours and years, and step (``clocks.py``)."""
    clocks_of_processes: bool = False
    """Whether it is those of clients and bookies that are wrong, or (False) that of the metadata store."""
    keepsakes: bool = False
    """Whether handles of logs are kept over takeovers, rolls and truncations (``log_keepsakes.py``)."""
    crowds: bool = False
    """Whether bookies have long names, and repair more to say than fits into a document (``crowd.py``)."""
    returns: bool = False
    """Whether old incarnations of bookies come back after their identities were moved (``returns.py``)."""
    hosts: bool = False
    """Whether every host has two bookies, which fail together (``host_faults.py``)."""
    impatience: bool = False
    """Whether callers of log writers give up, add many at once, and try again (``log_impatience.py``)."""
    keyed: bool = False
    """Whether entries of logs have keys, and programs add with the same ones again and again (``log_keys.py``)."""
    packs: bool = False
    """Whether a client has many ledgers open at once, so that most requests travel in packs (``throng.py``)."""
    followers: bool = False
    """Whether a client follows many ledgers and logs (``audience.py``)."""
    gateways: bool = False
    """Whether gateways serve clients of Kafka's protocol; no other program uses ledgers and logs (``gateways/``)."""
    gateway_count: int = 0
    gateway_partitions: int = 0
    """Of the topic that all use."""
    gateway_client_seconds: float = 0.0
    """How long clients of gateways wait for an answer."""
    gateway_restate_bytes: int = 0
    """Of entries in the log of a coordinator, before it is truncated."""
    old_bookie_chance: float = 0.0
    """Chance that a bookie that starts is of a version that knows no packs and no subscriptions."""
    old_client_chance: float = 0.0
    """Chance that a client is of such a version."""

    @property
    def many(self) -> bool:
        """Whether there are many ledgers, so that the judge reads some of them only."""
        return self.packs or self.followers
