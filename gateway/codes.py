"""The error codes of Kafka's protocol that a gateway answers with. Pure.

Numbers and names are those of Kafka's protocol guide. A client decides by the code whether it tries again: what it may
try again, and what it may not, is a part of the protocol. The text of a refusal goes to clients that show it.
"""

from enum import IntEnum


class Code(IntEnum):
    """A number that a client understands."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    MESSAGE_TOO_LARGE = 10
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87


class RefusedError(Exception):
    """A request of a client, or a part of it, is refused: nothing of it has happened."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text
        """For the client: names the thing and the reason."""
