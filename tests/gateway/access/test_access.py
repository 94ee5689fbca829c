"""What the gates of a gateway share (rule K14): principals, connections that are not known yet, refusals."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from octavo.gateway.access.access import GatewayAccess
from octavo.gateway.access.gate import Gate, Peer
from octavo.gateway.codes import Code, RefusedError
from octavo.metadata.cluster.principals import Principals
from octavo.security.audit import Audit, AuditFile
from octavo.security.roles import Role
from octavo.security.salted_keys import password_of
from octavo.security.topic_rights import TopicRight
from support.kafka.sasl import ScramClient, key_of, principal, principals

WEB = principal("web", "read orders.*", "group web")
BOSS = principal("boss", roles=frozenset({Role.ADMIN}))
READER = principal("reader", roles=frozenset({Role.READ}))


class Ends:
    """Counts connections that were ended."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def access_with(known: Principals, **settings: Any) -> GatewayAccess:
    made = GatewayAccess(required=True, **settings)
    made.update(known)
    return made


def peer(*names: str, over_tls: bool = True) -> Peer:
    return Peer("192.0.2.1:5000", over_tls, names)


def enter(gate: Gate, name: str, password: str | None = None) -> Code:
    assert gate.choose("SCRAM-SHA-256")[0] is Code.NONE
    client = ScramClient(name, password_of(key_of(name)) if password is None else password)
    code, _, asked = gate.authenticate(client.first())
    assert code is Code.NONE
    return gate.authenticate(client.last(asked))[0]


async def test_a_gate_opens_for_the_key_of_a_principal_and_for_nothing_else() -> None:
    access = access_with(principals(WEB, BOSS, replace(principal("off", "read *"), disabled=True)))
    gate = access.gate(peer(), Ends())
    assert not gate.is_open
    assert enter(gate, "web") is Code.NONE
    assert (gate.is_open, gate.name, gate.is_over) == (True, "web", False)
    for name, password in (("web", "wrong"), ("off", None), ("nobody", None), ("bookie", None)):
        refused = access.gate(peer(), Ends())
        assert enter(refused, name, password) is Code.SASL_AUTHENTICATION_FAILED
        assert (refused.is_open, refused.name, refused.is_over) == (False, None, True)
    assert access.refusals == {"key": 4}


async def test_a_certificate_of_a_principal_opens_the_gate() -> None:
    access = access_with(principals(WEB, replace(principal("off", "read *"), disabled=True)))
    assert access.gate(peer("web"), Ends()).name == "web"
    assert access.gate(peer("other", "web"), Ends()).name == "web"
    for names in (("off",), ("nobody",), ("bookie",), ("bookie/b1",)):
        assert not access.gate(peer(*names), Ends()).is_open
    assert access.refusals == {"certificate": 4}


async def test_rights_are_those_of_the_grants_and_roles_of_bookies_do_not_matter() -> None:
    access = access_with(principals(WEB, BOSS, READER))
    web, boss, reader = (access.gate(peer(name), Ends()) for name in ("web", "boss", "reader"))
    web.check(TopicRight.READ, "orders.eu", "FETCH")
    web.check(TopicRight.GROUP, "web", "JOIN_GROUP")
    for gate in (web, reader):
        assert not gate.may(TopicRight.WRITE, "orders.eu")
        for right, code in (
            (TopicRight.WRITE, Code.TOPIC_AUTHORIZATION_FAILED), (TopicRight.GROUP, Code.GROUP_AUTHORIZATION_FAILED)
        ):  # fmt: skip
            with pytest.raises(RefusedError) as refused:
                gate.check(right, "orders.eu", "PRODUCE")
            assert refused.value.code is code
        with pytest.raises(RefusedError) as refused:
            gate.check_some(TopicRight.WRITE, "INIT_PRODUCER_ID")
        assert refused.value.code is Code.CLUSTER_AUTHORIZATION_FAILED
        with pytest.raises(RefusedError) as refused:
            gate.check_everything("DESCRIBE_CONFIGS")
        assert refused.value.code is Code.CLUSTER_AUTHORIZATION_FAILED
    boss.check(TopicRight.DELETE, "anything", "DELETE_TOPICS")
    boss.check_some(TopicRight.WRITE, "INIT_PRODUCER_ID")
    boss.check_everything("DESCRIBE_CONFIGS")
    assert web.may(TopicRight.READ, "orders.eu")
    assert not reader.may(TopicRight.DESCRIBE, "orders.eu")


async def test_connections_of_a_principal_that_changes_end() -> None:
    known = principals(WEB, BOSS, READER)
    access = access_with(known)
    ends = {name: Ends() for name in ("web", "boss", "reader")}
    gates = {name: access.gate(peer(name), ends[name]) for name in ends}
    access.update(known)
    assert sum(one.count for one in ends.values()) == 0
    access.update(known.with_principal(principal("web", "write orders.*")))
    assert (ends["web"].count, ends["boss"].count) == (1, 0)
    assert (gates["web"].is_open, gates["web"].is_over) == (False, True)
    assert not gates["web"].may(TopicRight.READ, "orders.eu")
    again = access.gate(peer("web"), ends["web"])
    assert again.may(TopicRight.WRITE, "orders.eu")
    assert not again.may(TopicRight.READ, "orders.eu")
    access.update(access.principals.without("boss"))
    assert ends["boss"].count == 1
    assert ends["reader"].count == 0
    gates["reader"].leave()
    access.update(Principals())
    assert ends["reader"].count == 0, "its connection was lost before"


async def test_connections_that_are_not_authenticated_have_a_share_of_the_places() -> None:
    access = access_with(principals(WEB), connections_max=8)
    ends = [Ends() for _ in range(4)]
    gates = [access.gate(peer(), end) for end in ends[:2]]
    assert access.strangers == 2
    gates.append(access.gate(peer(), ends[2]))
    assert [one.count for one in ends] == [1, 0, 0, 0]
    assert enter(gates[1], "web") is Code.NONE
    assert access.strangers == 1
    gates.append(access.gate(peer(), ends[3]))
    assert access.give_way()
    assert access.give_way()
    assert not access.give_way(), "a principal does not make way"
    assert [one.count for one in ends] == [1, 0, 1, 1]
    for gate in gates:
        gate.leave()
    assert access.strangers == 0


async def test_a_connection_that_does_not_authenticate_ends() -> None:
    access = access_with(principals(WEB), authentication_seconds=0.01)
    known, ended = Ends(), asyncio.Event()
    enter(access.gate(peer(), known), "web")
    access.gate(peer(), ended.set)
    await asyncio.wait_for(ended.wait(), 30)
    assert known.count == 0


async def test_without_authentication_every_client_may_do_everything_and_none_can_authenticate() -> None:
    gate = GatewayAccess().gate(peer("web"), Ends())
    assert gate.is_open
    assert gate.may(TopicRight.DELETE, "orders")
    gate.check_everything("DESCRIBE_CONFIGS")
    assert gate.choose("SCRAM-SHA-256") == (Code.ILLEGAL_SASL_STATE, ())
    assert gate.authenticate(b"")[0] is Code.ILLEGAL_SASL_STATE
    assert not gate.is_over
    gate.done("create_topic", topic="orders")
    gate.leave()


async def test_a_principal_is_authenticated_once() -> None:
    gate = access_with(principals(WEB)).gate(peer(), Ends())
    enter(gate, "web")
    assert gate.choose("PLAIN") == (Code.ILLEGAL_SASL_STATE, ())
    assert gate.authenticate(b"")[0] is Code.ILLEGAL_SASL_STATE
    assert gate.is_open


async def test_salts_of_names_that_do_not_exist_are_the_same_at_all_gateways() -> None:
    seeded = replace(principals(WEB), decoy_seed=b"of the cluster")
    one, other = access_with(seeded), access_with(seeded)
    assert one.known("nobody").salted == other.known("nobody").salted != one.known("somebody").salted
    assert one.known("web").salted == WEB.salted
    assert not one.known("nobody").is_principal


async def test_refusals_and_changes_are_in_the_audit_log_without_secrets(tmp_path: Path) -> None:
    audit = Audit(AuditFile(tmp_path / "audit"))
    audit.start()
    audit.gateway = "kafka1:9092"
    access = access_with(principals(WEB), audit=audit)
    gate, wrong = access.gate(peer(), Ends()), access.gate(peer(), Ends())
    enter(wrong, "nobody")
    enter(gate, "web")
    with pytest.raises(RefusedError):
        gate.check(TopicRight.WRITE, "orders.eu", "PRODUCE")
    access.gate(peer(), Ends()).refuse_stranger("METADATA")
    access.gate(peer("other"), Ends())
    gate.done("create_topic", topic="orders.eu")
    await audit.stop()
    text = (tmp_path / "audit").read_text()
    found = [{name: value for name, value in json.loads(line).items() if name != "time"} for line in text.splitlines()]
    common = {"gateway": "kafka1:9092", "peer": "192.0.2.1:5000"}
    assert found == [
        {
            "event": "authenticate", "outcome": "refused", "reason": "key", "name": "nobody",
            "code": "SASL_AUTHENTICATION_FAILED", **common,
        },
        {"event": "authenticate", "outcome": "ok", "principal": "web", "by": "SCRAM-SHA-256", **common},
        {
            "event": "request", "outcome": "refused", "reason": "right", "principal": "web", "operation": "PRODUCE",
            "topic": "orders.eu", **common,
        },
        {"event": "request", "outcome": "refused", "reason": "right", "operation": "METADATA", **common},
        {"event": "authenticate", "outcome": "refused", "reason": "certificate", "certificate": "other", **common},
        {"event": "create_topic", "outcome": "ok", "principal": "web", "topic": "orders.eu", **common},
    ]  # fmt: skip
    assert password_of(key_of("web")) not in text
