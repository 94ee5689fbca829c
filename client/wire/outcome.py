"""The outcome of a request that a connection to a bookie has taken."""

from collections.abc import Callable

from octavo.protocol.errors import OctavoError
from octavo.protocol.messages import Reply

Outcome = Reply | OctavoError
"""The reply, the refusal, or why there is neither."""

OnOutcome = Callable[[Outcome], None]
"""What gets the outcome of a request, once."""
