"""The container files, as far as they can be checked without a container engine: every command and setting exists."""

import json
import re

import pytest
import yaml
from octavo.bookie.config import load_config
from octavo.cli.commands import run
from support.tree import ROOT

FOLDER = ROOT / "deploy" / "container"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
BOOKIES = {name: service for name, service in COMPOSE["services"].items() if name.startswith("bookie")}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (FOLDER / "Containerfile").read_text(), flags=re.MULTILINE))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def test_the_container_runs_a_bookie_without_root() -> None:
    found = dict(instructions())
    assert {name for name, _ in instructions()} <= {
        *("FROM", "COPY", "RUN", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD")
    }
    assert re.fullmatch(r"\S+/python:3\.1[2-9]-slim", found["FROM"])
    assert found["USER"] == "octavo"
    names = [name for name, _ in instructions()]
    assert names.index("USER") > names.index("RUN")
    assert json.loads(found["ENTRYPOINT"]) == ["octavo"]


def test_the_command_of_the_container_has_only_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    command = json.loads(dict(instructions())["CMD"])
    assert command[0] == "bookie"
    assert run(["bookie", "--help"]) == 0
    options = capsys.readouterr().out
    assert [word for word in command if word.startswith("--") and word not in options] == []


@pytest.mark.parametrize("name", BOOKIES)
def test_the_settings_of_a_composed_bookie_are_valid_and_lead_to_it(name: str) -> None:
    service = BOOKIES[name]
    config = load_config(None, service["environment"], {})
    assert (config.bookie_id, config.advertise) == (name, f"{name}:{config.port}")
    assert config.metadata == "zk://zookeeper:2181/octavo"
    assert service["command"] == ["bookie"]
    assert service["volumes"] == [f"{name}:/var/lib/octavo"]
    assert config.data_dir.is_relative_to("/var/lib/octavo")


def test_every_volume_and_dependency_of_the_composition_exists() -> None:
    services = COMPOSE["services"]
    volumes = {volume.partition(":")[0] for service in services.values() for volume in service["volumes"]}
    assert volumes == set(COMPOSE["volumes"])
    assert {needed for service in services.values() for needed in service.get("depends_on", [])} <= set(services)
