"""The principals of a cluster: who may connect to its bookies, and in which roles. One document, changed by
compare-and-set. Pure.

A principal is identified by a certificate with the URI ``octavo:NAME``, by a key, or by either. Of a key only hashes
are stored. Bookies need no principal: their certificates name them.

A principal without a role can do nothing at bookies. Bookies of earlier releases know no such principal, so those are
in a list of their own, which they keep as it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from octavo.metadata.encoding import NO_FIELDS, FieldReader, decode_object, encode_bytes, encode_object
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.light_dataclass import dataclass
from octavo.security.names import is_principal_name
from octavo.security.roles import Role
from octavo.security.salted_keys import SaltedVerifier
from octavo.security.scram import Verifier
from octavo.security.topic_rights import GRANTS_MAX, Grant, TopicRight, checked_pattern

DOCUMENT = "security/principals"
"""The name of the document."""

FORMAT = 1

PRINCIPALS_MAX = 1000
"""They fit into one document with room to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """One principal. Raises :class:`InvalidArgumentError` for a name that cannot be one, and for one that may do
    nothing."""

    name: str
    roles: frozenset[Role]
    verifier: Verifier | None = None
    """Of its key; None: it has none, and is known by its certificate only."""
    salted: SaltedVerifier | None = None
    """Of the same key, for clients of Kafka's protocol; None: it has none, or one from before gateways had access
    control."""
    grants: frozenset[Grant] = frozenset()
    """Its rights at gateways."""
    disabled: bool = False
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, hash=False, repr=False)

    def __post_init__(self) -> None:
        if not is_principal_name(self.name):
            raise InvalidArgumentError(
                f"{self.name!r} is not a name of a principal: 1 to 64 letters, digits and ._@-, not `bookie`"
            )
        if not self.roles and not self.grants:
            raise InvalidArgumentError(
                f"principal {self.name} needs a role, one of {', '.join(Role)}, or a right at gateways"
            )
        if len(self.grants) > GRANTS_MAX:
            raise InvalidArgumentError(f"principal {self.name} has at most {GRANTS_MAX} rights at gateways")

    def grant_texts(self) -> tuple[str, ...]:
        """The rights at gateways, as people read them: ``read orders.*``."""
        order = list(TopicRight)
        return tuple(
            f"{one.right.value} {one.pattern}"
            for one in sorted(self.grants, key=lambda one: (order.index(one.right), one.pattern))
        )

    def role_names(self) -> tuple[str, ...]:
        """The roles in the order of :class:`Role`."""
        return tuple(role.value for role in Role if role in self.roles)


@dataclass(frozen=True, slots=True)
class Principals:
    """All principals, by name."""

    by_name: Mapping[str, Principal] = field(default_factory=dict)
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, hash=False, repr=False)
    decoy_seed: bytes | None = None
    """Of the salts that gateways tell for names that do not exist, the same at all of them; None: no key has a salt
    yet."""

    def with_principal(self, principal: Principal) -> "Principals":
        """The same with this principal added or replaced. Raises :class:`InvalidArgumentError` for too many."""
        by_name = {**self.by_name, principal.name: principal}
        if len(by_name) > PRINCIPALS_MAX:
            raise InvalidArgumentError(f"a cluster has at most {PRINCIPALS_MAX} principals")
        return replace(self, by_name=dict(sorted(by_name.items())))

    def without(self, name: str) -> "Principals":
        """The same without this principal."""
        return replace(self, by_name={other: one for other, one in self.by_name.items() if other != name})

    def disabled(self) -> "Principals":
        """The same, all disabled: what a restore brings back may have been removed since, or have a key that was
        replaced because it was stolen."""
        return replace(self, by_name={name: replace(one, disabled=True) for name, one in self.by_name.items()})

    def changed_since(self, before: "Principals") -> frozenset[str]:
        """The names whose principal is another one now, or gone."""
        return frozenset(name for name, one in before.by_name.items() if self.by_name.get(name) != one)


def roles_from_text(texts: Iterable[str]) -> frozenset[Role]:
    """Roles as a user names them. Raises :class:`InvalidArgumentError`."""
    roles = set()
    for text in texts:
        try:
            roles.add(Role(text))
        except ValueError:
            raise InvalidArgumentError(f"{text!r} is not a role; the roles are {', '.join(Role)}") from None
    return frozenset(roles)


def encode_principals(principals: Principals) -> bytes:
    """The stored form (:mod:`octavo.metadata.encoding`)."""
    without_roles = [_encode(one) for one in principals.by_name.values() if not one.roles]
    return encode_object(
        {
            **principals.unknown_fields,
            **_optional("decoy_seed", principals.decoy_seed),
            "principals": [_encode(one) for one in principals.by_name.values() if one.roles],
            **({"without_roles": without_roles} if without_roles else {}),
        },
        format_number=FORMAT,
    )


def decode_principals(value: bytes) -> Principals:
    """The principals in the document. Raises :class:`MetadataError`: a bookie then keeps what it knew."""
    reader = FieldReader(decode_object(value, what="the principals", format_max=FORMAT), "the principals")
    by_name: dict[str, Principal] = {}
    for fields in [*reader.added_later("without_roles", list, []), *reader.get("principals", list)]:
        if not isinstance(fields, dict):
            raise reader.damaged("a principal is not an object")
        one = _decode(FieldReader(fields, "the principals"))
        by_name[one.name] = one
    seed = reader.added_later("decoy_seed", str, None)
    return Principals(
        dict(sorted(by_name.items())),
        reader.unknown_fields() or NO_FIELDS,
        None if seed is None else reader.decode_bytes(seed, "decoy_seed"),
    )


def _optional(name: str, value: bytes | None) -> dict[str, str]:
    return {} if value is None else {name: encode_bytes(value)}


def _encode(principal: Principal) -> dict[str, Any]:
    verifier = principal.verifier
    return {
        **principal.unknown_fields,
        "name": principal.name,
        "roles": list(principal.role_names()),
        "disabled": principal.disabled,
        "stored_key": None if verifier is None else encode_bytes(verifier.stored_key),
        "server_key": None if verifier is None else encode_bytes(verifier.server_key),
        **({} if principal.salted is None else {"salted": _encode_salted(principal.salted)}),
        **({"grants": list(principal.grant_texts())} if principal.grants else {}),
    }


def _encode_salted(salted: SaltedVerifier) -> dict[str, Any]:
    return {
        "salt": encode_bytes(salted.salt),
        "rounds": salted.rounds,
        "stored_key": encode_bytes(salted.stored_key),
        "server_key": encode_bytes(salted.server_key),
    }


def _decode_salted(reader: FieldReader) -> SaltedVerifier:
    salt, stored_key, server_key = (
        reader.decode_bytes(reader.get(name, str), name) for name in ("salt", "stored_key", "server_key")
    )
    return SaltedVerifier(salt, reader.get("rounds", int), stored_key, server_key)


def _decode_grant(text: Any) -> Grant:
    """Raises :class:`ValueError` or :class:`InvalidArgumentError` for what is no grant."""
    right, _, pattern = str(text).partition(" ")
    return Grant(TopicRight(right), checked_pattern(pattern))


def _decode(reader: FieldReader) -> Principal:
    stored, server = (reader.optional(name, str) for name in ("stored_key", "server_key"))
    salted = reader.added_later("salted", dict, None)
    try:
        return Principal(
            name=reader.get("name", str),
            roles=roles_from_text(map(str, reader.get("roles", list))),
            verifier=None
            if stored is None or server is None
            else Verifier(reader.decode_bytes(stored, "stored_key"), reader.decode_bytes(server, "server_key")),
            salted=None if salted is None else _decode_salted(FieldReader(salted, "the principals")),
            grants=frozenset(map(_decode_grant, reader.added_later("grants", list, []))),
            disabled=reader.get("disabled", bool),
            unknown_fields=reader.unknown_fields() or NO_FIELDS,
        )
    except InvalidArgumentError as error:
        raise reader.damaged(error) from error
    except ValueError as error:
        raise reader.damaged(str(error)) from error
