"""Replacing attributes for a while: what canaries and knobs are made of."""

from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patch:
    """Gives ``owner`` another ``name``; ``original`` is what it had, for the replacement to call."""

    def __init__(self, owner: Any, name: str, replacement: Any = _MISSING) -> None:
        self.owner = owner
        self.name = name
        # From the owner's own dictionary: a class method or static method must come back as it was.
        self.original = vars(owner)[name]
        self.replacement = replacement

    def apply(self) -> None:
        """Put the replacement in."""
        setattr(self.owner, self.name, self.replacement)

    def undo(self) -> None:
        """Put the original back."""
        setattr(self.owner, self.name, self.original)


def patch(owner: Any, name: str) -> Callable[[Callable[..., Any]], Patch]:
    """A decorator: the function, whose first argument is the original, becomes a patch of ``owner.name``."""

    def decorate(function: Callable[..., Any]) -> Patch:
        made = Patch(owner, name)

        def replacement(*arguments: Any, **keywords: Any) -> Any:
            return function(made.original, *arguments, **keywords)

        made.replacement = replacement
        return made

    return decorate
