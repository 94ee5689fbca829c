"""``octavo tls``: certificates for a small cluster that has no authority of its own."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from octavo.cli.replacing import replace_content
from octavo.cli.session import CommandError, Session, command
from octavo.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from octavo.security.authority import Pair

app = typer.Typer(name="tls", help="Make certificates for a small cluster.", no_args_is_help=True)

CA = "ca"
ADMIN = "admin"
GATEWAY = "gateway"

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the authority.")]


@command(app, logs=False, brief=True)
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
    clients get ca.crt and their own. Never copy ca.key to a bookie.
    """
    from octavo.security.authority import make_authority  # noqa: PLC0415 - needs the extra `tls`

    hosts = host or ["localhost"]
    if ADMIN in map(_stem, hosts):
        raise InvalidArgumentError(f"a host cannot be named {ADMIN} here: {ADMIN}.crt is for the administrator")
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / f"{CA}.crt").exists() or (directory / f"{CA}.key").exists():
        raise CommandError(f"{directory} has an authority already; `octavo tls issue` makes further certificates")
    authority = make_authority("Octavo cluster")
    written = _write(directory, CA, authority)
    for name in dict.fromkeys(hosts):
        written += _write(directory, _stem(name), _for_host(authority, name))
    written += _write(directory, ADMIN, _for_principal(authority, ADMIN))
    _tell(session, written)


@command(app, logs=False, brief=True)
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
    gateway: Annotated[
        list[str] | None,
        typer.Option(
            "--gateway",
            metavar="NAME",
            help="Make a certificate for a gateway on this host, gateway-NAME: at bookies it is the principal gateway.",
        ),
    ] = None,
    bookie: Annotated[
        str | None,
        typer.Option("--bookie-id", metavar="ID", help="The certificates for hosts are for this bookie only."),
    ] = None,
) -> None:
    """Make further certificates, or replace those that expire.

    A certificate that exists is replaced; bookies and clients take the new files over while they run.
    """
    if not host and not client and not gateway:
        raise InvalidArgumentError("give --host NAME, --client NAME or --gateway NAME")
    authority = _read_authority(directory)
    for name in host or ():
        _check_kind(directory, name, of_a_bookie=True)
    for name in client or ():
        _check_kind(directory, name, of_a_bookie=False)
    if both := {*map(_stem, host or ())} & {*map(_stem, client or ())}:
        raise InvalidArgumentError(f"{min(both)} is the name of a host and of a client: their files would be the same")
    written: list[str] = []
    for name in dict.fromkeys(host or ()):
        written += _write(directory, _stem(name), _for_host(authority, name, bookie))
    for name in dict.fromkeys(client or ()):
        written += _write(directory, _stem(name), _for_principal(authority, name))
    for name in dict.fromkeys(gateway or ()):
        written += _write(directory, f"{GATEWAY}-{_stem(name)}", _for_gateway(authority, name))
    _tell(session, written)


def _for_host(authority: "Pair", host: str, bookie_id: str | None = None) -> "Pair":
    from octavo.security.authority import issue as issue_certificate  # noqa: PLC0415
    from octavo.security.names import bookie_uri  # noqa: PLC0415

    return issue_certificate(authority, host, hosts=_hosts_of(host), uris=(bookie_uri(bookie_id),))


def _for_gateway(authority: "Pair", host: str) -> "Pair":
    from octavo.security.authority import issue as issue_certificate  # noqa: PLC0415
    from octavo.security.names import principal_uri  # noqa: PLC0415

    return issue_certificate(authority, host, hosts=_hosts_of(host), uris=(principal_uri(GATEWAY),))


def _hosts_of(host: str) -> tuple[str, ...]:
    local = ("localhost", "127.0.0.1", "::1") if host == "localhost" else ()
    return tuple(dict.fromkeys((host, *local)))


def _for_principal(authority: "Pair", name: str) -> "Pair":
    from octavo.security.authority import issue as issue_certificate  # noqa: PLC0415
    from octavo.security.names import is_principal_name, principal_uri  # noqa: PLC0415

    if not is_principal_name(name):
        raise InvalidArgumentError(f"{name!r} is not a name of a principal: 1 to 64 letters, digits and ._@-")
    return issue_certificate(authority, name, uris=(principal_uri(name),))


def _read_authority(directory: Path) -> "Pair":
    from octavo.security.authority import Pair  # noqa: PLC0415
    from octavo.security.secret_files import read_secret  # noqa: PLC0415

    try:
        certificate, key = (directory / f"{CA}.crt").read_bytes(), directory / f"{CA}.key"
        key.stat()
        return Pair(certificate, read_secret(key, "key of the authority"))
    except OSError as error:
        raise CommandError(
            f"{error.filename}: {error.strerror}; `octavo tls init {directory}` makes an authority"
        ) from error


def _write(directory: Path, stem: str, pair: "Pair") -> list[str]:
    """Write the two files of this stem, each whole or not at all.

    The key comes first: a bookie that looks between the two goes on with what it has.
    """
    written = []
    for suffix, content, mode in ((".key", pair.key, 0o600), (".crt", pair.certificate, 0o644)):
        path = directory / f"{stem}{suffix}"
        replace_content(path, content, mode=mode)
        written.append(str(path))
    return written


def _check_kind(directory: Path, name: str, *, of_a_bookie: bool) -> None:
    """Raises :exc:`InvalidArgumentError` if the files that a certificate would replace are not a former one of the
    same kind."""
    from octavo.security.authority import names_in  # noqa: PLC0415
    from octavo.security.names import is_of_a_bookie  # noqa: PLC0415

    path = directory / f"{_stem(name)}.crt"
    if not path.exists():
        return
    try:
        names = names_in(path.read_bytes())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error.message}; remove it to make a new one") from error
    if any(is_of_a_bookie(one) != of_a_bookie for one in names):
        kind = "a host" if not of_a_bookie else "a client"
        raise InvalidArgumentError(f"{path} is the certificate of {kind} of this name: take another name")


def _stem(name: str) -> str:
    """The name of the two files of a host or client, without suffix. Raises :exc:`InvalidArgumentError` for one whose
    files would replace the authority's."""
    stem = name.replace(":", "-").replace("/", "-")
    if stem == CA:
        raise InvalidArgumentError(f"{name} is the name of the authority's files: {CA}.crt and {CA}.key")
    return stem


def _tell(session: Session, written: list[str]) -> None:
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    if session.as_json:
        print_json({"written": sorted(written)})
        return
    for path in sorted(written):
        print_line(path)
