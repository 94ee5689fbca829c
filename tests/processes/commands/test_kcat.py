"""The gateway with kcat, as Debian has it: the commands of README and docs/kafka.md as they stand, keys, headers,
compression, idempotence, and a consumer group.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.gateways import kcat
from support.commands.processes import Up
from support.tree import ROOT

BLOCK = re.compile(r"^```sh\n(?P<code>(?:.*\n)*?)```$", re.MULTILINE)
ADDRESS = "127.0.0.1:9092"
"""The address in documents."""

PAGES = {"README.md": 1, "docs/kafka.md": 1}
"""Page -> its blocks with kcat."""

COUNT = 200


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data", "--kafka", 0) as running:
        yield running.wait_ready()


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_with_kcat_of_a_page_run_as_they_stand(up: Up, page: str) -> None:
    """At another port. A reader finds what was added, and the topic."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = [match["code"] for match in BLOCK.finditer(text) if "kcat" in match["code"]]
    assert len(blocks) == PAGES[page]
    for block in blocks:
        assert ADDRESS in block
        lines = kcat(block.replace(ADDRESS, up.kafka)).splitlines()
        assert "hello" in lines
        if " -L " in block:
            assert '  topic "greetings" with 1 partitions:' in lines


def test_kcat_produces_and_consumes_keys_headers_and_values(up: Up) -> None:
    numbers = f"seq 1 {COUNT} | sed 's/.*/key&:value&/'"
    settings = f"-b {up.kafka} -t pairs"
    kcat(f"{numbers} | kcat -P {settings} -K: -H place=cellar -z gzip")
    kcat(f"{numbers} | kcat -P {settings} -K: -H place=attic -z lz4 -X enable.idempotence=true")
    lines = kcat(f"kcat -C {settings} -e -q -f '%o %k %s %h\\n'").splitlines()
    expected = [f"key{number} value{number}" for number in range(1, COUNT + 1)] * 2
    places = ["cellar"] * COUNT + ["attic"] * COUNT
    assert lines == [f"{at} {pair} place={places[at]}" for at, pair in enumerate(expected)]
    assert kcat(f"kcat -C {settings} -o -3 -e -q").splitlines() == [f"value{COUNT - back}" for back in (2, 1, 0)]
    assert kcat(f"kcat -Q -b {up.kafka} -t pairs:0:-1").splitlines() == [f"pairs [0] offset {2 * COUNT}"]


def test_kcat_goes_on_in_its_group_where_it_has_ended(up: Up) -> None:
    settings = f"-b {up.kafka} -q -u -X auto.offset.reset=earliest -G readers"
    for first in (1, COUNT + 1):
        expected = [str(number) for number in range(first, first + COUNT)]
        kcat(f"seq {first} {first + COUNT - 1} | kcat -P -b {up.kafka} -t numbers")
        assert kcat(f"kcat {settings} -c {COUNT} numbers").splitlines() == expected
