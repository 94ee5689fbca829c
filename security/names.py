"""The names of this project in certificates: URIs in the subject's alternative names. Pure.

``octavo:NAME`` is the principal NAME. ``octavo:bookie`` is some bookie of the cluster, ``octavo:bookie/ID`` the bookie
with that id. Everything else in a certificate (its subject above all) has no meaning here.
"""

import re
from collections.abc import Mapping
from typing import Any

SCHEME = "octavo:"
BOOKIE = "bookie"
"""The name of all bookies together; no principal can have it."""

_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


def is_principal_name(name: str) -> bool:
    """1 to 64 letters, digits and ``._@-``, the first a letter or digit; not ``bookie``."""
    return name != BOOKIE and _PRINCIPAL.fullmatch(name) is not None


def bookie_uri(bookie_id: str | None = None) -> str:
    """The URI in the certificate of this bookie, or of some bookie."""
    return f"{SCHEME}{BOOKIE}" if bookie_id is None else f"{SCHEME}{BOOKIE}/{bookie_id}"


def principal_uri(name: str) -> str:
    """The URI in the certificate of a principal."""
    return f"{SCHEME}{name}"


def names_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names of ours in a verified certificate, as :mod:`ssl` decodes it: ``("bookie/b1", "writer")``."""
    if not certificate:
        return ()
    return tuple(
        value.removeprefix(SCHEME)
        for kind, value in certificate.get("subjectAltName", ())
        if kind == "URI" and value.startswith(SCHEME)
    )


def is_of_a_bookie(name: str) -> bool:
    """Whether a name of a certificate is that of a bookie."""
    return name == BOOKIE or name.startswith(f"{BOOKIE}/")
