"""``octavo tls``: certificates for a small cluster that has no authority of its own."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from octavo.cli.session import CommandError, Session, command
from octavo.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from octavo.security.authority import Pair

app = typer.Typer(name="tls", help="Certificates for a small cluster.", no_args_is_help=True)

CA = "ca"

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the authority.")]


@command(app)
async def init(
    session: Session,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory without an authority; it is made.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="A host name or address of a bookie. May be given repeatedly. The default is localhost.",
        ),
    ] = None,
) -> None:
    """Make an authority and the first certificates.

    There is one for each host of a bookie, and one for an administrator. Writes ca.crt and ca.key, HOST.crt and
    HOST.key for each host, and admin.crt and admin.key. Every bookie gets ca.crt and the two files of its host;
    clients get ca.crt and their own. Keep ca.key off the bookies.
    """
    from octavo.security.authority import make_authority  # noqa: PLC0415 - needs the extra `tls`

    hosts = host or ["localhost"]
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / f"{CA}.crt").exists() or (directory / f"{CA}.key").exists():
        raise CommandError(f"{directory} has an authority already; `octavo tls issue` makes further certificates")
    authority = make_authority("Octavo cluster")
    written = _write(directory, CA, authority)
    for name in dict.fromkeys(hosts):
        written += _write(directory, name, _for_host(authority, name))
    written += _write(directory, "admin", _for_principal(authority, "admin"))
    _tell(session, written)


@command(app)
async def issue(
    session: Session,
    directory: DirectoryArgument,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Make a certificate for a bookie on this host."),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="Make a certificate for the principal NAME."),
    ] = None,
    bookie: Annotated[
        str | None,
        typer.Option("--bookie-id", metavar="ID", help="The certificates for hosts are for this bookie only."),
    ] = None,
) -> None:
    """Make further certificates, or replace those that expire.

    A certificate that exists is replaced; bookies and clients take the new files over while they run.
    """
    if not host and not client:
        raise InvalidArgumentError("give --host NAME or --client NAME")
    authority = _read_authority(directory)
    written: list[str] = []
    for name in dict.fromkeys(host or ()):
        written += _write(directory, name, _for_host(authority, name, bookie))
    for name in dict.fromkeys(client or ()):
        written += _write(directory, name, _for_principal(authority, name))
    _tell(session, written)


def _for_host(authority: "Pair", host: str, bookie_id: str | None = None) -> "Pair":
    from octavo.security.authority import issue as issue_certificate  # noqa: PLC0415
    from octavo.security.names import bookie_uri  # noqa: PLC0415

    local = ("localhost", "127.0.0.1", "::1") if host == "localhost" else ()
    return issue_certificate(authority, host, hosts=tuple(dict.fromkeys((host, *local))), uris=(bookie_uri(bookie_id),))


def _for_principal(authority: "Pair", name: str) -> "Pair":
    from octavo.security.authority import issue as issue_certificate  # noqa: PLC0415
    from octavo.security.names import is_principal_name, principal_uri  # noqa: PLC0415

    if not is_principal_name(name):
        raise InvalidArgumentError(f"{name!r} is not a name of a principal: 1 to 64 letters, digits and ._@-")
    return issue_certificate(authority, name, uris=(principal_uri(name),))


def _read_authority(directory: Path) -> "Pair":
    from octavo.security.authority import Pair  # noqa: PLC0415

    try:
        return Pair((directory / f"{CA}.crt").read_bytes(), (directory / f"{CA}.key").read_bytes())
    except OSError as error:
        raise CommandError(
            f"{error.filename}: {error.strerror}; `octavo tls init {directory}` makes an authority"
        ) from error


def _write(directory: Path, name: str, pair: "Pair") -> list[str]:
    """Write the two files, each whole or not at all. The key first: a bookie that looks between them keeps the old."""
    stem = name.replace(":", "-").replace("/", "-")
    written = []
    for suffix, content, mode in ((".key", pair.key, 0o600), (".crt", pair.certificate, 0o644)):
        path = directory / f"{stem}{suffix}"
        new = directory / f".{stem}{suffix}.new"
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        new.replace(path)
        written.append(str(path))
    return written


def _tell(session: Session, written: list[str]) -> None:
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    if session.as_json:
        print_json({"written": sorted(written)})
        return
    for path in sorted(written):
        print_line(path)
