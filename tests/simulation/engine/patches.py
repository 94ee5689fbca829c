"""Temporary replacement of attributes, for canaries and for limits of the code under test."""

from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patch:
    """Replaces the attribute ``name`` of ``owner``. ``original`` is the value before, for the replacement to call."""

    def __init__(self, owner: Any, name: str, replacement: Any = _MISSING) -> None:
        self.owner = owner
        self.name = name
        # From the owner's own dictionary, so that a class method or static method is restored unchanged.
        self.original = vars(owner)[name]
        self.replacement = replacement

    def apply(self) -> None:
        """Set the replacement."""
        setattr(self.owner, self.name, self.replacement)

    def undo(self) -> None:
        """Restore the original."""
        setattr(self.owner, self.name, self.original)


def patch(owner: Any, name: str) -> Callable[[Callable[..., Any]], Patch]:
    """Decorator that turns a function into a patch of ``owner.name``. The function's first argument is the original."""

    def decorate(function: Callable[..., Any]) -> Patch:
        made = Patch(owner, name)

        def replacement(*arguments: Any, **keywords: Any) -> Any:
            return function(made.original, *arguments, **keywords)

        made.replacement = replacement
        return made

    return decorate
