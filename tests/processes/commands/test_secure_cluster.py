"""A secure cluster as its operator sets it up: three commands, then principals, and what is refused."""

import re
import signal
import tarfile
from pathlib import Path
from typing import Any

from support.commands.processes import BookieProcess, octavo


def test_a_secure_cluster_takes_three_commands_and_keeps_its_secrets(tmp_path: Path) -> None:
    tls, metadata = tmp_path / "tls", f"sqlite:///{tmp_path}/metadata.db"
    assert sorted(Path(path).name for path in octavo("tls", "init", tls, "--json").json["written"]) == [
        "admin.crt", "admin.key", "ca.crt", "ca.key", "localhost.crt", "localhost.key",
    ]  # fmt: skip
    assert {path.name for path in tls.iterdir() if path.stat().st_mode & 0o077} == {
        "admin.crt", "ca.crt", "localhost.crt",
    }  # fmt: skip
    settings = {
        "OCTAVO_BOOKIE_TLS": "required", "OCTAVO_BOOKIE_AUTH": "required", "OCTAVO_METADATA": metadata,
        "OCTAVO_BOOKIE_TLS_CERTIFICATE": f"{tls}/localhost.crt", "OCTAVO_BOOKIE_TLS_KEY": f"{tls}/localhost.key",
        "OCTAVO_BOOKIE_TLS_CA": f"{tls}/ca.crt",
    }  # fmt: skip
    admin: dict[str, Any] = {
        "OCTAVO_METADATA": metadata, "OCTAVO_TLS_CA": f"{tls}/ca.crt", "OCTAVO_TLS_CERTIFICATE": f"{tls}/admin.crt",
        "OCTAVO_TLS_KEY": f"{tls}/admin.key",
    }  # fmt: skip
    with BookieProcess(tmp_path / "bookie", "--port", 0, "--bookie-id", "b1", **settings) as bookie:
        bookie.wait_ready()
        added = octavo("access", "add", "admin", "--role", "admin", "--json", **admin)
        assert added.json == {"name": "admin", "roles": ["admin"]}

        (known,) = octavo("bookies", "--json", **admin).json
        assert known["state"] == "writable"
        assert known["free_bytes"] > 0, "INFO was answered"
        (tmp_path / "bookie.toml").write_text(f'data_dir = "{tmp_path}/bookie"\n')
        checked = octavo("doctor", "--config", tmp_path / "bookie.toml", "--json", **(settings | admin)).json
        days = {one["check"]: (one["result"], one["detail"]) for one in checked if "certificate" in one["check"]}
        assert days.keys() == {"certificate", "certificate of b1"}
        assert all(result == "ok" and "expires in" in detail for result, detail in days.values())

        assert octavo("access", "add", "writer", "--role", "append", **admin).status == 0
        assert octavo("access", "key", "writer", "--output", tmp_path / "writer.key", **admin).status == 0
        secret = (tmp_path / "writer.key").read_text().strip().partition(":")[2]
        assert (tmp_path / "writer.key").stat().st_mode & 0o077 == 0
        writer: dict[str, Any] = {
            "OCTAVO_METADATA": metadata, "OCTAVO_TLS_CA": f"{tls}/ca.crt",
            "OCTAVO_KEY_FILE": str(tmp_path / "writer.key"),
        }  # fmt: skip
        appended = octavo("ledger", "append", "-E", 1, "-W", 1, "-A", 1, stdin=b"one\ntwo\n", **writer)
        assert appended.status == 0, appended

        bundle = tmp_path / "bundle.tar.gz"
        logged = tmp_path / "bookie" / "logs"
        logged.mkdir(exist_ok=True)
        (logged / "bookie-1.log").write_text(f"{bookie.stderr}\nkey_file: writer:{secret}\n")
        collected = octavo(
            "support-bundle", "--output", bundle, "--config", tmp_path / "bookie.toml",
            "--data-dir", tmp_path / "bookie", **(settings | admin),
        )  # fmt: skip
        assert collected.status == 0, collected
        stored = (tmp_path / "metadata.db").read_bytes()
        stored_keys = {found.decode() for found in re.findall(rb'"stored_key":"([^"]+)"', stored)}
        assert len(stored_keys) == 2, "one for bookies, and one for Kafka's clients at gateways"

        bookie.process.send_signal(signal.SIGHUP)
        listed = octavo("access", "list", "--json", **admin)
        assert [one["name"] for one in listed.json] == ["admin", "writer"]
        assert bookie.stop() == 0
        assert "TLS files reloaded" in bookie.stderr
        told = f"{bookie.stderr} {appended} {listed}"
        with tarfile.open(bundle) as archive:
            parts = {member.name: archive.extractfile(member) for member in archive.getmembers()}
            told += "".join(part.read().decode() for part in parts.values() if part is not None)
        assert "bookies_in_detail" in told
        assert "key_file: " in told, "the log is in the bundle"
        for confidential in (secret, "PRIVATE KEY", *stored_keys):
            assert confidential not in told
