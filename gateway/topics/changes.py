"""The names of the topics that gateways changed last: by them each gateway learns what another one has changed. Pure.

Changes are numbered 1, 2, 3, ... The document has the number of the latest, and the names of the last
:data:`NAMES_MAX`. A gateway that knows the changes up to a number reads the topics that changed since; one that is too
far behind reads all.
"""

from typing import Final, NamedTuple

from octavo.metadata.encoding import FieldReader, decode_object, encode_object

DOCUMENT: Final = "kafka/topic-changes"
_FORMAT: Final = 1

NAMES_MAX: Final = 200
"""With the longest names the document stays far below the limit of the metadata store."""


class TopicChanges(NamedTuple):
    """See the module."""

    number: int = 0
    """Of the latest change; 0: there was none."""
    names: tuple[str, ...] = ()
    """Of the topics of the latest changes, the last one last."""

    def then(self, name: str) -> "TopicChanges":
        """A topic has changed, too."""
        return TopicChanges(self.number + 1, (*self.names, name)[-NAMES_MAX:])

    def since(self, number: int) -> set[str] | None:
        """The topics that changed after the change with this number; None: that is not known any more."""
        count = self.number - number
        if not 0 <= count <= len(self.names):
            return None
        return set(self.names[len(self.names) - count :])

    def encode(self) -> bytes:
        """The stored form."""
        return encode_object({"number": self.number, "names": list(self.names)}, format_number=_FORMAT)


def decode_changes(value: bytes) -> TopicChanges:
    """The changes from their stored form.

    Raises:
        MetadataError: The value is damaged.
    """
    what = f"document {DOCUMENT}"
    reader = FieldReader(decode_object(value, what=what, format_max=_FORMAT), what)
    number, names = reader.get("number", int), reader.get("names", list)
    if not 0 <= len(names) <= number or not all(isinstance(name, str) for name in names):
        raise reader.damaged("its names do not go with its number")
    return TopicChanges(number, tuple(names))
