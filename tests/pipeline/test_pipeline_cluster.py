"""From options to a client: passwords that every machine finds for itself, and paths that mean the same everywhere."""

from pathlib import Path

import pytest
from octavo.pipeline.base.cluster import read_password
from octavo.pipeline.base.options import ClusterOptions, parse_sink_options, parse_source_options
from octavo.pipeline.base.paths import settled
from octavo.protocol.errors import InvalidArgumentError
from octavo.security.tls_options import Tls
from support.clusters.secrets import write_secret


@pytest.mark.parametrize(
    ("written", "password"),
    [(b"secret", b"secret"), (b"secret\n", b"secret"), (b"secret\r\n", b"secret"), (b"a\n\n", b"a\n"), (b"", b"")],
)
def test_a_password_in_a_file_ends_before_one_newline(tmp_path: Path, written: bytes, password: bytes) -> None:
    file = tmp_path / "password"
    write_secret(file, written)
    options = ClusterOptions("memory://", password_file=str(file))
    assert read_password(options) == password
    assert "secret" not in repr(options)


def test_a_password_is_taken_from_the_variable_where_no_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ClusterOptions("memory://", password_variable="OCTAVO_OF_A_TEST")
    assert read_password(options) == b""
    monkeypatch.setenv("OCTAVO_OF_A_TEST", "secret ü")
    assert read_password(options) == "secret ü".encode()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"passwordFile .*/missing: No such file or directory"):
        read_password(ClusterOptions("memory://", password_file=str(tmp_path / "missing")))


def test_paths_mean_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = settled(ClusterOptions("sqlite:///data/metadata.db", password_file="password"))
    assert (here.metadata_uri, here.password_file) == (
        f"sqlite:///{tmp_path}/data/metadata.db", str(tmp_path / "password"),
    )  # fmt: skip
    assert settled(here) == here
    for uri in ("zk://one:2181,two:2181/octavo", "sqlite:////var/metadata.db"):
        assert settled(ClusterOptions(uri)).metadata_uri == uri


def test_files_of_tls_and_keys_are_options_in_either_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"metadata": "zk://one", "dataset": "d", "tls_ca": "ca", "tlsCertificate": "c", "tls_key": "k"}
    for parsed in (
        parse_source_options({**given, "key_file": "writer.key"}),
        parse_sink_options({**given, "keyFile": "writer.key"}),
    ):
        here = settled(parsed.cluster)
        assert here.tls == Tls(ca=str(tmp_path / "ca"), certificate=str(tmp_path / "c"), key=str(tmp_path / "k"))
        assert here.key_file == str(tmp_path / "writer.key")
    assert parse_source_options({"metadata": "zk://one", "dataset": "d"}).cluster.tls is None
    with pytest.raises(InvalidArgumentError, match="certificate and key need one another"):
        parse_source_options({"metadata": "zk://one", "dataset": "d", "tlsKey": "k"})
    with pytest.raises(InvalidArgumentError, match="verify must be 'host' or 'bookie-id'"):
        parse_source_options({"metadata": "zk://one", "dataset": "d", "tlsVerify": "nothing"})
