"""The sample logs keep what makes them worth shipping, whatever Git or an editor would like to do to them."""

from support.tree import ROOT

SAMPLE = ROOT / "scripts" / "sample"


def test_the_large_sample_has_plain_line_ends_and_stops_within_a_line() -> None:
    log = (SAMPLE / "dpkg.log").read_bytes()
    assert len(log) == 250_000
    assert b"\r" not in log
    assert not log.endswith(b"\n")


def test_the_small_sample_has_carriage_returns_in_every_line() -> None:
    log = (SAMPLE / "alternatives-crlf.log").read_bytes()
    assert log.count(b"\n") == log.count(b"\r\n") == 97
    assert log.endswith(b"\r\n")
