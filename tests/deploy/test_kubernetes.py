"""The manifests for Kubernetes: its schema finds nothing, and they say what bookies and gateways need.

``kubernetes_schema.json`` has what Kubernetes 1.34 says of the kinds used here, in the strict form of the package
kubernetes-validate 1.37, without descriptions. No cluster runs here: nothing is applied.
"""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from octavo.bookie.config import load_config
from octavo.cli.commands import run
from support.commands.processes import Up
from support.tree import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
SCHEMA = json.loads(Path(__file__).with_name("kubernetes_schema.json").read_text())
MANIFESTS: list[dict[str, Any]] = [
    document for file in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(file.read_text())
]
NAMESPACE = "storage"


def manifest(kind: str) -> dict[str, Any]:
    (found,) = [one for one in MANIFESTS if one["kind"] == kind]
    return found


def pod_of(kind: str) -> dict[str, Any]:
    spec: dict[str, Any] = manifest(kind)["spec"]["template"]["spec"]
    return spec


def bookie() -> dict[str, Any]:
    (container,) = pod_of("StatefulSet")["containers"]
    return dict(container)


def findings(document: dict[str, Any]) -> list[str]:
    """What in a manifest the schema does not accept."""
    schema = {**SCHEMA["kinds"][document["kind"]], "definitions": SCHEMA["definitions"]}
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize("document", MANIFESTS, ids=lambda document: document["kind"])
def test_the_schema_of_kubernetes_finds_nothing(document: dict[str, Any]) -> None:
    assert findings(document) == []


MISTAKES: list[Callable[[dict[str, Any]], object]] = [
    lambda spec: spec.update(replica=3),
    lambda spec: spec.update(replicas="three"),
    lambda spec: spec["template"]["spec"]["containers"][0].update(arg=["bookie"]),
    lambda spec: spec["template"]["spec"]["containers"][0]["readinessProbe"].update(periodSeconds="10s"),
    lambda spec: spec.pop("selector"),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_schema_finds_mistakes(mistake: Callable[[dict[str, Any]], object]) -> None:
    wrong = copy.deepcopy(manifest("StatefulSet"))
    mistake(wrong["spec"])
    assert len(findings(wrong)) == 1


def environment(pod: str, node: str) -> dict[str, str]:
    """The variables of a bookie's container, as Kubernetes makes them."""
    fields = {"metadata.name": pod, "metadata.namespace": NAMESPACE, "spec.nodeName": node}
    made: dict[str, str] = {}
    for source in bookie()["envFrom"]:
        assert source == {"configMapRef": {"name": manifest("ConfigMap")["metadata"]["name"]}}
        made |= manifest("ConfigMap")["data"]
    for variable in bookie()["env"]:
        value = variable.get("value")
        if value is None:
            value = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for name, known in made.items():
            value = value.replace(f"$({name})", known)
        made[variable["name"]] = value
    return made


def test_a_bookie_keeps_its_identity_wherever_its_pod_runs() -> None:
    one, moved, other = (
        load_config(None, {name: value for name, value in environment(pod, node).items() if name != "NAMESPACE"}, {})
        for pod, node in (("octavo-bookie-0", "node-a"), ("octavo-bookie-0", "node-b"), ("octavo-bookie-1", "node-a"))
    )
    assert (one.bookie_id, one.advertise) == (moved.bookie_id, moved.advertise)
    assert one.bookie_id == "octavo-bookie-0"
    service = manifest("Service")
    assert one.advertise == f"octavo-bookie-0.{service['metadata']['name']}.{NAMESPACE}.svc.cluster.local:{one.port}"
    assert manifest("StatefulSet")["spec"]["serviceName"] == service["metadata"]["name"]
    assert (one.registered_host_id, moved.registered_host_id) == ("node-a", "node-b")
    assert other.bookie_id != one.bookie_id
    assert one.metadata.startswith("zk://")


def test_everything_that_a_bookie_keeps_is_on_a_volume_of_its_own() -> None:
    variables = {name: value for name, value in environment("octavo-bookie-0", "a").items() if name != "NAMESPACE"}
    config = load_config(None, variables, {})
    mounts = {mount["name"]: mount["mountPath"] for mount in bookie()["volumeMounts"]}
    claimed = {claim["metadata"]["name"] for claim in manifest("StatefulSet")["spec"]["volumeClaimTemplates"]}
    assert claimed == {"data", "journal"}
    assert set(mounts) == claimed | {volume["name"] for volume in pod_of("StatefulSet")["volumes"]}
    assert config.data_dir.is_relative_to(mounts["data"])
    assert config.journal_dir is not None
    assert config.journal_dir.is_relative_to(mounts["journal"])
    assert config.admin_socket is not None
    assert config.admin_socket.is_relative_to(mounts["run"])
    retained = manifest("StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert set(retained.values()) == {"Retain"}


def test_one_bookie_is_missing_at_a_time_and_no_node_has_two() -> None:
    stateful = manifest("StatefulSet")["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    (rule,) = pod_of("StatefulSet")["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule == {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    budget = manifest("PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]) == (1, {"matchLabels": labels})
    assert stateful["selector"] == {"matchLabels": labels}
    assert manifest("Service")["spec"]["selector"] == labels
    policy = manifest("NetworkPolicy")["spec"]
    assert policy["podSelector"] == {"matchLabels": labels}
    allowed = [one["podSelector"]["matchLabels"] for one in policy["ingress"][0]["from"]]
    clients = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels in allowed
    assert any(wanted.items() <= clients.items() for wanted in allowed)


@pytest.mark.parametrize(("kind", "group"), [("StatefulSet", "containers"), ("Deployment", "initContainers")])
def test_containers_have_no_rights_and_options_that_exist(
    kind: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (container,) = pod_of(kind)[group]
    assert pod_of(kind)["securityContext"]["runAsNonRoot"] is True
    security = container["securityContext"]
    assert (security["allowPrivilegeEscalation"], security["capabilities"]) == (False, {"drop": ["ALL"]})
    assert run([container["args"][0], "--help"]) == 0
    options = capsys.readouterr().out
    assert [word for word in container["args"] if word.startswith("--") and word not in options] == []


def test_the_probes_of_a_bookie_ask_its_administration(tmp_path: Path) -> None:
    socket = bookie()["env"][-1]
    assert socket["name"] == "OCTAVO_BOOKIE_ADMIN_SOCKET"
    with Up(tmp_path / "data", "--bookies", 1) as up:
        up.wait_ready()
        (real,) = (tmp_path / "data").rglob("admin.sock")

        def probe(name: str, path: str | None = None) -> int:
            python, flag, script, asked = bookie()[name]["exec"]["command"]
            assert (python, flag) == ("python", "-c")
            assert socket["value"] in script
            command = [sys.executable, flag, script.replace(socket["value"], str(real)), path or asked]
            return subprocess.run(command, capture_output=True, check=False).returncode

        assert probe("readinessProbe") == 0
        assert probe("livenessProbe") == 0
        assert probe("readinessProbe", "/nowhere") == 1
    assert probe("readinessProbe") == 1
