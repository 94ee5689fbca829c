"""What a bookie's log says about its end, in whichever format."""

from pathlib import Path

import pytest
from octavo.cli.local.bookie_process import pinned_id, reason_in
from octavo.protocol.ids import is_bookie_id


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


def test_the_id_of_a_data_directory_is_that_of_its_cookie_or_one_that_an_emptied_directory_has_again(
    tmp_path: Path,
) -> None:
    fresh = pinned_id(tmp_path / "bookie-1")
    assert is_bookie_id(fresh)
    assert pinned_id(tmp_path / "bookie-1") == fresh
    assert pinned_id(tmp_path / "bookie-2") != fresh
    (tmp_path / "bookie-2").mkdir()
    (tmp_path / "bookie-2" / "cookie").write_bytes(b'{"format": 1, "bookie_id": "bookie-of-old"}\ncrc32c 00000000\n')
    assert pinned_id(tmp_path / "bookie-2") == "bookie-of-old"
    (tmp_path / "bookie-2" / "cookie").write_bytes(b"damaged")
    assert is_bookie_id(pinned_id(tmp_path / "bookie-2"))
