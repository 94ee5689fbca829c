"""A certificate authority for tests, and files of what it issues."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from octavo.security.authority import Pair, issue, make_authority
from octavo.security.contexts import ServerFiles
from octavo.security.tls_options import Tls

AUTHORITY = make_authority("tests")
"""Made once: every test trusts it."""

STRANGER = make_authority("strangers")
"""Trusted by no test."""


@dataclass(frozen=True)
class Certificates:
    """Writes certificates below a directory."""

    directory: Path

    @property
    def ca(self) -> str:
        path = self.directory / "ca.crt"
        return str(path) if path.exists() else self.write("ca", AUTHORITY)[0]

    def write(self, name: str, pair: Pair) -> tuple[str, str]:
        """Paths of certificate and key."""
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        certificate.write_bytes(pair.certificate)
        key.unlink(missing_ok=True)
        key.touch(0o600)
        key.write_bytes(pair.key)
        return str(certificate), str(key)

    def issue(self, name: str, *, authority: Pair = AUTHORITY, **what: Any) -> tuple[str, str]:
        """A certificate for localhost unless ``what`` says otherwise."""
        return self.write(name, issue(authority, name, **{"hosts": ("localhost", "127.0.0.1"), **what}))

    def server(self, name: str = "server", *, ca: bool = True, minimum: str = "1.3", **what: Any) -> ServerFiles:
        certificate, key = self.issue(name, **what)
        return ServerFiles(certificate=certificate, key=key, ca=self.ca if ca else None, minimum=minimum)

    def client(self, name: str | None = None, *, verify: str = "host", **what: Any) -> Tls:
        """Options of a client; with a name, it has a certificate for ``octavo:NAME``."""
        if name is None:
            return Tls(ca=self.ca, verify=verify)  # type: ignore[arg-type]
        certificate, key = self.issue(name, **{"hosts": (), "uris": (f"octavo:{name}",), **what})
        return Tls(ca=self.ca, certificate=certificate, key=key, verify=verify)  # type: ignore[arg-type]


def days_ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)
