"""``octavo tls``: no certificate replaces the files of the authority, or those of another kind."""

from pathlib import Path

import pytest
from octavo.cli.replacing import replace_content
from octavo.security.authority import names_in
from support.commands.processes import octavo


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    assert octavo("tls", "init", made, "--host", "db1").status == 0
    return made


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--client", "ca"), "ca is the name of the authority's files"),
        (("--host", "ca"), "ca is the name of the authority's files"),
        (("--host", "admin"), "is the certificate of a client of this name"),
        (("--client", "db1"), "is the certificate of a host of this name"),
        (("--client", "new", "--host", "new"), "new is the name of a host and of a client"),
        (("--client", "bookie"), "is not a name of a principal"),
        ((), "give --host NAME, --client NAME or --gateway NAME"),
    ],
)
def test_a_certificate_that_would_replace_other_files_is_refused(
    directory: Path, arguments: tuple[str, ...], reason: str
) -> None:
    before = contents(directory)
    refused = octavo("tls", "issue", directory, *arguments)
    assert refused.status != 0
    assert reason in refused.stderr
    assert contents(directory) == before


def test_a_file_that_is_no_certificate_is_left_alone(directory: Path) -> None:
    (directory / "odd.crt").write_text("notes")
    refused = octavo("tls", "issue", directory, "--client", "odd")
    assert refused.status != 0
    assert "it is not a certificate" in refused.stderr
    assert (directory / "odd.crt").read_text() == "notes"


def test_certificates_of_the_same_kind_are_replaced(directory: Path) -> None:
    before = contents(directory)
    assert octavo("tls", "issue", directory, "--client", "admin", "--host", "db1").status == 0
    after = contents(directory)
    assert {name for name in before if before[name] != after[name]} == {
        "admin.crt", "admin.key", "db1.crt", "db1.key",
    }  # fmt: skip
    assert names_in(after["admin.crt"]) == ("admin",)
    assert names_in(after["db1.crt"]) == ("bookie",)


@pytest.mark.parametrize("host", ["ca", "admin"])
def test_the_first_hosts_cannot_have_names_of_other_files(tmp_path: Path, host: str) -> None:
    refused = octavo("tls", "init", tmp_path / "tls", "--host", host)
    assert refused.status != 0
    assert not (tmp_path / "tls").exists()


def test_what_another_command_has_half_written_is_neither_used_nor_removed(tmp_path: Path) -> None:
    """Rule B9: two commands at once in one directory."""
    half_written = tmp_path / ".b.key.new"
    half_written.write_bytes(b"half of a k")
    replace_content(tmp_path / "b.key", b"a key", mode=0o600)
    replace_content(tmp_path / "b.key", b"another", mode=0o640)
    assert contents(tmp_path) == {".b.key.new": b"half of a k", "b.key": b"another"}
    assert (tmp_path / "b.key").stat().st_mode & 0o777 == 0o640
