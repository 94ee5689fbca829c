"""Files of secrets that every user of the host can read are refused, with one error and its remedy (rule S4)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from octavo.cli.bookie.companion import _read_passwords
from octavo.cli.console.commands import _read_token
from octavo.cli.session import CommandError, read_password
from octavo.cli.tls import _read_authority
from octavo.client.wire.security import read_key
from octavo.metadata.zookeeper.cluster import _credentials
from octavo.metadata.zookeeper.layout import parse_uri
from octavo.pipeline.base.cluster import read_password as read_password_for_spark
from octavo.pipeline.base.options import ClusterOptions
from octavo.protocol.errors import OctavoError
from octavo.security.contexts import server_context
from octavo.security.roles import Role
from octavo.security.secret_files import read_secret
from support.clusters.certificates import Certificates
from support.clusters.principals import KEYS
from support.clusters.secrets import write_secret

TOKEN = b"0123456789abcdef0123"


def _of_authority(path: Path) -> object:
    path.rename(path.parent / "ca.key")
    (path.parent / "ca.crt").write_bytes(b"certificate")
    try:
        return _read_authority(path.parent)
    finally:
        (path.parent / "ca.key").rename(path)


KINDS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "password file of a command": (b"hunter2", read_password),
    "password file of Spark": (
        b"hunter2",
        lambda path: read_password_for_spark(ClusterOptions("memory://x", password_file=str(path))),
    ),
    "password file of repair": (b"hunter2", lambda path: _read_passwords([path])),
    "key of a principal": (KEYS[Role.READ].to_text().encode(), lambda path: read_key(str(path))),
    "token of the console": (TOKEN, _read_token),
    "credentials of ZooKeeper": (
        b"digest:octavo:hunter2",
        lambda path: _credentials(parse_uri(f"zk://h:1/octavo?auth_file={path}")),
    ),
    "key of the authority": (b"hunter2", _of_authority),
}
"""Kind of file -> a content, and what reads it."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o606, 0o602])
def test_a_secret_that_all_may_read_or_change_is_refused_with_the_remedy(kind: str, mode: int, tmp_path: Path) -> None:
    content, read = KINDS[kind]
    path = write_secret(tmp_path / "file", content)
    path.chmod(mode)
    with pytest.raises(
        (OctavoError, CommandError), match="every user of this host can read it; run `chmod 600 "
    ) as caught:
        read(path)
    assert content.decode() not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440, 0o660])
def test_owner_and_group_may_read_a_secret(kind: str, mode: int, tmp_path: Path) -> None:
    """As credentials of systemd, and files of root that the group of the bookie may read."""
    content, read = KINDS[kind]
    path = write_secret(tmp_path / "file", content)
    path.chmod(mode)
    assert read(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_there_is_named(kind: str, tmp_path: Path) -> None:
    _, read = KINDS[kind]
    if kind == "key of the authority":
        with pytest.raises((OctavoError, CommandError), match="No such file"):
            _read_authority(tmp_path)
        return
    with pytest.raises((OctavoError, CommandError), match=r"nowhere: No such file"):
        read(tmp_path / "nowhere")


def test_the_key_of_a_certificate_is_held_to_the_same(tmp_path: Path) -> None:
    files = Certificates(tmp_path).server()
    assert server_context(files)
    Path(files.key).chmod(0o644)
    with pytest.raises((OctavoError, CommandError), match="every user of this host can read it; run `chmod 600 "):
        server_context(files)


def test_a_pipe_is_taken_as_it_is() -> None:
    """``--password-file <(command)``."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"secret")
        os.close(writing)
        os.fchmod(reading, 0o644)
        assert read_secret(f"/dev/fd/{reading}", "password file") == b"secret"
    finally:
        os.close(reading)


def test_one_newline_belongs_to_the_file_and_not_to_the_password(tmp_path: Path) -> None:
    for content, password in ((b"a\n", b"a"), (b"a\r\n", b"a"), (b"a\n\n", b"a\n"), (b"a\r", b"a\r")):
        path = write_secret(tmp_path / "file", content)
        assert read_password(path) == password
        assert _read_passwords([path]) == [password]
        assert read_password_for_spark(ClusterOptions("memory://x", password_file=str(path))) == password
