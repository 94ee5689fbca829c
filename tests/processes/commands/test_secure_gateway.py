"""`octavo up --kafka` of a secure cluster, with clients that others have written, on TLS with both mechanisms of SASL
(rule K14); and `octavo gateway` with a certificate of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from debian_tools import library_path, program
from support.commands.forked_processes import OctavoProcess
from support.commands.gateways import PROGRAMS
from support.commands.processes import WAIT_SECONDS, Up, environment, free_neighbours, octavo
from support.waiting import wait_until

CLIENTS = PROGRAMS / "kafka_secure_clients.py"
PASSWORD = "the password of the logs"


class Secure(NamedTuple):
    """A secure cluster with a gateway."""

    up: Up
    folder: Path
    settings: dict[str, str]

    @property
    def ca(self) -> str:
        return f"{self.folder}/tls/ca.crt"

    def password_of(self, name: str) -> str:
        """The password of a principal, as its key file has it."""
        return (self.folder / f"{name}.key").read_text().strip().partition(":")[2]

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit.log").read_text().splitlines()]

    def run(self, client: str, mechanism: str, name: str, password: str, topic: str) -> dict[str, str]:
        """A client's message, or its error with what it has logged."""
        done = subprocess.run(
            [sys.executable, CLIENTS, client, self.up.kafka, self.ca, mechanism, name, topic],
            input=password,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            env=environment(),
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        said: dict[str, str] = json.loads(done.stdout)
        return said if "read" in said else {"error": f"{said['error']}\n{done.stderr}"}


@pytest.fixture(scope="module")
def secure(module_folder: Path) -> Iterator[Secure]:
    tls = module_folder / "tls"
    assert octavo("tls", "init", tls).status == 0
    settings: dict[str, Any] = {
        "OCTAVO_BOOKIE_HOST": "localhost", "OCTAVO_BOOKIE_TLS": "required", "OCTAVO_BOOKIE_AUTH": "required",
        "OCTAVO_BOOKIE_TLS_CA": f"{tls}/ca.crt", "OCTAVO_BOOKIE_TLS_CERTIFICATE": f"{tls}/localhost.crt",
        "OCTAVO_BOOKIE_TLS_KEY": f"{tls}/localhost.key", "OCTAVO_PASSWORD": PASSWORD,
        "OCTAVO_GATEWAY_AUDIT_FILE": f"{module_folder}/audit.log",
    }  # fmt: skip
    with Up(module_folder / "data", "--kafka", 0, **settings) as up:
        up.wait_ready()
        made = Secure(up, module_folder, settings)
        for name, rights in (
            ("web", ("--read", "orders.*", "--write", "orders.*", "--create", "orders.*", "--group", "web")),
            (
                "other",
                (
                    "--describe",
                    "nothing",
                ),
            ),
        ):
            for arguments in (("allow", name, *rights), ("key", name, "--output", module_folder / f"{name}.key")):
                changed = octavo("access", *arguments, "--metadata", up.uri)
                assert changed.status == 0, changed
        yield made


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
@pytest.mark.parametrize("client", ["aiokafka", "kafka-python", "confluent-kafka"])
def test_a_client_with_a_key_and_rights_is_served(secure: Secure, client: str, mechanism: str) -> None:
    topic = f"orders.{client}.{mechanism}"
    assert secure.run(client, mechanism, "web", secure.password_of("web"), topic) == {"read": "a message"}


@pytest.mark.parametrize(
    ("client", "mechanism", "error"),
    [
        ("aiokafka", "SCRAM-SHA-256", "SaslAuthenticationFailed"),
        ("kafka-python", "PLAIN", "SaslAuthenticationFailed"),
        ("confluent-kafka", "SCRAM-SHA-256", "SASL authentication error: the name or the key is wrong"),
    ],
)
def test_a_wrong_key_is_refused_and_told_so(secure: Secure, client: str, mechanism: str, error: str) -> None:
    said = secure.run(client, mechanism, "web", secure.password_of("other"), "orders.new")
    assert error in said.get("error", ""), said


@pytest.mark.parametrize(
    ("client", "error"),
    [
        ("aiokafka", "TopicAuthorizationFailed"),
        ("kafka-python", "TopicAuthorizationFailed"),
        ("confluent-kafka", "TOPIC_AUTHORIZATION_FAILED"),
    ],
)
def test_a_client_without_the_right_is_refused(secure: Secure, client: str, error: str) -> None:
    said = secure.run(client, "SCRAM-SHA-256", "other", secure.password_of("other"), "orders.private")
    assert error in said.get("error", ""), said
    assert any(
        line["event"] == "request" and line["outcome"] == "refused" and line["principal"] == "other"
        and line["topic"] == "orders.private"
        for line in secure.audit()
    )  # fmt: skip


def kcat(secure: Secure, *arguments: str, name: str = "web", password: str = "", text: str = "") -> Any:
    libraries = library_path("kcat")
    common = [
        "-X", "security.protocol=SASL_SSL", "-X", "sasl.mechanism=SCRAM-SHA-256", "-X", f"ssl.ca.location={secure.ca}",
        "-X", f"sasl.username={name}", "-X", f"sasl.password={password or secure.password_of(name)}",
    ]  # fmt: skip
    return subprocess.run(
        [program("kcat"), "-b", secure.up.kafka, *common, *arguments],
        input=text,
        env=environment(**({"LD_LIBRARY_PATH": libraries} if libraries else {})),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def test_kcat_with_a_key_without_rights_and_with_a_wrong_key(secure: Secure) -> None:
    produced = kcat(secure, "-P", "-t", "orders.kcat", text="hello\n")
    assert produced.returncode == 0, produced.stderr
    assert kcat(secure, "-C", "-t", "orders.kcat", "-e", "-q").stdout == "hello\n"
    assert "orders.kcat" in kcat(secure, "-L").stdout
    listed = kcat(secure, "-L", name="other")
    assert "0 topics" in listed.stdout, listed
    refused = kcat(secure, "-C", "-t", "orders.kcat", "-e", "-q", name="other")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "authorization failed" in refused.stderr.lower()
    wrong = kcat(secure, "-L", "-m", "5", password="wrong")
    assert wrong.returncode == 1
    assert "the name or the key is wrong" in wrong.stderr


def test_groups_on_the_command_line_with_a_key(secure: Secure) -> None:
    """Members and offsets are shown to a principal with the rights, by TLS and SCRAM; another is told what it lacks."""
    common: dict[str, Any] = {"OCTAVO_METADATA": secure.up.uri, "OCTAVO_TLS_CA": secure.ca}
    web = common | {"OCTAVO_KEY_FILE": f"{secure.folder}/web.key"}
    other = common | {"OCTAVO_KEY_FILE": f"{secure.folder}/other.key"}
    kcat(secure, "-P", "-t", "orders.grouped", text="one\ntwo\n")
    read = kcat(secure, "-X", "auto.offset.reset=earliest", "-c", "2", "-q", "-G", "web", "orders.grouped")
    assert read.stdout == "one\ntwo\n", read

    def offsets() -> list[tuple[int, int, int]]:
        shown = octavo("group", "show", "web", "--json", **web)
        assert shown.status == 0, shown
        facts = [one for one in json.loads(shown.stdout)["offsets"] if one["topic"] == "orders.grouped"]
        return [(one["offset"], one["end"], one["lag"]) for one in facts]

    assert offsets() == [(2, 2, 0)]
    assert '"web"' in octavo("group", "list", "--json", **web).stdout.decode()
    assert octavo("group", "list", **other).stdout == b""
    octavo("group", "show", "web", **other).failed_with_one_line(1, "lacks the right to group group web")
    assert octavo("group", "reset", "web", "--to", "beginning", **web).status == 0
    assert offsets() == [(0, 2, 2)]
    assert octavo("group", "delete", "web", "--yes", **web).status == 0
    octavo("group", "show", "web", **web).failed_with_one_line(1, "there is no group 'web'")


def test_groups_are_not_told_without_a_key_with_a_wrong_one_or_to_a_gateway_of_another_authority(
    secure: Secure,
) -> None:
    common: dict[str, Any] = {"OCTAVO_METADATA": secure.up.uri, "OCTAVO_TLS_CA": secure.ca}
    octavo("group", "list", **common).failed_with_one_line(1, "give --key-file, if its clients must be principals")
    octavo("group", "list", OCTAVO_METADATA=secure.up.uri).failed_with_one_line(1, "give --tls-ca, if it speaks TLS")
    wrong = secure.folder / "wrong.key"
    wrong.write_text("web:" + secure.password_of("other") + "\n")
    wrong.chmod(0o600)
    octavo("group", "list", **common, OCTAVO_KEY_FILE=str(wrong)).failed_with_one_line(
        1, "the name or the key is wrong"
    )
    assert octavo("tls", "init", secure.folder / "strange").status == 0
    strange = common | {
        "OCTAVO_TLS_CA": f"{secure.folder}/strange/ca.crt",
        "OCTAVO_KEY_FILE": f"{secure.folder}/web.key",
    }
    octavo("group", "list", **strange).failed_with_one_line(1, "certificate verify failed")


def test_no_secret_is_in_the_metadata_the_audit_log_and_the_output(secure: Secure) -> None:
    told = (secure.folder / "audit.log").read_text() + secure.up.stderr
    stored = (secure.up.directory / "metadata.db").read_bytes().decode("latin-1")
    for confidential in (PASSWORD, secure.password_of("web"), secure.password_of("other")):
        assert confidential not in told
        assert confidential not in stored


def test_topics_cannot_be_read_from_bookies_without_the_password(secure: Secure) -> None:
    tls = secure.folder / "tls"
    admin: dict[str, Any] = {
        "OCTAVO_METADATA": secure.up.uri, "OCTAVO_TLS_CA": secure.ca, "OCTAVO_TLS_CERTIFICATE": f"{tls}/admin.crt",
        "OCTAVO_TLS_KEY": f"{tls}/admin.key",
    }  # fmt: skip
    assert octavo("access", "add", "admin", "--role", "read", **admin).status == 0
    kcat(secure, "-P", "-t", "orders.private", text="hello\n")
    refused = octavo("log", "read", "kafka/orders.private/0", **admin)
    assert refused.status == 1
    assert "hello" not in refused.stdout.decode("latin-1")


def test_a_topic_of_the_command_line_is_private_too(secure: Secure) -> None:
    tls = secure.folder / "tls"
    assert octavo("tls", "issue", tls, "--client", "maker").status == 0
    assert octavo("access", "add", "maker", "--role", "append", "--metadata", secure.up.uri).status == 0
    maker: dict[str, Any] = {
        "OCTAVO_METADATA": secure.up.uri, "OCTAVO_TLS_CA": secure.ca, "OCTAVO_TLS_CERTIFICATE": f"{tls}/maker.crt",
        "OCTAVO_TLS_KEY": f"{tls}/maker.key",
    }  # fmt: skip
    kcat(secure, "-P", "-t", "orders.first", text="hello\n")
    for password in ("", "another"):
        refused = octavo("topic", "create", "orders.cli", "--copies", 1, **maker, OCTAVO_PASSWORD=password)
        refused.failed_with_one_line(1, "is private: set OCTAVO_PASSWORD to the password that the gateways have")
    made = octavo("topic", "create", "orders.cli", "--copies", 1, **maker, OCTAVO_PASSWORD=PASSWORD)
    assert made.status == 0, made
    assert kcat(secure, "-P", "-t", "orders.cli", text="hello\n").returncode == 0
    assert octavo("log", "read", "kafka/orders.cli/0", **maker).status == 1
    assert octavo("topic", "delete", "orders.cli", "--yes", **maker).status == 0


def test_a_gateway_of_its_own_with_one_certificate_for_both_sides(secure: Secure) -> None:
    """It is the principal `gateway` at bookies, follows its certificate on SIGHUP, and ends in order."""
    tls, port = secure.folder / "tls", free_neighbours(1)
    issued = octavo("tls", "issue", tls, "--gateway", "localhost")
    assert issued.status == 0, issued
    assert octavo("access", "add", "gateway", "--role", "append", "--metadata", secure.up.uri).status == 0
    settings = {
        "OCTAVO_METADATA": secure.up.uri, "OCTAVO_TLS_CA": secure.ca,
        "OCTAVO_TLS_CERTIFICATE": f"{tls}/gateway-localhost.crt", "OCTAVO_TLS_KEY": f"{tls}/gateway-localhost.key",
        "OCTAVO_GATEWAY_TLS": "required", "OCTAVO_GATEWAY_AUTH": "required", "OCTAVO_PASSWORD": PASSWORD,
    }  # fmt: skip
    log_path = secure.folder / "gateway.stderr"
    with (
        log_path.open("wb") as stderr,
        OctavoProcess(
            ["gateway", "--listen", f"127.0.0.1:{port}", "--json", "--log-level", "info"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment(**settings),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"event": "ready", "address": f"127.0.0.1:{port}"}
            os.kill(process.pid, signal.SIGHUP)
            wait_until(lambda: "TLS files reloaded" in log_path.read_text(), "the files are read again")
            # It asks the gateway of `octavo up`, which learns of this one a moment later.
            wait_until(lambda: f":{port}" in kcat(secure, "-L").stdout, "clients are told of both gateways")
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_SECONDS) == 128 + signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--listen", "192.0.2.1:9092"], "can be reached by other hosts, and clients prove who they are over TLS only"),
        (["--listen", "0.0.0.0:9092"], "clients cannot connect to that address: give --advertise HOST:PORT"),
        (["--listen-tls", "required"], 'tls = "required" needs its certificate and key'),
        (["--listen-tls", "perhaps"], "tls is one of off, optional, required"),
        (["--auth", "required"], "topics are private: give the password of their logs with --password-file"),
    ],
)
def test_settings_that_need_one_another_are_refused(arguments: list[str], reason: str) -> None:
    octavo("gateway", *arguments).failed_with_one_line(2, reason)
