"""A principal for each role, and connections that are authenticated as one of them."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from octavo.bookie.bookie import Bookie
from octavo.metadata.cluster.principals import DOCUMENT, Principal, Principals, encode_principals
from octavo.protocol.messages import CAPABILITY_AUTHENTICATE, Authenticate, AuthenticateAnswer
from octavo.security.login import ClientLogin
from octavo.security.roles import Role
from octavo.security.scram import Key, verifier_of
from support.clusters.tls_bookies import Cluster
from support.raw_client import RawClient

KEYS = {role: Key(f"the-{role}", random.Random(role.value).randbytes(32)) for role in Role}

PRINCIPALS = Principals()
for _role, _key in KEYS.items():
    PRINCIPALS = PRINCIPALS.with_principal(
        Principal(name=_key.name, roles=frozenset({_role}), verifier=verifier_of(_key.secret))
    )

DOCUMENTS = {DOCUMENT: encode_principals(PRINCIPALS)}
"""What the metadata hold before bookies start."""

GUARDED = {"auth": "required", "repair": False, "verify_new_ledgers": "false"}
"""The settings of a bookie that requires authentication, without TLS."""


async def set_principals(cluster: Cluster, principals: Principals) -> None:
    """As `octavo access` does."""
    stored = await cluster.store.read_document(DOCUMENT)
    assert stored is not None
    await cluster.store.compare_and_set_document(DOCUMENT, encode_principals(principals), stored.version)


@asynccontextmanager
async def raw(bookie: Bookie, role: Role | None = None) -> AsyncIterator[RawClient]:
    """A connection, authenticated with the key of a role."""
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as client:
        hello = await client.greet()
        assert CAPABILITY_AUTHENTICATE in hello.capabilities
        if role is not None:
            login = ClientLogin(
                KEYS[role], cluster_id=hello.cluster_id, bookie_id=hello.bookie_id, nonce=random.randbytes(32)
            )
            request: Authenticate | None = login.first()
            while request is not None:
                answer = await client.ask(request)
                assert isinstance(answer, AuthenticateAnswer), answer
                request = login.answered(answer)
            assert login.roles == (role.value,)
        yield client
