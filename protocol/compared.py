"""Classes with named fields, compared and shown by them.

A dataclass would get these methods written and compiled for itself alone. For two dozen classes that takes longer than
everything else that loads with them.
"""

from typing import Any, ClassVar


class Compared:
    """An object of one class is equal to another of that class with the same fields."""

    __slots__ = ()
    names: ClassVar[tuple[str, ...]]

    def to_fields(self) -> list[Any]:
        """The values of the fields, in order."""
        return [getattr(self, name) for name in self.names]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Compared) or type(other) is not type(self):
            return NotImplemented
        return self.to_fields() == other.to_fields()

    def __hash__(self) -> int:
        return hash((type(self), *self.to_fields()))

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.names)})"
