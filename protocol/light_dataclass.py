"""Immutable dataclasses that are made faster than those of the standard library.

For every frozen dataclass, :mod:`dataclasses` writes and compiles the source of seven methods. A command loads seventy
such classes before it does anything, which takes a fifth of its time. Six of the methods are the same for all classes
but for the fields that they name. Here these are functions that all classes share, and which read the fields through a
getter of the class; only ``__init__`` is compiled.

:func:`dataclass` otherwise means the same as the standard library's, whose :func:`dataclasses.field`, ``fields`` and
``replace`` work with it. Type checkers see the standard one. A class that is derived from one of these is made here,
too: the standard library takes them for classes that can be changed.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]


def _light_dataclass(
    *, frozen: bool = False, slots: bool = False, kw_only: bool = False, **others: bool
) -> Callable[[type], type]:
    """As the standard library's. Only frozen classes with slots are made here, which are almost all."""
    if not (frozen and slots) or others:
        standard: Callable[..., Callable[[type], type]] = dataclasses.dataclass
        return standard(frozen=frozen, slots=slots, kw_only=kw_only, **others)
    without_methods = dataclasses.dataclass(init=False, eq=False, repr=False, slots=True, kw_only=kw_only)

    def make(plain: type) -> type:
        return _finished(without_methods(plain), plain)

    return make


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _light_dataclass


def _finished(made: Any, plain: type) -> type:
    """The class with the methods that it lacks. ``plain`` has those that its author has written."""
    fields = dataclasses.fields(made)
    made._compared = _getter([one.name for one in fields if one.compare])
    made._hashed = _getter([one.name for one in fields if (one.compare if one.hash is None else one.hash)])
    made._shown = tuple(one.name for one in fields if one.repr)
    written = vars(plain)
    if "__init__" not in written:
        made.__init__ = _init(made, fields)
    for name, method in _SHARED.items():
        if written.get(name) is None:  # a class with __eq__ has the attribute __hash__, which is None
            setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _getter(names: Sequence[str]) -> Callable[[object], object]:
    """Gives the values of these attributes; of a single one, its value itself; where there is none, the class."""
    return attrgetter(*(names or ["__class__"]))


def _init(made: Any, fields: Sequence[Field[Any]]) -> Callable[..., None]:
    """``__init__`` with a parameter per field. It writes each slot through its descriptor: assignment is refused."""
    known: dict[str, Any] = {"_MISSING": MISSING}
    positional: list[str] = []
    named: list[str] = []
    body: list[str] = []
    for one in fields:
        name = value = one.name
        if one.default is not MISSING:
            absent: str | None = f"_default_{name}"
            known[f"_default_{name}"] = one.default
            parameter = f"{name}={absent}"
        elif one.default_factory is not MISSING:
            absent = f"_make_{name}()"
            known[f"_make_{name}"] = one.default_factory
            parameter = f"{name}=_MISSING"
            value = f"{absent} if {name} is _MISSING else {name}"
        else:
            absent = None
            parameter = name
        if one.init:
            (named if one.kw_only else positional).append(parameter)
        elif absent is not None:
            value = absent
        else:
            continue  # __post_init__ gives the value
        known[f"_set_{name}"] = getattr(made, name).__set__
        body.append(f"_set_{name}(self, {value})")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *named] if named else [])])
    exec(f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"]), known)
    init: Any = known["__init__"]
    init.__module__ = made.__module__
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = {one.name: one.type for one in fields if one.init} | {"return": None}
    return init  # type: ignore[no-any-return]


# --- methods that all classes share -----------------------------------------------------------------------------------


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self is other or self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._hashed(self))


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._shown)})"


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


_SHARED = {
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
    "__getstate__": _state,
    "__setstate__": _set_state,
}
