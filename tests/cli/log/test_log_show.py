"""What `octavo log show` and `octavo log cursors` say of retention, cursors and copies."""

import pytest
from octavo.cli.log.show import print_cursors, print_status, status_as_json
from octavo.client.log.documents.cursors import CursorState
from octavo.client.log.seam.status import LogStatus, SegmentStatus
from octavo.protocol.ids import LedgerId
from octavo.protocol.quorums import Quorums

import octavo

CURSORS = {"billing": CursorState(3, 60_000), "mail": CursorState(10, 60_000)}


def status(retention: octavo.Retention, cursors: dict[str, CursorState], *idle: str, drops_below: int = 0) -> LogStatus:
    return LogStatus(
        name="orders",
        log_id="1",
        layout="chain",
        first_position=0,
        end=10,
        term=1,
        leader=None,
        retention=retention,
        drops_below=drops_below,
        segments=(),
        paged_segments=0,
        bytes=0,
        cursors=cursors,
        idle_cursors=frozenset(idle),
        gaps=(),
        quorums=Quorums(5, 3, 2),
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (status(octavo.Retention(), {}), "everything is kept"),
        (status(octavo.Retention(seconds=60), {}), "60 seconds; nothing is due"),
        (status(octavo.Retention(bytes=7), {}, drops_below=3), "7 bytes; drops below 3 next"),
        (
            status(octavo.Retention(cursors=True), {}),
            "up to the lowest cursor; the log has no cursor, and nothing is dropped before it has one",
        ),
        (
            status(octavo.Retention(60, cursors=True), {}),
            "60 seconds, not above the lowest cursor; the log has no cursor, and nothing is dropped before it has one",
        ),
        (status(octavo.Retention(cursors=True), CURSORS, "billing"), "up to the lowest cursor; nothing is due"),
        (
            status(octavo.Retention(cursors=True), CURSORS, "billing", "mail"),
            "up to the lowest cursor; all cursors are idle, and nothing is dropped before one moves",
        ),
        (
            status(octavo.Retention(60, cursors=True), CURSORS, "billing", "mail"),
            "60 seconds, not above the lowest cursor; nothing is due",
        ),
    ],
)
def test_what_retention_will_do(found: LogStatus, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_status(found)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("retention")]
    assert line.removeprefix("retention").strip() == said


def test_idle_cursors_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    found = status(octavo.Retention(cursors=True), CURSORS, "billing")
    assert [(one["name"], one["idle"]) for one in status_as_json(found)["cursors"]] == [
        ("billing", True),
        ("mail", False),
    ]
    print_cursors(found)
    _, billing, mail = capsys.readouterr().out.splitlines()
    assert (billing.split()[-1], mail.split()[-1]) == ("idle", "-")


@pytest.mark.parametrize("clocks", ["", "the clock of the client is 7 s behind"])
def test_clocks_that_disagree_are_said_to(clocks: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = status(octavo.Retention(), {})._replace(clocks=clocks)
    print_status(found)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("clocks")]
    assert [line.split(maxsplit=1)[1].startswith(clocks) for line in lines] == [True] * bool(clocks)
    assert status_as_json(found)["clocks"] == clocks


@pytest.mark.parametrize("sealed", [False, True])
def test_a_sealed_log_is_said_to_be(sealed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    found = status(octavo.Retention(), {})._replace(sealed=sealed)
    print_status(found)
    assert ("the log is sealed" in capsys.readouterr().out) is sealed
    assert status_as_json(found)["sealed"] is sealed


@pytest.mark.parametrize(("stored", "shown"), [(Quorums(3, 3, 2), "3/3/2"), (None, "-")])
def test_quorums_of_a_log_and_of_its_segments(
    stored: Quorums | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = SegmentStatus(LedgerId(7), 0, 5, 50, 1, 0, stored)
    found = status(octavo.Retention(), {})._replace(segments=(segment,))
    print_status(found)
    lines = capsys.readouterr().out.splitlines()
    assert "E=5, Qw=3, Qa=2" in next(line for line in lines if line.startswith("quorums"))
    assert lines[-1].split()[5] == shown
    as_json = status_as_json(found)
    assert as_json["quorums"] == [5, 3, 2]
    assert as_json["segments"][0]["quorums"] == (None if stored is None else [3, 3, 2])


@pytest.mark.parametrize(
    ("kept", "said"), [(None, None), ("recorded", "recorded; 7 entries may lack copies"), ("required", None)]
)
def test_what_a_log_owes_is_shown(kept: str | None, said: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    owed = ((2, 5), None, (8, 10)) if kept == "recorded" else (None, None, None)
    segments = tuple(SegmentStatus(LedgerId(4), 3 * at, 3, 9, 1, 0, None, one) for at, one in enumerate(owed))
    found = status(octavo.Retention(), {})._replace(full_copies=kept, segments=segments)
    print_status(found)
    lines = capsys.readouterr().out.splitlines()
    copies = [line for line in lines if line.startswith("full copies")]
    assert [line.removeprefix("full copies").strip() for line in copies] == (
        [] if kept is None else [said or f"{kept}; nothing is owed"]
    )
    header = next(line for line in lines if line.startswith("ledger"))
    assert header.endswith("owes copies of") is (kept is not None)
    if kept == "recorded":
        assert [line.split("  ")[-1].strip() for line in lines[-3:]] == ["2 to 5", "-", "8 to 10"]
    shown = status_as_json(found)
    assert shown["full_copies"] == kept
    assert [one["owed"] for one in shown["segments"]] == [None if one is None else list(one) for one in owed]
