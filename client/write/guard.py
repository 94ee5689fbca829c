"""How the parts of a writer's replication end the writer: with an error of the cluster, or because of a defect."""

from collections.abc import Callable

from octavo.client.write.front.adds import internal_error
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import LedgerId


class Guard:
    """See the module. ``fail(error)`` is called when the writer cannot go on; possibly repeatedly."""

    __slots__ = ("fail", "ledger_id")

    def __init__(self, ledger_id: LedgerId, fail: Callable[[OctavoError], None]) -> None:
        self.ledger_id = ledger_id
        """The ledger that is written, as errors name it."""
        self.fail = fail

    def run(self, step: Callable[..., None], *arguments: object) -> None:
        """Perform a step that the event loop calls. If it breaks an invariant, nothing may be acknowledged any more."""
        try:
            step(*arguments)
        except Exception as error:
            self.broken(error)
            raise

    def broken(self, error: Exception) -> None:
        """A step has broken an invariant: nothing may be acknowledged any more."""
        self.fail(internal_error(self.ledger_id, error))
