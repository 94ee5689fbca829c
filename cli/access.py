"""``octavo access``: the principals of a cluster, their roles and their keys."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.session import CommandError, Session, command
from octavo.protocol.errors import InvalidArgumentError, MetadataConflictError

if TYPE_CHECKING:
    from octavo.metadata import MetadataStore
    from octavo.metadata.cluster.principals import Principal, Principals
    from octavo.security.topic_rights import Grant

app = typer.Typer(name="access", help="Manage access to the cluster: principals, roles and keys.", no_args_is_help=True)

_ATTEMPTS_MAX = 20
"""Of changing a document that other commands change at the same time."""

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The principal.")]


@command(app, logs=False, brief=True)
async def add(
    session: Session,
    name: NameArgument,
    role: Annotated[
        list[str],
        typer.Option(
            "--role", metavar="ROLE", help="Role: observe, read, append, repair or admin. May be given repeatedly."
        ),
    ],
) -> None:
    """Add a principal, or change its roles.

    A principal that exists gets these roles, and is enabled.

    A principal is known by a certificate with the URI octavo:NAME, or by its key (octavo access key). observe sees the
    state of bookies; read also reads entries; append also writes and recovers ledgers; repair is for bookies; admin may
    do everything.
    """
    from dataclasses import replace  # noqa: PLC0415 - `octavo --help` needs none of this

    from octavo.metadata.cluster.principals import Principal, roles_from_text  # noqa: PLC0415

    roles = roles_from_text(role)

    def change(principals: "Principals") -> "Principals":
        before = principals.by_name.get(name)
        if before is None:
            return principals.with_principal(Principal(name=name, roles=roles))
        return principals.with_principal(replace(before, roles=roles, disabled=False))

    await _change(session, change)
    _say(session, f"{name} has the roles {', '.join(sorted(roles))}", name=name, roles=sorted(roles))


@command(app, logs=False, brief=True)
async def key(
    session: Session,
    name: NameArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write the key to this new file, which only you can read."),
    ] = None,
) -> None:
    """Make a new key for a principal, and print it once.

    The key is NAME:SECRET. Clients of Kafka's protocol use NAME as user name and SECRET as password.

    The cluster keeps hashes of it only. The key that the principal had before is no longer valid, and connections
    that it made end.
    """
    from dataclasses import replace  # noqa: PLC0415

    from octavo.cli.output import print_line  # noqa: PLC0415
    from octavo.security.salted_keys import SALT_BYTES, password_of, salted_verifier  # noqa: PLC0415
    from octavo.security.scram import SECRET_BYTES, Key, verifier_of  # noqa: PLC0415

    made = Key(name, secrets.token_bytes(SECRET_BYTES))
    salted = salted_verifier(password_of(made), secrets.token_bytes(SALT_BYTES))
    if output is not None:
        _write_new(output, made.to_text())

    def change(principals: "Principals") -> "Principals":
        before = _known(principals, name)
        seeded = replace(principals, decoy_seed=principals.decoy_seed or secrets.token_bytes(SECRET_BYTES))
        return seeded.with_principal(replace(before, verifier=verifier_of(made.secret), salted=salted))

    try:
        await _change(session, change)
    except BaseException:
        if output is not None:
            output.unlink(missing_ok=True)
        raise
    if output is not None:
        _say(session, f"the key of {name} is in {output}", name=name, file=str(output))
    elif session.as_json:
        _say(session, "", name=name, key=made.to_text())
    else:
        print_line(made.to_text())


def _patterns(right: str, text: str) -> Any:
    return typer.Option(f"--{right}", metavar="PATTERN", help=f"{text} May be given repeatedly.")


DescribeOption = Annotated[
    list[str] | None, _patterns("describe", "Topics that it may see. Every other right to topics includes this.")
]
ReadOption = Annotated[list[str] | None, _patterns("read", "Topics that it may consume.")]
WriteOption = Annotated[list[str] | None, _patterns("write", "Topics to which it may produce.")]
CreateOption = Annotated[list[str] | None, _patterns("create", "Topics that it may create, and give more partitions.")]
DeleteOption = Annotated[
    list[str] | None,
    _patterns("delete", "Topics that it may delete, with their records, and whose settings it may change."),
]
GroupOption = Annotated[list[str] | None, _patterns("group", "Consumer groups that it may use, see and delete.")]


@command(app, logs=False, brief=True)
async def allow(
    session: Session,
    name: NameArgument,
    describe: DescribeOption = None,
    read: ReadOption = None,
    write: WriteOption = None,
    create: CreateOption = None,
    delete: DeleteOption = None,
    group: GroupOption = None,
) -> None:
    """Give a principal rights to topics and consumer groups.

    Gateways ask for these rights, and bookies for roles. A principal that does not exist is made, without a role.
    Rights that it has stay. A pattern is a name, or the beginning of names with * behind it: 'orders.*'; '*' stands
    for all names.
    """
    from dataclasses import replace  # noqa: PLC0415

    from octavo.metadata.cluster.principals import Principal  # noqa: PLC0415

    given = _grants(describe=describe, read=read, write=write, create=create, delete=delete, group=group)

    def change(principals: "Principals") -> "Principals":
        before = principals.by_name.get(name)
        if before is None:
            return principals.with_principal(Principal(name=name, roles=frozenset(), grants=given))
        return principals.with_principal(replace(before, grants=before.grants | given))

    _say_rights(session, name, await _change(session, change))


@command(app, logs=False, brief=True)
async def disallow(
    session: Session,
    name: NameArgument,
    describe: DescribeOption = None,
    read: ReadOption = None,
    write: WriteOption = None,
    create: CreateOption = None,
    delete: DeleteOption = None,
    group: GroupOption = None,
) -> None:
    """Take rights to topics and consumer groups from a principal.

    Name the patterns as `octavo access list` shows them. Its connections to gateways end.
    """
    from dataclasses import replace  # noqa: PLC0415

    taken = _grants(describe=describe, read=read, write=write, create=create, delete=delete, group=group)

    def change(principals: "Principals") -> "Principals":
        before = _known(principals, name)
        missing = replace(before, grants=taken - before.grants).grant_texts() if taken - before.grants else ()
        if missing:
            raise CommandError(f"{name} does not have the right {missing[0]!r}; `octavo access list` shows its rights")
        if not before.roles and before.grants == taken:
            raise CommandError(f"these are all rights of {name}: `octavo access remove {name}` removes it")
        return principals.with_principal(replace(before, grants=before.grants - taken))

    _say_rights(session, name, await _change(session, change))


def _grants(**patterns: list[str] | None) -> "frozenset[Grant]":
    """The grants that options name. Raises :class:`InvalidArgumentError`."""
    from octavo.security.topic_rights import Grant, TopicRight, checked_pattern  # noqa: PLC0415

    made = frozenset(
        Grant(TopicRight(right), checked_pattern(pattern))
        for right, given in patterns.items()
        for pattern in given or ()
    )
    if not made:
        raise InvalidArgumentError(f"name a right: {', '.join(f'--{right} PATTERN' for right in patterns)}")
    return made


def _say_rights(session: Session, name: str, principals: "Principals") -> None:
    rights = list(principals.by_name[name].grant_texts())
    _say(session, f"{name} has the rights {', '.join(rights) or '(none)'}", name=name, rights=rights)


@command(app, name="list", logs=False, brief=True)
async def list_principals(session: Session) -> None:
    """List the principals with their roles. Keys are not shown: the cluster does not have them."""
    from octavo.cli.output import print_json, print_table  # noqa: PLC0415

    async with await session.open_metadata() as store:
        principals = (await _read(store))[0]
    rows = list(principals.by_name.values())
    if session.as_json:
        print_json(
            [
                {
                    "name": one.name, "roles": list(one.role_names()), "key": one.verifier is not None,
                    "disabled": one.disabled,
                    **({"rights": list(one.grant_texts())} if one.grants else {}),
                }
                for one in rows
            ]
        )  # fmt: skip
        return
    print_table(
        ["principal", "roles", "key", "state", "rights at gateways"],
        [
            [
                one.name,
                ", ".join(one.role_names()),
                "yes" if one.verifier is not None else "no",
                "disabled" if one.disabled else "enabled",
                ", ".join(one.grant_texts()),
            ]
            for one in rows
        ],
    )


@command(app, logs=False, brief=True)
async def disable(session: Session, name: NameArgument) -> None:
    """Disable a principal, and end its connections.

    It cannot connect until `octavo access enable` enables it.
    """
    from dataclasses import replace  # noqa: PLC0415

    await _change(session, lambda all_: all_.with_principal(replace(_known(all_, name), disabled=True)))
    _say(session, f"{name} is disabled", name=name, disabled=True)


@command(app, logs=False, brief=True)
async def enable(session: Session, name: NameArgument) -> None:
    """Enable a disabled principal.

    It has the roles and the key that it had.
    """
    from dataclasses import replace  # noqa: PLC0415

    await _change(session, lambda all_: all_.with_principal(replace(_known(all_, name), disabled=False)))
    _say(session, f"{name} is enabled", name=name, disabled=False)


@command(app, logs=False, brief=True)
async def remove(session: Session, name: NameArgument) -> None:
    """Remove a principal with its key: its connections end."""

    def change(principals: "Principals") -> "Principals":
        _known(principals, name)
        return principals.without(name)

    await _change(session, change)
    _say(session, f"{name} is removed", name=name, removed=True)


def _known(principals: "Principals", name: str) -> "Principal":
    one = principals.by_name.get(name)
    if one is None:
        raise CommandError(f"there is no principal {name}; `octavo access add {name} --role ROLE` makes one")
    return one


async def _read(store: "MetadataStore") -> "tuple[Principals, int | None]":
    from octavo.metadata.cluster.principals import DOCUMENT, Principals, decode_principals  # noqa: PLC0415

    stored = await store.read_document(DOCUMENT)
    return (Principals(), None) if stored is None else (decode_principals(stored.value), stored.version)


async def _change(session: Session, change: "Callable[[Principals], Principals]") -> "Principals":
    """Change the document by compare-and-set; when another command has changed it meanwhile, do it again on that."""
    from octavo.metadata.cluster.principals import DOCUMENT, encode_principals  # noqa: PLC0415
    from octavo.metadata.store.values import Version  # noqa: PLC0415

    async with await session.open_metadata() as store:
        for _ in range(_ATTEMPTS_MAX):
            before, version = await _read(store)
            after = change(before)
            value = encode_principals(after)
            try:
                if version is None:
                    await store.create_document(DOCUMENT, value)
                else:
                    await store.compare_and_set_document(DOCUMENT, value, Version(version))
            except MetadataConflictError:
                continue
            return after
    raise CommandError("other commands change the principals all the time; try again")


def _write_new(path: Path, text: str) -> None:
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"{text}\n")
    except FileExistsError as error:
        raise InvalidArgumentError(f"{path} exists already; name a new file") from error


def _say(session: Session, text: str, **fields: object) -> None:
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    if session.as_json:
        print_json(fields)
    else:
        print_line(text)
