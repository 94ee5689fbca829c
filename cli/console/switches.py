"""The operator's read-only switches of bookies, as far as the console can reach them.

A bookie takes changes only on its administration socket, a file whose permissions say who may use it. So the console
switches the bookies on its own host, if it runs as their user; for others it names the command to run on theirs.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from octavo.bookie.admin.http_messages import HttpError
from octavo.cli.session import CommandError

if TYPE_CHECKING:
    from octavo.cli.bookie.admin_client import AdminClient

LOOK_SECONDS_MAX = 1.0
"""How long a look waits for a bookie that hangs."""


class Switches:
    """The switches of one cluster. ``find`` gives the bookies on this host by id, whatever their cluster."""

    def __init__(self, cluster_id: str, find: Callable[[], Mapping[str, "AdminClient"]]) -> None:
        self._cluster_id = cluster_id
        self._find = find

    async def look(self) -> dict[str, str | None]:
        """The bookies that can be switched, each with the reason for which an operator made it read-only; None for one
        that no operator did."""
        return {name: reason for name, (_, reason) in (await self._reachable()).items()}

    async def switch(self, bookie: str, reason: str | None) -> None:
        """Make a bookie read-only for a reason, or take that back (None). Raises :class:`HttpError`."""
        reachable = await self._reachable()
        if bookie not in reachable:
            command = f"octavo bookie read-only {bookie} {'off' if reason is None else 'on'}"
            raise HttpError(
                409,
                "NotReachable",
                f"the administration socket of bookie {bookie} cannot be reached from here: run `{command}` on its "
                "host, as the bookie's user",
            )
        value: dict[str, Any] = {"read_only": reason is not None}
        if reason:
            value["reason"] = reason
        client, _ = reachable[bookie]
        try:
            await client.post("/api/v1/bookie/read-only", value)
        except CommandError as error:
            raise HttpError(409, "Refused", str(error)) from error

    async def _reachable(self) -> dict[str, tuple["AdminClient", str | None]]:
        here = await asyncio.to_thread(self._find)
        answers = await asyncio.gather(*map(self._ask, here.values()))
        return {
            name: (client, answer["read_only"]["operator"])
            for (name, client), answer in zip(here.items(), answers, strict=True)
            if answer is not None and (answer["cluster_id"], answer["bookie_id"]) == (self._cluster_id, name)
        }

    @staticmethod
    async def _ask(client: "AdminClient") -> Any:
        try:
            return await client.get("/api/v1/bookie", seconds_max=LOOK_SECONDS_MAX)
        except CommandError:  # it does not run, starts, hangs, or belongs to another user
            return None
