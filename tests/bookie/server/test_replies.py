"""What a connection answers: an add that failed is never confirmed (rule B1)."""

import asyncio

import pytest
from octavo.bookie.server.replies import Replies
from octavo.bookie.server.request_counts import RequestCounts
from octavo.protocol.errors import BookieStorageError, InternalError, LedgerFencedError, OctavoError
from octavo.protocol.frames import LENGTH, unpack_body
from octavo.protocol.messages import Added, decode_reply
from support.written import Written

REQUEST_ID = 7


def answer_of_add(failure: BaseException | None) -> object:
    replies = Replies(lambda: None, RequestCounts(lambda: 0.0))
    transport = Written()
    replies.connected(transport)
    replies.begin()
    replies.added(REQUEST_ID, replies.began_at, failure)
    assert replies.outstanding == 0
    request_id, reply = decode_reply(unpack_body(transport.data[LENGTH.size :]))
    assert request_id == REQUEST_ID
    return reply


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (BookieStorageError("the journal failed", may_have_happened=True), BookieStorageError),
        (BookieStorageError("the journal has failed before", may_have_happened=False), BookieStorageError),
        (LedgerFencedError("fenced"), LedgerFencedError),
        (OSError(5, "Input/output error"), InternalError),
        (asyncio.CancelledError(), InternalError),
    ],
)
def test_an_add_that_failed_is_answered_with_its_error(
    failure: BaseException, answer: type[OctavoError], logged: list[object]
) -> None:
    reply = answer_of_add(failure)
    assert isinstance(reply, answer)
    assert reply.may_have_happened == getattr(failure, "may_have_happened", True)


def test_an_add_that_is_durable_is_confirmed() -> None:
    assert answer_of_add(None) == Added()
