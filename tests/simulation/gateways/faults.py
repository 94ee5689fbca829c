"""What happens to gateways: they are killed, stand still for longer than their leases, are cut off, and are stopped in
order; and the next leader of a log is struck, too.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from simulation.engine.metadata import ADDRESS
from simulation.gateways.seat import Seat, most_leading

if TYPE_CHECKING:
    from simulation.faults.nemesis import Nemesis

_LEASES_AWAY: Final = (1.2, 4.0)
"""Range of the time for which a gateway stands still, in leases."""


class GatewayStrikes:
    """The faults of gateways (``gateway_plan.py``). Part of the nemesis, which ends lasting ones."""

    def __init__(self, nemesis: "Nemesis") -> None:
        self._nemesis = nemesis
        self._world = nemesis.world
        self._rng = nemesis.world.rng_for("gateway faults")

    def strikes(self) -> dict[str, Callable[[], None]]:
        """The faults by their names."""
        return {
            "kill gateway": self._kill,
            "stop gateway": self._stop,
            "gateway absent": self._absent,
            "cut gateway off": self._cut_off,
            "two takeovers": self._two_takeovers,
        }

    @property
    def _lease_seconds(self) -> float:
        return float(self._world.plan.options["lease_seconds"])

    def _chosen(self) -> Seat | None:
        return most_leading(self._world.gateways, self._rng)

    def _kill(self) -> None:
        seat = self._chosen()
        if seat is not None:
            self._nemesis.count("gateway: killed")
            seat.kill()

    def _stop(self) -> None:
        seat = self._chosen()
        if seat is not None:
            self._nemesis.count("gateway: stopped in order")
            seat.stop()

    def _absent(self) -> None:
        seat = self._chosen()
        go_on = None if seat is None else seat.pause()
        if go_on is not None:
            self._nemesis.count("gateway: absent")
            low, high = _LEASES_AWAY
            self._nemesis.heal_after(low * self._lease_seconds, high * self._lease_seconds, go_on)

    def _cut_off(self) -> None:
        """From the metadata, from the bookies, or from clients."""
        seat, world = self._chosen(), self._world
        if seat is None:
            return
        what = self._rng.choice(("metadata", "bookies", "clients"))
        others = {
            "metadata": [ADDRESS],
            "bookies": [machine.name for machine in world.machines],
            "clients": [host.address for host in world.hosts if host.process.alive and not _is_gateway(host.address)],
        }[what]
        pairs = [pair for other in others for pair in ((seat.name, other), (other, seat.name))]
        self._nemesis.block_pairs(f"gateway: cut off from {what}", pairs)

    def _two_takeovers(self) -> None:
        """A gateway is killed; soon after the next one leads what it led, that one is killed, or stands still."""
        seat = self._chosen()
        if seat is None:
            return
        self._nemesis.count("gateway: killed, and the next one will be")
        seat.kill()
        loop = self._world.loop
        after = self._lease_seconds * self._rng.uniform(0.8, 1.6)
        loop.call_process(loop.world, loop.now + after, self._strike_next, seat)

    def _strike_next(self, first: Seat) -> None:
        others = [one for one in self._world.gateways if one is not first]
        seat = most_leading(others, self._rng)
        if seat is None or self._nemesis.healed:
            return
        if self._rng.random() < 0.5:
            self._nemesis.count("gateway: next one killed")
            seat.kill()
        elif (go_on := seat.pause()) is not None:
            self._nemesis.count("gateway: next one absent")
            self._nemesis.heal_after(_LEASES_AWAY[0] * self._lease_seconds, 2 * self._lease_seconds, go_on)


def _is_gateway(address: str) -> bool:
    return address.startswith("gateway-")
