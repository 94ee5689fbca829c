"""Members of a consumer group: they share the partitions of a topic, read on where the group has committed, and commit.

A member knows the fate of each commit before it makes the next one. Where it got no answer, or one that does not say
whether the offset is committed, it joins again as another member: a commit of the former one lands before the next
generation, or never (rules K10 and K11).
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from octavo.gateway.codes import Code
from octavo.gateway.wire.apis import Api
from simulation.gateways.connections import Kafka, NoAnswerError, code_of
from simulation.gateways.reading import fetch, find_commits
from simulation.gateways.stage import GROUP, TOPIC, Stage, violation
from simulation.world import ClientHost
from support.kafka.history import NO_OFFSET, BrokenHistoryError, PartitionReader

_PURPOSE: Final = "group"

SESSION_MS: Final = 1000
"""The shortest that there is."""

JOINS_ANEW: Final = frozenset({Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID})
"""A member that is answered so is none any more."""

JOINS_AGAIN: Final = frozenset({Code.REBALANCE_IN_PROGRESS, Code.ILLEGAL_GENERATION})
"""A member that is answered so joins the next generation. What it has asked for has not happened."""


class _AgainError(Exception):
    """The member must join, or look for its coordinator, again. ``as_another``: it is no member any more."""

    def __init__(self, why: str, *, as_another: bool = False) -> None:
        super().__init__(why)
        self.as_another = as_another


class Member:
    """One member over all lives of its process."""

    def __init__(self, stage: Stage, rng: random.Random, name: str) -> None:
        self.stage = stage
        self.rng = rng
        self.name = name
        self.rebalance_ms = rng.choice((300, 1000, 3000))
        self.commits_after_polls = rng.choice((1, 2, 4))
        self._lives = 0

    async def run(self, host: ClientHost) -> None:
        """Run one life, until the group has committed everything."""
        self._lives += 1
        rng = self.stage.world.rng_for(f"{self.name} life {self._lives}")
        await _Life(self, host, self.stage.kafka(rng)).run()


class _Life:
    """One process of a member."""

    def __init__(self, member: Member, host: ClientHost, kafka: Kafka) -> None:
        self._member = member
        self._stage = member.stage
        self._host = host
        self._kafka = kafka
        self._address = ""
        """Of the coordinator."""
        self._id = ""
        self._generation = -1
        self._readers: dict[int, PartitionReader] = {}
        """Of the partitions that it owns."""
        self._committed: dict[int, int] = {}

    async def run(self) -> None:
        kafka, stage = self._kafka, self._stage
        while not stage.has_all_committed():
            try:
                self._address = await kafka.coordinator(GROUP)
                await self._join()
                await self._find_commits()
                await self._consume()
            except _AgainError as again:
                stage.world.note(self._host.name, "joins again%s: %s", " as another" if again.as_another else "", again)
                if again.as_another:
                    self._forget()
                    kafka.forget_coordinator()
            except NoAnswerError as error:
                stage.world.note(self._host.name, "looks for its coordinator: %s", str(error))
                kafka.forget_coordinator()
            except BrokenHistoryError as error:
                raise violation(error) from error
            await asyncio.sleep(kafka.rng.uniform(0.02, 0.2))
        await self._leave()
        kafka.close()

    def _forget(self) -> None:
        """It begins as another member, and its former connection is broken off."""
        self._kafka.drop(self._address, _PURPOSE)
        self._id, self._generation = "", -1

    @property
    def _me(self) -> dict[str, Any]:
        return {"group_id": GROUP, "member_id": self._id, "group_instance_id": None}

    async def _ask(self, api: Api, values: Mapping[str, Any], extra_seconds: float = 0.0) -> Any:
        return await self._kafka.ask(self._address, _PURPOSE, api, {**self._me, **values}, extra_seconds)

    def _refused(self, what: str, code: Code) -> NoReturn:
        """Go on after a refusal. What was asked has not happened."""
        self._stage.note(self._host.name, what, code)
        if code in JOINS_ANEW:
            raise _AgainError(code.name, as_another=True)
        if code in JOINS_AGAIN:
            raise _AgainError(code.name)
        raise NoAnswerError(code.name)

    # --- the generation -----------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Be in a generation, with the partitions that its leader gives."""
        asked = {
            "session_timeout": SESSION_MS, "rebalance_timeout": self._member.rebalance_ms,
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
        }  # fmt: skip
        while True:
            joined = await self._ask(Api.JOIN_GROUP, asked, self._member.rebalance_ms / 1000 + 1.0)
            code = code_of(joined)
            if code is Code.MEMBER_ID_REQUIRED:
                self._id = joined.member_id
                continue
            if code is Code.NONE:
                break
            self._refused("join", code)
        self._id, self._generation = joined.member_id, joined.generation_id
        shares = _shares([one.member_id for one in joined.members], len(self._stage.partitions))
        rows = [{"member_id": one, "assignment": share} for one, share in shares.items()]
        synced = await self._ask(Api.SYNC_GROUP, {"generation_id": self._generation, "assignments": rows}, 1.0)
        if code_of(synced) is not Code.NONE:
            self._refused("sync", code_of(synced))
        partitions = [int(one) for one in synced.assignment.split()]
        self._stage.group.given(self._id, self._generation, partitions)
        self._stage.world.note(
            self._host.name, "%s is in generation %d with %s", self._id[:16], self._generation, partitions
        )
        self._stage.world.trace.count("gateway: generations joined")
        self._readers = {one: PartitionReader(self._stage.partitions[one]) for one in partitions}

    async def _find_commits(self) -> None:
        """Begin where the group has committed."""
        if self._readers:
            found = await find_commits(self._stage, self._kafka, self._host, _PURPOSE, tuple(self._readers))
            for partition, offset in found.items():
                position = 0 if offset == NO_OFFSET else offset
                self._readers[partition].position = self._committed[partition] = position

    # --- consuming ----------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        """Read and commit until a new generation begins."""
        stage, polls = self._stage, 0
        while not stage.has_all_committed():
            await asyncio.gather(*(self._poll(partition, reader) for partition, reader in self._readers.items()))
            await asyncio.sleep(self._kafka.rng.uniform(0.0, 0.1) if self._readers else 0.2)
            polls += 1
            if polls % self._member.commits_after_polls == 0:
                await self._commit()
            else:
                await self._heartbeat()

    async def _poll(self, partition: int, reader: PartitionReader) -> None:
        try:
            await fetch(self._stage, self._kafka, self._host, reader, partition)
        except NoAnswerError as error:
            self._stage.world.note(self._host.name, "fetch of partition %d: %s", partition, str(error))

    async def _heartbeat(self) -> None:
        answer = await self._ask(Api.HEARTBEAT, {"generation_id": self._generation})
        if code_of(answer) is not Code.NONE:
            self._refused("heartbeat", code_of(answer))

    async def _commit(self) -> None:
        offsets = {one: reader.position for one, reader in self._readers.items()}
        offsets = {one: offset for one, offset in offsets.items() if offset > self._committed[one]}
        if not offsets:
            await self._heartbeat()
            return
        rows = [
            {
                "partition_index": one, "committed_offset": offset, "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
            for one, offset in offsets.items()
        ]  # fmt: skip
        asked = {"generation_id_or_member_epoch": self._generation, "topics": [{"name": TOPIC, "partitions": rows}]}
        commit = self._stage.group.commits_now(self._id, self._generation, offsets)
        try:
            answer = await self._ask(Api.OFFSET_COMMIT, asked)
        except NoAnswerError as error:
            raise _AgainError(str(error), as_another=True) from error
        codes = {code_of(told) for told in _rows(answer.topics)}
        if codes == {Code.NONE}:
            self._stage.group.committed(commit)
            self._committed |= offsets
            self._stage.world.trace.count("gateway: commits answered")
            return
        (code,) = codes
        if code in JOINS_AGAIN | JOINS_ANEW:
            self._refused("commit", code)
        self._stage.note(self._host.name, "commit", code)
        raise _AgainError(code.name, as_another=True)

    async def _leave(self) -> None:
        if self._id:
            try:
                await self._ask(Api.LEAVE_GROUP, {"members": [self._me]})
            except NoAnswerError as error:
                self._stage.world.note(self._host.name, "leaves without an answer: %s", str(error))


def _rows(topics: Iterable[Any]) -> list[Any]:
    return [one for topic in topics for one in topic.partitions]


def _shares(members: list[str], partitions: int) -> dict[str, bytes]:
    """The partitions of each member, as the leader of the group shares them; nothing for any other member."""
    ordered = sorted(members)
    return {
        one: b" ".join(b"%d" % partition for partition in range(place, partitions, len(ordered)))
        for place, one in enumerate(ordered)
    }
