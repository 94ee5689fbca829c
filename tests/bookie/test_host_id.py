"""The id of the host that a bookie registers."""

from pathlib import Path

from octavo.bookie.config import load_config
from octavo.bookie.daemon import on_this_host
from octavo.metadata.clocks.boot_time import boot_id_of_kernel
from structlog.testing import capture_logs

AUTO = load_config(None, {}, {"data_dir": Path("/bookie")})
BOOT_ID = "5d3a8f0e-1b2c-4d5e-8f90-a1b2c3d4e5f6"


def test_host_is_named_by_the_start_of_its_kernel() -> None:
    assert on_this_host(AUTO, BOOT_ID).registered_host_id == "boot-5d3a8f0e1b2c4d5e"
    assert boot_id_of_kernel() == Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def test_host_that_is_set_stays_as_it_is() -> None:
    named = load_config(None, {"OCTAVO_BOOKIE_HOST_ID": "node-7"}, {"data_dir": Path("/bookie")})
    assert on_this_host(named, BOOT_ID).registered_host_id == "node-7"
    assert on_this_host(named, None).registered_host_id == "node-7"


def test_bookie_that_cannot_tell_registers_no_host_and_says_what_to_set() -> None:
    with capture_logs() as lines:
        assert on_this_host(AUTO, None).registered_host_id is None
    assert [line["log_level"] for line in lines] == ["warning"]
    assert "set host_id, the same for all of them" in lines[0]["event"]
