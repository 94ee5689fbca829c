"""Makes a :class:`FakeBookie` know subscriptions. It pushes nothing by itself: the test says what, and when."""

from octavo.protocol.frames import frame_of
from octavo.protocol.messages import Subscribe, Subscribed
from octavo.protocol.pushes import CAPABILITY_SUBSCRIPTIONS, Push, PushFlag, encode_pushes
from support.clusters.fake_bookie import FakeBookie


class Pusher:
    """The subscriptions at one bookie."""

    def __init__(self, bookie: FakeBookie) -> None:
        self.bookie = bookie
        bookie.capabilities = (*bookie.capabilities, CAPABILITY_SUBSCRIPTIONS)
        bookie.answer(Subscribe, lambda _request: Subscribed())

    @property
    def requests(self) -> list[Subscribe]:
        """All that were asked for, in order."""
        return [request for request in self.bookie.requests if isinstance(request, Subscribe)]

    @property
    def subscriptions(self) -> dict[int, Subscribe]:
        """Those that stand, by number, as they were set last."""
        standing: dict[int, Subscribe] = {}
        for request in self.requests:
            if request.credit_bytes is None:
                standing.pop(request.subscription, None)
            else:
                standing[request.subscription] = request
        return standing

    @property
    def one(self) -> Subscribe:
        """The only one."""
        (request,) = self.subscriptions.values()
        return request

    def push(
        self,
        entries: list[bytes] | None = None,
        *,
        lac: int | None = None,
        explicit: bytes | None = None,
        flags: PushFlag = PushFlag.NONE,
    ) -> None:
        """Push this for each subscription."""
        pushes = [Push(number, int(flags), lac, explicit, entries or []) for number in self.subscriptions]
        self.bookie.say(frame_of(encode_pushes(pushes)))
