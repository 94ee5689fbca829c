"""Light dataclasses beside those of the standard library: a program sees no difference."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from functools import partial
from typing import Any, ClassVar

import pytest
from octavo.protocol.light_dataclass import dataclass


def with_every_kind_of_field(decorator: Any) -> Any:
    @decorator(frozen=True, slots=True)
    class Example:
        """An example."""

        kind: ClassVar[str] = "example"
        number: int
        text: str = "none"
        unknown: dict[str, int] = field(default_factory=dict, hash=False, repr=False)
        noted: str = field(default="", compare=False)
        named: int = field(default=1, kw_only=True)
        length: int = field(init=False, repr=False, compare=False)
        began: list[int] = field(init=False, default_factory=list, hash=False)
        level: int = field(init=False, default=7)

        def __post_init__(self) -> None:
            object.__setattr__(self, "length", len(self.text))

    return Example


def with_names_only(decorator: Any) -> Any:
    @decorator(frozen=True, slots=True, kw_only=True)
    class Example:
        """An example."""

        number: int
        text: str = "none"

    return Example


def without_fields(decorator: Any) -> Any:
    @decorator(frozen=True, slots=True)
    class Example:
        """An example."""

    return Example


def with_methods_of_its_own(decorator: Any) -> Any:
    @decorator(frozen=True, slots=True)
    class Example:  # noqa: PLW1641 - the decorator adds __hash__
        """An example."""

        number: int
        text: str

        def __init__(self, number: int) -> None:
            object.__setattr__(self, "number", number)
            object.__setattr__(self, "text", str(number))

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and self.number % 10 == other.number % 10

        def __repr__(self) -> str:
            return f"<{self.number}>"

    return Example


def with_a_base(decorator: Any) -> Any:
    @decorator(frozen=True, slots=True)
    class Base:
        """A base."""

        number: int
        text: str = "none"

    @decorator(frozen=True, slots=True)
    class Example(Base):
        """An example."""

        text: str = "some"
        more: int = 3

    return Example


type Kind = Callable[[Any], Any]

KINDS: list[tuple[Kind, list[tuple[tuple[Any, ...], dict[str, Any]]]]] = [
    (
        with_every_kind_of_field,
        [
            ((1,), {}),
            ((1,), {"text": "none"}),
            ((1, "a", {"b": 2}), {}),
            ((1, "a", {"b": 3}, "noted"), {}),
            ((1, "a", {"b": 3}, "differs"), {}),
            ((1,), {"named": 5}),
            ((2,), {}),
            ((), {}),
            ((1, "a", {}, "", 5), {}),
            ((1,), {"length": 3}),
            ((1,), {"missing": 3}),
        ],
    ),
    (with_names_only, [((), {"number": 1}), ((), {"number": 1, "text": "none"}), ((), {"number": 2}), ((1,), {})]),
    (without_fields, [((), {}), ((1,), {})]),
    (with_methods_of_its_own, [((1,), {}), ((11,), {}), ((2,), {})]),
    (with_a_base, [((1,), {}), ((1, "some", 3), {}), ((1, "some", 4), {}), ((2,), {})]),
]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or its error with the text."""
    try:
        return call()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


def told(value: Any) -> Any:
    """Of an object of an example: what can be seen of it."""
    if isinstance(value, tuple):
        return value
    return [repr(value), {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}]


def positions(hashes: list[Any]) -> list[int]:
    """Which of the hashes are the same. The numbers themselves may differ."""
    return [hashes.index(one) for one in hashes]


@pytest.mark.parametrize(("kind", "calls"), KINDS, ids=lambda value: getattr(value, "__name__", "calls"))
def test_objects_are_made_shown_hashed_and_compared_as_those_of_the_standard_library(
    kind: Kind, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
) -> None:
    light, standard = kind(dataclass), kind(dataclasses.dataclass)
    made = [
        [outcome(lambda: made_by(*positional, **named)) for positional, named in calls]  # noqa: B023 - called at once
        for made_by in (light, standard)
    ]
    assert [*map(told, made[0])] == [*map(told, made[1])]
    equal = [[[one == other for other in some] for one in some] for some in made]
    assert equal[0] == equal[1]
    hashes = [[outcome(partial(hash, one)) for one in some] for some in made]
    assert positions(hashes[0]) == positions(hashes[1])
    assert made[0][0] != made[1][0], "of different classes"


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS], ids=lambda kind: kind.__name__)
def test_classes_look_as_those_of_the_standard_library(kind: Kind) -> None:
    light, standard = kind(dataclass), kind(dataclasses.dataclass)
    assert light.__match_args__ == standard.__match_args__
    assert light.__slots__ == standard.__slots__
    assert light.__init__.__qualname__ == standard.__init__.__qualname__
    assert light.__init__.__annotations__ == standard.__init__.__annotations__
    ours, theirs = inspect.signature(light).parameters, inspect.signature(standard).parameters
    assert [*ours] == [*theirs]
    assert [one.kind for one in ours.values()] == [one.kind for one in theirs.values()]


@pytest.mark.parametrize("name", ["number", "level", "absent"])
def test_fields_can_neither_be_set_nor_deleted(name: str) -> None:
    example = with_every_kind_of_field(dataclass)(1)
    with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(example, name, 2)
    with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
        delattr(example, name)
    assert example.number == 1


def test_changed_copies_are_made_with_replace() -> None:
    @dataclass(frozen=True, slots=True)
    class Example:
        """An example."""

        number: int
        text: str = "none"

    assert dataclasses.replace(Example(1), text="some") == Example(1, "some")
    assert dataclasses.asdict(Example(1)) == {"number": 1, "text": "none"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        dataclasses.replace(Example(1), other=2)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class Sent:
    """Found by its name when it is unpickled."""

    number: int
    noted: str = field(default="", compare=False)


def test_objects_can_be_pickled_and_copied() -> None:
    sent = Sent(1, "noted")
    for arrived in (pickle.loads(pickle.dumps(sent)), copy.copy(sent), copy.deepcopy(sent)):
        assert (arrived, arrived.noted) == (sent, "noted")


def test_other_classes_are_made_by_the_standard_library() -> None:
    @dataclass(slots=True)
    class Example:
        """An example."""

        number: int

    example = Example(1)
    example.number = 2
    assert example == Example(2)
