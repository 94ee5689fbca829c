"""The settings of a gateway that say who may use it (rule K14)."""

from pathlib import Path
from typing import Any

import pytest
from octavo.gateway.security_settings import SecuritySettings
from octavo.protocol.errors import InvalidArgumentError

FILES: dict[str, Any] = {"tls_certificate": Path("a.crt"), "tls_key": Path("a.key")}


@pytest.mark.parametrize(
    ("auth", "host", "required"),
    [
        ("auto", "127.0.0.1", False), ("auto", "localhost", False), ("auto", "::1", False), ("auto", "0.0.0.0", True),
        ("auto", "192.0.2.1", True), ("auto", "example.org", True), ("required", "127.0.0.1", True),
        ("none", "0.0.0.0", False),
    ],
)  # fmt: skip
def test_clients_must_be_principals_where_other_hosts_can_reach_the_gateway(
    auth: str, host: str, required: bool
) -> None:
    assert SecuritySettings(auth=auth).authentication_required(host) is required


@pytest.mark.parametrize(
    ("host", "has_password", "settings", "reason"),
    [
        ("0.0.0.0", True, {}, "clients prove who they are over TLS only"),
        ("0.0.0.0", False, {"tls": "required", **FILES}, "topics are private"),
        ("127.0.0.1", True, {"tls": "required"}, "needs its certificate and key"),
        ("127.0.0.1", True, {"auth": "maybe"}, "auth is one of auto, required, none"),
    ],
)
def test_settings_that_need_one_another_are_refused(
    host: str, has_password: bool, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        SecuritySettings(**settings).check(host, has_password=has_password)


def test_a_secure_gateway_and_one_that_is_told_to_be_open_may_start() -> None:
    SecuritySettings(tls="required", **FILES).check("0.0.0.0", has_password=True)
    SecuritySettings(auth="none").check("0.0.0.0", has_password=False)
    SecuritySettings().check("127.0.0.1", has_password=False)
