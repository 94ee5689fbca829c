"""The settings of topics: what a change gives, what is refused, and what clients see (rule K15)."""

import pytest
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.topics.settings import (
    BYTES_MAX_DEFAULT,
    DEFAULT,
    Change,
    TopicRetention,
    TopicSettings,
    ack_quorum_of,
    changed,
    settings_from,
    shown,
)
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

SET, UNSET = Change.SET, Change.UNSET
BEFORE = TopicSettings(5000, TopicRetention(1000, 2000))


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ([], BEFORE),
        ([("retention.ms", SET, "7")], TopicSettings(5000, TopicRetention(7, 2000))),
        ([("retention.ms", SET, "-1")], TopicSettings(5000, TopicRetention(None, 2000))),
        ([("retention.ms", UNSET, "7")], TopicSettings(5000, TopicRetention(None, 2000))),
        ([("retention.ms", SET, None)], TopicSettings(5000, TopicRetention(None, 2000))),
        ([("retention.bytes", SET, "1"), ("retention.bytes", SET, "2")], TopicSettings(5000, TopicRetention(1000, 2))),
        ([("retention.bytes", SET, str(2**63 - 1))], TopicSettings(5000, TopicRetention(1000, 2**63 - 1))),
        ([("max.message.bytes", UNSET, None)], TopicSettings(BYTES_MAX_DEFAULT, TopicRetention(1000, 2000))),
        ([("max.message.bytes", SET, str(ENTRY_PAYLOAD_BYTES_MAX))],
         TopicSettings(ENTRY_PAYLOAD_BYTES_MAX, TopicRetention(1000, 2000))),
        ([("min.insync.replicas", SET, "1"), ("min.insync.replicas", SET, "2")], BEFORE),
        ([("min.insync.replicas", UNSET, "9"), ("min.insync.replicas", SET, None)], BEFORE),
        ([("cleanup.policy", SET, "delete"), ("compression.type", UNSET, None)], BEFORE),
    ],
)  # fmt: skip
def test_changes_are_made_in_their_order(changes: list[tuple[str, Change, str | None]], after: TopicSettings) -> None:
    assert changed(BEFORE, changes, ack_quorum=2) == after


@pytest.mark.parametrize(
    ("name", "change", "value", "reason"),
    [
        ("cleanup.policy", SET, "compact", "can only be delete, not compact: compaction is not supported"),
        ("cleanup.policy", SET, "compact,delete", "compaction is not supported"),
        ("cleanup.policy", Change.APPEND, "compact", "is no list"),
        ("cleanup.policy", Change.SUBTRACT, "delete", "is no list"),
        ("compression.type", SET, "zstd", "can only be producer, not zstd: batches are stored as they came"),
        ("message.timestamp.type", SET, "LogAppendTime", "can only be CreateTime"),
        ("message.timestamp.after.max.ms", SET, "1", "can only be 3600000, not 1"),
        ("unclean.leader.election.enable", SET, "true", "is not supported"),
        ("min.insync.replicas", SET, "3", "a number from 1 to 2, not '3': how many copies acknowledge"),
        ("min.insync.replicas", SET, "0", "a number from 1 to 2, not '0'"),
        ("min.insync.replicas", SET, "all", "not 'all'"),
        ("min.insync.replicas", Change.APPEND, "1", "is no list"),
        ("retention.ms", SET, "0", "a number from 1 to 9223372036854775807, or -1 for no limit, not '0'"),
        ("retention.ms", SET, "-2", "or -1 for no limit, not '-2'"),
        ("retention.ms", SET, "1.5", "not '1.5'"),
        ("retention.ms", SET, "", "not ''"),
        ("retention.ms", SET, "\u0661", "retention.ms is a number"),
        ("retention.bytes", SET, str(2**63), "retention.bytes is a number"),
        ("retention.bytes", SET, "9" * 5000, "retention.bytes is a number"),
        ("retention.bytes", Change.APPEND, "1", "is no list"),
        ("max.message.bytes", SET, "-1", "a number from 1 to 4194304, not '-1'"),
        ("max.message.bytes", SET, str(ENTRY_PAYLOAD_BYTES_MAX + 1), "a number from 1 to 4194304"),
        ("max.message.bytes", SET, "many", "not 'many'"),
    ],
)
def test_what_would_not_be_kept_to_is_refused(name: str, change: Change, value: str, reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        changed(BEFORE, [(name, change, value)], ack_quorum=2)
    assert refused.value.code is Code.INVALID_CONFIG
    assert reason in refused.value.text
    assert name in refused.value.text
    assert len(refused.value.text) < 300


def test_a_topic_is_created_with_what_it_is_shown_with() -> None:
    assert settings_from({}, ack_quorum=2) == settings_from({"retention.ms": None}, ack_quorum=2) == DEFAULT
    for settings in (BEFORE, DEFAULT):
        values: dict[str, str | None] = {one.name: one.value for one in shown(settings, ack_quorum=2)}
        assert settings_from(values, ack_quorum=2) == settings
        assert ack_quorum_of(values, write_quorum=3, usual=2) == 2


@pytest.mark.parametrize(
    ("value", "usual", "found"), [(None, 2, 2), ("1", 2, 2), ("2", 2, 2), ("3", 2, 3), ("3", 3, 3), ("1", 1, 1)]
)
def test_a_topic_may_ask_for_more_copies_before_an_acknowledgement_and_not_for_fewer(
    value: str | None, usual: int, found: int
) -> None:
    assert ack_quorum_of({"min.insync.replicas": value}, write_quorum=3, usual=usual) == found


@pytest.mark.parametrize("value", ["0", "4", "-1", "", "1.5", "9" * 5000])
def test_more_copies_than_there_are_cannot_acknowledge(value: str) -> None:
    with pytest.raises(RefusedError, match=r"min\.insync\.replicas is a number from 1 to 3") as refused:
        ack_quorum_of({"min.insync.replicas": value}, write_quorum=3, usual=2)
    assert refused.value.code is Code.INVALID_CONFIG


def test_settings_are_shown_with_their_origin() -> None:
    found = {one.name: (one.value, one.is_default, one.can_change) for one in shown(TopicSettings(500), ack_quorum=2)}
    assert found == {
        "cleanup.policy": ("delete", True, False),
        "compression.type": ("producer", True, False),
        "max.message.bytes": ("500", False, True),
        "message.timestamp.after.max.ms": ("3600000", True, False),
        "message.timestamp.type": ("CreateTime", True, False),
        "min.insync.replicas": ("2", False, False),
        "retention.bytes": ("-1", True, True),
        "retention.ms": ("-1", True, True),
    }
