"""The container files: linters find nothing, and every command and setting in them exists."""

import copy
import json
import re
import subprocess
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from debian_tools import program
from octavo._version import __version__
from octavo.bookie.config import load_config
from octavo.cli.commands import run
from octavo.gateway.gateway import GatewaySettings
from octavo.gateway.security_settings import SecuritySettings
from octavo.security.loopback import is_loopback
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
    assert f"--uid {found['USER']}" in found["RUN"]
    assert int(found["USER"]) > 0
    names = [name for name, _ in instructions()]
    assert names.index("USER") > names.index("RUN")
    assert json.loads(found["ENTRYPOINT"]) == ["octavo"]


def lint(containerfile: str) -> list[str]:
    """The codes of what hadolint finds, notes of style included."""
    command = [str(Path(sysconfig.get_path("scripts"), "hadolint")), "--no-fail", "--format", "json", "-"]
    done = subprocess.run(command, input=containerfile, capture_output=True, text=True, check=True)
    return [finding["code"] for finding in json.loads(done.stdout)]


def test_hadolint_finds_nothing_in_the_containerfile() -> None:
    text = (FOLDER / "Containerfile").read_text()
    assert lint(text) == []
    assert lint(text.replace("USER 971", "USER 0")) == ["DL3002"]
    assert lint(text.replace(":3.13-slim", "")) == ["DL3006"]


def findings(composition: dict[str, Any]) -> list[str]:
    """What in a Compose file docker-compose's own schema does not accept."""
    schema = json.loads(program("compose_spec.json").read_text())
    return [error.message for error in jsonschema.Draft201909Validator(schema).iter_errors(composition)]


MISTAKES: list[Callable[[dict[str, Any]], object]] = [
    lambda services: services["bookie1"].update(comand=["bookie"]),
    lambda services: services["bookie2"].update(stop_grace_period=60),
    lambda services: services["bookie3"]["environment"].update(OCTAVO_BOOKIE_HOST=["0.0.0.0"]),
    lambda services: services["zookeeper"].update(volumes="zookeeper:/data"),
    lambda services: services["gateway"].update(port=["127.0.0.1:9092:9092"]),
]


def test_the_schema_of_docker_compose_finds_nothing_in_the_composition() -> None:
    assert findings(COMPOSE) == []
    for mistake in MISTAKES:
        wrong = copy.deepcopy(COMPOSE)
        mistake(wrong["services"])
        assert len(findings(wrong)) == 1


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
    volumes = {volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert volumes == set(COMPOSE["volumes"])
    assert {needed for service in services.values() for needed in service.get("depends_on", [])} <= set(services)


def test_the_image_has_what_gateways_need() -> None:
    found = dict(instructions())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r"\.whl\)\[([\w,]+)\]", found["RUN"])
    assert "kafka" in named.split(",")
    assert set(named.split(",")) <= set(extras)
    assert found["EXPOSE"].split() == ["3181", str(GatewaySettings().port)]


def test_the_composed_gateway_starts_and_only_this_host_reaches_it(capsys: pytest.CaptureFixture[str]) -> None:
    service = COMPOSE["services"]["gateway"]
    command, *arguments = service["command"]
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert run([command, "--help"]) == 0
    known = capsys.readouterr().out
    assert [word for word in options if word not in known] == []
    host, port = options["--listen"].rsplit(":", 1)
    SecuritySettings(auth=options["--auth"]).check(host, has_password=False)
    (published,) = service["ports"]
    published_host, published_port, inner_port = published.split(":")
    assert is_loopback(published_host)
    assert (inner_port, options["--advertise"]) == (port, f"localhost:{published_port}")
    assert service["environment"]["OCTAVO_METADATA"] == BOOKIES["bookie1"]["environment"]["OCTAVO_METADATA"]
    assert set(BOOKIES) <= set(service["depends_on"])


def test_compose_kubernetes_and_systemd_give_a_gateway_the_same_image_command_and_time() -> None:
    service = COMPOSE["services"]["gateway"]
    pod = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "gateway.yaml").read_text())["spec"]["template"]["spec"]
    (sidecar,) = pod["initContainers"]
    unit = (ROOT / "deploy" / "octavo-gateway@.service").read_text()
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert service["stop_grace_period"] == f"{seconds}s"
    assert pod["terminationGracePeriodSeconds"] == int(seconds)
    assert sidecar["image"].partition(":")[0] == service["image"]
    assert sidecar["image"].partition(":")[2] == __version__
    assert sidecar["args"][0] == service["command"][0] == "gateway"
    assert "octavo gateway " in unit
    assert str(pod["securityContext"]["runAsUser"]) == dict(instructions())["USER"]
    (listen,) = (sidecar["args"][at + 1] for at, word in enumerate(sidecar["args"]) if word == "--listen")
    assert is_loopback(listen.rpartition(":")[0]), "it asks no client who it is"
    for probe in ("startupProbe", "livenessProbe"):
        assert listen.rpartition(":")[2] in sidecar[probe]["exec"]["command"][-1]
