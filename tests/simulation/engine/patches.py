"""Temporary replacement of attributes, for canaries and for limits of the code under test."""

import inspect
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
    """Decorator that turns a function into a patch of ``owner.name``. The function's first argument is the original.
    Raises :class:`TypeError` unless it takes the arguments of the original: a canary that fails when it is called would
    be found without its defect."""

    def decorate(function: Callable[..., Any]) -> Patch:
        made = Patch(owner, name)
        if inspect.isfunction(made.original):
            _check_arguments(made.original, function, f"{owner.__name__}.{name}")

        def replacement(*arguments: Any, **keywords: Any) -> Any:
            return function(made.original, *arguments, **keywords)

        replacement.__wrapped__ = made.original  # type: ignore[attr-defined]  # a further patch sees its arguments
        made.replacement = replacement
        return made

    return decorate


def _check_arguments(original: Callable[..., Any], function: Callable[..., Any], of: str) -> None:
    """Check that the function can be called as the original can: with all arguments, and without the optional ones."""
    parameters = inspect.signature(original).parameters.values()
    for optional in (True, False):
        wanted = [one for one in parameters if optional or one.default is inspect.Parameter.empty]
        arguments = [one for one in wanted if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        keywords = [one.name for one in wanted if one.kind is inspect.Parameter.KEYWORD_ONLY]
        try:
            inspect.signature(function).bind(original, *arguments, **dict.fromkeys(keywords))
        except TypeError as error:
            raise TypeError(
                f"the replacement of {of} does not take the arguments {inspect.signature(original)}: {error}"
            ) from None
