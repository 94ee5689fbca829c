"""The figures of one request that metrics count, noted while it is answered. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from octavo.gateway.codes import Code

OK: Final = "ok"


@dataclass(slots=True)
class Outcome:
    """See the module."""

    code: Code = Code.NONE
    """The first error in the answer."""
    batches: int = 0
    """Record batches that were acknowledged to the producer."""
    records: int = 0
    """In these batches."""
    batch_bytes: int = 0
    """Of these batches."""
    fetched_bytes: int = 0
    """Of record batches in the answer."""

    @property
    def name(self) -> str:
        """The result in metrics."""
        return OK if self.code is Code.NONE else self.code.name

    def note(self, codes: Iterable[Code]) -> None:
        """The answer has these codes, in this order."""
        if self.code is Code.NONE:
            self.code = next((code for code in codes if code is not Code.NONE), Code.NONE)

    def note_acknowledged(self, records: int, size: int) -> None:
        """A batch was acknowledged to the producer."""
        self.batches += 1
        self.records += records
        self.batch_bytes += size


def codes_in(answer: Any) -> Iterable[Code]:
    """The codes of an answer that ``kio`` encodes, in their order."""
    if isinstance(answer, Mapping):
        for name, value in answer.items():
            if name == "error_code":
                yield Code(value)
            else:
                yield from codes_in(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from codes_in(value)
