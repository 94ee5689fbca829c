"""How a client uses TLS, as its user says it: files and what to verify. Pure: :mod:`octavo.security.contexts` reads
the files.
"""

from collections.abc import Mapping
from typing import Literal, Self

from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.light_dataclass import dataclass

VARIABLE_PREFIX = "OCTAVO_TLS"

_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
_PARTS = ("ca", "certificate", "key", "verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """A client speaks TLS with every bookie, and never without it, whatever the cluster's metadata say.

    ``ca``: PEM file with the authorities whose certificates are accepted; None: those of the system. ``certificate``
    (PEM, the chain behind it) and ``key`` identify the client. ``verify``: ``"host"``, the bookie's certificate must be
    for the host that the client connects to; ``"bookie-id"``, it must contain the URI ``octavo:bookie/ID``, so that
    addresses may change. ``registered_only`` is for the bookies themselves, while their cluster changes to TLS: TLS is
    spoken with the bookies that are registered with it.

    Examples:
        >>> octavo.Tls(ca="ca.pem", certificate="client.pem", key="client.key").verify
        'host'

    Raises:
        InvalidArgumentError: A key is given without a certificate, or the other way round.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: Literal["host", "bookie-id"] = "host"
    registered_only: bool = False

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key"):
            path = getattr(self, name)
            if path is not None:
                object.__setattr__(self, name, str(path))  # a Path will do
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgumentError("TLS: certificate and key need one another; give both or neither")
        if self.verify not in ("host", "bookie-id"):
            raise InvalidArgumentError(f"TLS: verify must be 'host' or 'bookie-id', not {self.verify!r}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """The options in the environment; None: no TLS.

        ``OCTAVO_TLS`` (1: use TLS) and ``OCTAVO_TLS_CA``, ``_CERTIFICATE``, ``_KEY``, ``_VERIFY``, any of which
        switches TLS on.

        Raises:
            InvalidArgumentError: One of them has a value that cannot be.
        """
        given = {
            part: environment[f"{VARIABLE_PREFIX}_{part.upper()}"]
            for part in _PARTS
            if environment.get(f"{VARIABLE_PREFIX}_{part.upper()}")
        }
        switch = environment.get(VARIABLE_PREFIX)
        wanted = _SWITCH.get(switch.lower()) if switch is not None else None
        if switch is not None and wanted is None:
            raise InvalidArgumentError(f"environment: {VARIABLE_PREFIX} must be 1 or 0, not {switch!r}")
        if wanted is False and given:
            raise InvalidArgumentError(
                f"environment: {VARIABLE_PREFIX} switches TLS off, but {VARIABLE_PREFIX}_{min(given).upper()} is set; "
                "unset one of them"
            )
        return cls(**given) if given or wanted else None  # type: ignore[arg-type]
