"""The protection that `make demo SECURE=1` switches on: TLS, principals with keys, a private log, the audit log, TLS to
ZooKeeper."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Security:
    """Files and variables of a cluster on this machine with everything switched on."""

    folder: Path
    password: bytes
    """Of the log, which is private."""

    @classmethod
    def prepare(cls, folder: Path) -> "Security":
        """Make an authority, certificates for the bookies and an administrator. Raises CalledProcessError."""
        security = cls(folder, secrets.token_hex(16).encode())
        security._octavo("tls", "init", str(folder / "tls"), "--host", "localhost")
        return security

    @property
    def audit_file(self) -> Path:
        """The audit log of all bookies together."""
        return self.folder / "audit.jsonl"

    def bookie_variables(self) -> Mapping[str, str]:
        """The settings of the bookies. The certificate names the host localhost, at which they listen."""
        tls = self.folder / "tls"
        return {
            "OCTAVO_BOOKIE_HOST": "localhost",
            "OCTAVO_BOOKIE_TLS": "required",
            "OCTAVO_BOOKIE_AUTH": "required",
            "OCTAVO_BOOKIE_VERIFY_NEW_LEDGERS": "true",
            "OCTAVO_BOOKIE_TLS_CA": str(tls / "ca.crt"),
            "OCTAVO_BOOKIE_TLS_CERTIFICATE": str(tls / "localhost.crt"),
            "OCTAVO_BOOKIE_TLS_KEY": str(tls / "localhost.key"),
            "OCTAVO_BOOKIE_AUDIT_FILE": str(self.audit_file),
            "OCTAVO_BOOKIE_AUDIT_FILE_BYTES": "0",  # several bookies append to it, so none may rename it
        }

    def add_principal(self, metadata_uri: str, name: str, role: str) -> None:
        """Make a principal with a key, with which this process and its children connect from now on."""
        self._octavo("access", "add", name, "--role", role, "--metadata", metadata_uri)
        key_file = self.folder / f"{name}.key"
        self._octavo("access", "key", name, "--output", str(key_file), "--metadata", metadata_uri)
        os.environ["OCTAVO_TLS_CA"] = str(self.folder / "tls" / "ca.crt")
        os.environ["OCTAVO_KEY_FILE"] = str(key_file)
        os.environ["OCTAVO_PASSWORD"] = self.password.decode()

    def audited(self) -> list[dict[str, Any]]:
        """The lines of the audit log."""
        return [json.loads(line) for line in self.audit_file.read_text().splitlines()]

    def _octavo(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-P", "-m", "octavo.cli.main", *arguments], check=True, stdout=subprocess.DEVNULL
        )
