"""The registration of a bookie, kept in the background."""

import random

from octavo.bookie.registration import Registrar
from octavo.metadata import BookieRegistration, BookieState, MetadataStore
from octavo.protocol.ids import BookieId


async def test_an_announcement_on_a_lost_registration_is_left_to_the_next_one(store: MetadataStore) -> None:
    """A change of state (disks, draining) just after the session ended fails nothing: registering again tells it."""
    registrar = Registrar(store, lambda: registration("b0"), random.Random(1))
    await registrar.start()
    try:
        await store.register_bookie(registration("b0", boot_id="boot-2"))
        await registrar.announce()
    finally:
        await registrar.stop()


def registration(bookie_id: str, boot_id: str = "boot-1") -> BookieRegistration:
    return BookieRegistration(
        bookie_id=BookieId(bookie_id), address="127.0.0.1:1", state=BookieState.WRITABLE, version="1", boot_id=boot_id
    )
