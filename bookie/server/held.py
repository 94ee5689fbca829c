"""The requests of one connection that wait for an answer of the metadata store before they can be dispatched.

What they may take is bounded for each client (rule B13): a client whose requests name many ledgers that are new here
uses up its own budget, and neither the memory for which the bookie would stop reading all sockets, nor the metadata
store's attention, on which the bookie's registration depends.
"""

from collections.abc import Callable

from octavo.bookie.server.clients import Client
from octavo.bookie.server.questions import QUESTIONS_MAX, Question, Questions
from octavo.bookie.server.replies import Replies
from octavo.bookie.server.service import BookieService
from octavo.protocol.errors import BookieOverloadedError, OctavoError
from octavo.protocol.messages import Add, Request


class HeldRequests:
    """See the module. ``dispatch`` serves a request, or raises an :class:`OctavoError` that refuses it."""

    def __init__(
        self,
        service: BookieService,
        replies: Replies,
        questions: Questions,
        dispatch: Callable[[int, Request], None],
    ) -> None:
        self._service = service
        self._admission = service.storage.admission
        self._replies = replies
        self._questions = questions
        self._dispatch = dispatch

    def hold(self, client: Client, request_id: int, request: Request, question: Question) -> None:
        """Keep the request until ``question`` returns, and dispatch it then. What it raises refuses the request."""
        size_bytes = 2 * sum(map(len, request.entries)) if type(request) is Add else 0
        try:
            client.hold(size_bytes, self._admission.bytes_max)
        except BookieOverloadedError as error:
            self._replies.refuse(request_id, request.op, error)
            return
        self._admission.charge_waiting(size_bytes)
        self._service.hold_back_if_full()
        began_at = self._replies.began_at
        self._replies.spawn(self._dispatch_after(client, question, request_id, request, size_bytes, began_at))

    async def _dispatch_after(  # noqa: PLR0917 - what belongs to the one request
        self, client: Client, question: Question, request_id: int, request: Request, size_bytes: int, began_at: float
    ) -> None:
        try:
            for _ in range(QUESTIONS_MAX):
                async with client.asking:
                    await question()
                self._replies.began_at = began_at  # other requests have been dispatched meanwhile
                self._service.clients.acting = client
                try:
                    self._dispatch(request_id, request)
                except OctavoError as error:
                    refusal, further = error, self._questions.about(request, error)
                else:
                    return
                if further is None:
                    break
                question = further
            self._replies.refuse(request_id, request.op, refusal)
        except Exception as failure:
            self._replies.refuse(request_id, request.op, failure)
        finally:
            client.release(size_bytes)
            self._admission.release_waiting(size_bytes)
