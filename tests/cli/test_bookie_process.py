"""What a bookie's log says about its end, in whichever format."""

import pytest
from octavo.cli.local.bookie_process import reason_in


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "2026-01-01 [error    ] bookie cannot start            data_dir=/d reason='port 3181 is in use'",
            "port 3181 is in use",
        ),
        ('2026-01-01 [error    ] bookie cannot start  reason="it\'s in use" data_dir=/d', "it's in use"),
        ("\x1b[2m2026\x1b[0m [\x1b[31merror\x1b[0m] \x1b[36mreason\x1b[0m=\x1b[35m'in use'\x1b[0m", "in use"),
        ("[error] stopped reason=short bookie=b", "short"),
        ('{"event": "bookie cannot start", "reason": "in use", "level": "error"}', "in use"),
        ('{"event": "no reason"}', '{"event": "no reason"}'),
        ("[1, 2]", "[1, 2]"),
        ("octavo: --advertise must be HOST:PORT", "--advertise must be HOST:PORT"),
        ("Segmentation fault", "Segmentation fault"),
    ],
)
def test_the_reason_is_found_in_the_last_line_of_a_log(line: str, reason: str) -> None:
    assert reason_in(line) == reason
