"""The settings of a gateway that say who may use it, in the words of those of a bookie."""

from pathlib import Path
from typing import Final

from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.light_dataclass import dataclass
from octavo.security.audit import AuditFile
from octavo.security.contexts import ServerFiles
from octavo.security.loopback import is_loopback
from octavo.security.tls_port import ArrivalLimits

TLS: Final = ("off", "optional", "required")
AUTH: Final = ("auto", "required", "none")
TLS_MINIMUM: Final = ("1.2", "1.3")

TLS_RELOAD_SECONDS: Final = 60.0
AUDIT_FILE_BYTES: Final = 64 * 1024 * 1024
AUDIT_FILES_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """See the module."""

    tls: str = "off"
    """Whether clients speak TLS: off, optional (clients choose, at the same port), or required."""
    tls_certificate: Path | None = None
    """PEM file with the gateway's certificate and the chain behind it. Needed unless TLS is off."""
    tls_key: Path | None = None
    """PEM file with the certificate's key, without a password."""
    tls_ca: Path | None = None
    """PEM file with the authorities that sign the certificates of clients. None: clients are not asked for one."""
    tls_minimum: str = "1.3"
    """Lowest version of TLS that the gateway accepts."""
    tls_reload_seconds: float = TLS_RELOAD_SECONDS
    """Time between two looks at the files of TLS."""
    auth: str = "auto"
    """Whether clients must be principals of the cluster. auto: if the gateway listens beyond this host."""
    audit_file: Path | None = None
    """File of the audit log. None: there is none."""

    def authentication_required(self, host: str) -> bool:
        """Whether clients must be principals of the cluster."""
        return self.auth == "required" or (self.auth == "auto" and not is_loopback(host))

    def check(self, host: str, *, has_password: bool) -> None:
        """Raise :class:`InvalidArgumentError` for settings that need one another."""
        for name, choices in (("tls", TLS), ("auth", AUTH), ("tls_minimum", TLS_MINIMUM)):
            if getattr(self, name) not in choices:
                raise InvalidArgumentError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        required = self.authentication_required(host)
        if required and self.tls == "off" and not is_loopback(host):
            raise InvalidArgumentError(
                f"host {host} can be reached by other hosts, and clients prove who they are over TLS only: set tls "
                '(docs/security.md has the steps), or auth = "none" to let every host read and write everything'
            )
        if self.tls != "off" and (self.tls_certificate is None or self.tls_key is None):
            raise InvalidArgumentError(
                f'tls = "{self.tls}" needs its certificate and key; `octavo tls issue DIR --gateway HOST` makes both'
            )
        if required and not has_password:
            raise InvalidArgumentError(
                "where clients must be principals, topics are private: give the password of their logs with "
                "--password-file, the same to all gateways. Otherwise every client of the bookies with the role read "
                "could read every topic"
            )

    @property
    def files(self) -> ServerFiles:
        """The files of a gateway with TLS."""
        ca = None if self.tls_ca is None else str(self.tls_ca)
        return ServerFiles(
            certificate=str(self.tls_certificate), key=str(self.tls_key), ca=ca, minimum=self.tls_minimum
        )

    @property
    def audit(self) -> AuditFile | None:
        """Where audit lines go."""
        return None if self.audit_file is None else AuditFile(self.audit_file, AUDIT_FILE_BYTES, AUDIT_FILES_MAX)

    @property
    def arrivals(self) -> ArrivalLimits:
        """Bounds of connections that are not ready."""
        return ArrivalLimits(connections_max=2000)
