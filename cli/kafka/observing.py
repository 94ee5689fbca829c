"""Health and metrics of a gateway over HTTP, for probes and for Prometheus.

``/healthz``, ``/readyz`` and ``/metrics`` are answered without asking who wants to know, so on a loopback address only.
A request must name the gateway by an address or as ``localhost``: a web page cannot read the answers then.
"""

import ipaddress
from collections.abc import Callable, Iterator

from octavo._version import __version__
from octavo.bookie.admin.collect import usage_samples
from octavo.bookie.admin.http_messages import HttpAnswer, HttpError, HttpRequest, json_answer
from octavo.bookie.admin.process import ProcessStatistics
from octavo.cli.own_host import Address, is_own_host
from octavo.gateway.collect import samples
from octavo.gateway.gateway import Gateway
from octavo.metrics import table
from octavo.metrics.exposition import CONTENT_TYPE, Sample, expose
from octavo.protocol.errors import InvalidArgumentError


def observing_address(text: str) -> Address:
    """The loopback address in ``HOST:PORT``.

    Raises:
        InvalidArgumentError: It is none.
    """
    host, _, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    if not (host and port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise InvalidArgumentError(f"--admin-listen {text}: write HOST:PORT, for example 127.0.0.1:9180")
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise InvalidArgumentError(
            f"--admin-listen {text}: metrics and health are answered to any client, so on a loopback address only"
        )
    return Address(host, int(port))


class Observed:
    """The answers. ``gateway`` is None until it serves."""

    def __init__(self, address: Address, process: ProcessStatistics) -> None:
        self._address = address
        self._process = process
        self.gateway: Gateway | None = None
        """None while it starts."""
        self._answers: dict[str, Callable[[], HttpAnswer]] = {
            "/healthz": lambda: json_answer({"healthy": True, "reasons": []}),
            "/readyz": self._ready,
            "/metrics": self._metrics,
        }

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request. Raises :class:`HttpError`."""
        if not is_own_host(request.headers.get("host"), self._address):
            raise HttpError(403, "Forbidden", "ask for the gateway by its address, or as localhost")
        answer = self._answers.get(request.target.partition("?")[0])
        if answer is None:
            raise HttpError(404, "NotFound", f"there are {', '.join(self._answers)}")
        if request.method not in {"GET", "HEAD"}:
            raise HttpError(405, "MethodNotAllowed", "only GET and HEAD are answered", headers={"Allow": "GET, HEAD"})
        return answer()

    def _ready(self) -> HttpAnswer:
        if self.gateway is None:
            reasons = ["the gateway is starting"]
        else:
            reasons = [] if self.gateway.serves else ["the gateway is stopping, or its lease has ended"]
        return json_answer({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    def _metrics(self) -> HttpAnswer:
        return HttpAnswer(200, expose(self._samples()), CONTENT_TYPE)

    def _samples(self) -> Iterator[Sample]:
        if self.gateway is not None:
            yield from samples(self.gateway, software=__version__)
        yield Sample(table.GATEWAY_LOOP_LAG_SECONDS, self._process.loop_lag_seconds)
        yield Sample(table.GATEWAY_GC_PAUSE_SECONDS, self._process.gc_pause_seconds)
        yield from usage_samples(self._process)
