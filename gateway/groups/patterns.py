"""Regular expressions for names of topics, decided in bounded work. Pure.

A client chooses the expression, so no expression may take long. The engine of Python tries one way after another, and
some short expressions have more ways than any gateway has time for. Here an expression becomes a list of
:class:`_Step`, all ways are followed at once, letter by letter, and each set of ways is computed once. The work is
counted, and an expression that needs more than :data:`WORK_MAX` is refused: always, not only on a slow machine.

An expression must match a whole name, as with Kafka. It may have letters, `.`, classes such as `[a-z]` and `[^_]`,
`\\d`, `\\w` and `\\s`, groups, `|`, `*`, `+`, `?`, `{2,5}`, and `^` and `$`. Back references and looking ahead or
behind do not exist, as in RE2; flags and names of classes do not exist here.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from octavo.gateway.codes import Code, RefusedError

STEPS_MAX: Final = 500
"""Of an expression, with all repetitions written out."""

WORK_MAX: Final = 100_000
"""Steps that are followed for all names: some hundredths of a second."""

BUILDING_WORK: Final = 20
"""How much of it making a part takes. Parts that need no step of their own count as well: repeated within each other,
a few letters are a million of them."""

REPEATS_MAX: Final = 100
"""The highest number in braces."""

DEPTH_MAX: Final = 30
"""Groups within groups."""

type _Letters = Callable[[str], bool]

_CLASSES: Final[dict[str, _Letters]] = {
    "d": lambda one: one in "0123456789",
    "w": lambda one: (one.isascii() and one.isalnum()) or one == "_",
    "s": lambda one: one in " \t\n\r\f\v",
}


class _Step(NamedTuple):
    """One step of a way. It goes on with the steps at ``then``; where it has ``letters``, behind a letter of these."""

    then: tuple[int, ...]
    letters: _Letters | None = None
    at: str = ""
    """``^`` or ``$``: it goes on only at the beginning, or at the end."""


class _Tree(NamedTuple):
    """A part of an expression: a letter, an anchor, a sequence, a choice, or a repetition."""

    kind: str
    parts: "tuple[_Tree, ...]" = ()
    letters: _Letters | None = None
    least: int = 0
    most: int | None = None


class Pattern:
    """An expression that can be compared with names."""

    def __init__(self, text: str, work_max: int = WORK_MAX) -> None:
        """Raises :class:`RefusedError` if it is none."""
        self.text = text
        self._work_max = work_max
        self._steps: list[_Step] = []
        self._work = 0
        end = self._add(_Step(()))
        self._end = end
        self._begin = self._build(_Parser(text).parse(), end)
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matching(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those names that it matches, in order. Raises :class:`RefusedError` if that is too much work."""
        self._work = 0
        try:
            return tuple(name for name in names if self._matches(name))
        finally:
            self._known.clear()  # a thousand patterns are kept, and names change seldom

    def _matches(self, name: str) -> bool:
        ways = self._closed({self._begin}, is_first=True, is_last=not name)
        for number, letter in enumerate(name, start=1):
            # All names share what is known of letters within; a name's end is a letter of its own.
            key = ways, letter if number < len(name) else f"{letter}$"
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._closed(
                    self._behind(ways, letter), is_first=False, is_last=number == len(name)
                )
            ways = found
            if not ways:
                return False
        return self._end in ways

    def _behind(self, ways: frozenset[int], letter: str) -> set[int]:
        self._count(len(ways))
        found: set[int] = set()
        for one in ways:
            step = self._steps[one]
            if step.letters is not None and step.letters(letter):
                found.update(step.then)
        return found

    def _closed(self, ways: set[int], *, is_first: bool, is_last: bool) -> frozenset[int]:
        """The ways, with those that go on without a letter."""
        found, todo = set(ways), list(ways)
        while todo:
            step = self._steps[todo.pop()]
            self._count(1)
            if step.letters is None and (not step.at or (is_first if step.at == "^" else is_last)):
                more = set(step.then) - found
                found |= more
                todo += more
        return frozenset(found)

    def _count(self, steps: int) -> None:
        self._work += steps
        if self._work > self._work_max:
            raise _refused(self.text, "it takes too much work")

    # --- steps of an expression, from its end to its beginning --------------------------------------------------------

    def _add(self, step: _Step) -> int:
        if len(self._steps) >= STEPS_MAX:
            raise _refused(self.text, f"it has more than {STEPS_MAX} steps")
        self._steps.append(step)
        return len(self._steps) - 1

    def _build(self, tree: _Tree, then: int) -> int:
        """The step at which a part begins, if ``then`` follows it."""
        self._count(BUILDING_WORK)
        match tree.kind:
            case "letters":
                return self._add(_Step((then,), tree.letters))
            case "^" | "$":
                return self._add(_Step((then,), at=tree.kind))
            case "sequence":
                for part in reversed(tree.parts):
                    then = self._build(part, then)
                return then
            case "choice":
                return self._add(_Step(tuple(self._build(part, then) for part in tree.parts)))
            case _:
                return self._repeated(tree, then)

    def _repeated(self, tree: _Tree, then: int) -> int:
        (part,) = tree.parts
        if tree.most is None:
            again = self._add(_Step(()))
            self._steps[again] = _Step((self._build(part, again), then))
            then = again
        else:
            end = then
            for _ in range(tree.most - tree.least):
                then = self._add(_Step((self._build(part, then), end)))
        for _ in range(tree.least):
            then = self._build(part, then)
        return then


class _Parser:
    """Reads an expression, letter by letter."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> _Tree:
        tree = self._choice()
        if self._at < len(self._text):
            raise self._wrong("a ) has no (")
        return tree

    def _wrong(self, why: str) -> RefusedError:
        return _refused(self._text, why)

    def _next(self) -> str:
        """The next letter; empty at the end."""
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        letter = self._next()
        if not letter:
            raise self._wrong("it ends too early")
        self._at += 1
        return letter

    def _takes(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _choice(self) -> _Tree:
        parts = [self._sequence()]
        while self._takes("|"):
            parts.append(self._sequence())
        return _Tree("choice", tuple(parts)) if len(parts) > 1 else parts[0]

    def _sequence(self) -> _Tree:
        parts: list[_Tree] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repetition(self._one()))
        return _Tree("sequence", tuple(parts))

    def _repetition(self, part: _Tree) -> _Tree:
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._next() in bounds and self._next():
            least, most = bounds[self._take()]
        elif self._takes("{"):
            least, most = self._numbers()
        else:
            return part
        self._takes("?")  # how much is taken first makes no difference to whether all of it matches
        if self._next() and self._next() in "*+?{":
            raise self._wrong("a repetition is repeated")
        return _Tree("repetition", (part,), least=least, most=most)

    def _numbers(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        first, comma, last = self._text[self._at : max(end, self._at)].partition(",")
        texts = [first, last] if last else [first]
        if end < 0 or not all(one.isascii() and one.isdecimal() and len(one) < 4 for one in texts):
            raise self._wrong("braces hold one or two numbers")
        self._at = end + 1
        least = int(first)
        most = (int(last) if last else None) if comma else least
        if max(least, most or 0) > REPEATS_MAX or (most is not None and most < least):
            raise self._wrong(f"numbers in braces go up, to {REPEATS_MAX} at most")
        return least, most

    def _one(self) -> _Tree:
        letter = self._take()
        match letter:
            case "(":
                return self._group()
            case "[":
                return _Tree("letters", letters=self._class())
            case "^" | "$":
                return _Tree(letter)
            case ".":
                return _Tree("letters", letters=lambda _: True)
            case "\\":
                return _Tree("letters", letters=self._escaped())
            case "*" | "+" | "?" | "{":
                raise self._wrong(f"nothing stands before {letter}")
        return _Tree("letters", letters=letter.__eq__)

    def _group(self) -> _Tree:
        if not self._takes("?:") and self._next() == "?":
            raise self._wrong("groups have no flags and do not look ahead or behind")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._wrong(f"more than {DEPTH_MAX} groups stand within each other")
        tree = self._choice()
        if not self._takes(")"):
            raise self._wrong("a ( has no )")
        self._depth -= 1
        return tree

    def _escaped(self) -> _Letters:
        letter = self._take()
        if letter.lower() in _CLASSES:
            inside = _CLASSES[letter.lower()]
            return inside if letter.islower() else lambda one: not inside(one)
        if letter.isalnum():
            raise self._wrong(f"\\{letter} has no meaning here")
        return letter.__eq__

    def _class(self) -> _Letters:
        is_negated = self._takes("^")
        parts: list[_Letters] = []
        while not parts or self._next() != "]":
            parts.append(self._class_part())
        self._take()

        def matches(letter: str) -> bool:
            return any(part(letter) for part in parts) is not is_negated

        # Names are ASCII. To look at each part for each letter would be work that is not counted.
        found = frozenset(filter(matches, map(chr, range(128))))
        return lambda letter: letter in found if letter.isascii() else matches(letter)

    def _class_part(self) -> _Letters:
        first = self._take()
        if first == "[" and self._next() == ":":
            raise self._wrong("classes have no names here")
        if first == "\\":
            if self._next().isalnum():
                return self._escaped()
            first = self._take()
        ends = self._text[self._at + 1 : self._at + 2]
        if self._next() != "-" or ends in ("", "]"):
            return first.__eq__
        self._take()
        last = self._take()
        if last == "\\":
            last = self._take()
        if last < first:
            raise self._wrong(f"{first}-{last} is no range")
        return lambda letter: first <= letter <= last


def _refused(text: str, why: str) -> RefusedError:
    return RefusedError(Code.INVALID_REGULAR_EXPRESSION, f"the regular expression {text[:100]!r} is refused: {why}")


PATTERNS_MAX: Final = 1_000
"""That are kept."""


class Patterns:
    """The patterns of members, and what they matched last: names of topics seldom change."""

    def __init__(self) -> None:
        self.work_max = WORK_MAX
        """Of a pattern that was not met before."""
        self._known: dict[str, tuple[Pattern, tuple[str, ...], tuple[str, ...]]] = {}
        self._refused: dict[str, tuple[tuple[str, ...], RefusedError]] = {}
        """Those that were refused, for these names: a client that asks again costs nothing."""

    def matching(self, text: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the names that a pattern matches. Raises :class:`RefusedError` if it is none."""
        if text in self._refused and self._refused[text][0] == names:
            raise RefusedError(self._refused[text][1].code, self._refused[text][1].text)
        known = self._known.pop(text, None)
        try:
            pattern = Pattern(text, self.work_max) if known is None else known[0]
            found = known[2] if known is not None and known[1] == names else pattern.matching(names)
        except RefusedError as error:
            _keep(self._refused, text, (names, error))
            raise
        self._refused.pop(text, None)
        _keep(self._known, text, (pattern, names, found))
        return found


def _keep[T](kept: dict[str, T], text: str, value: T) -> None:
    """Keep a value as the latest. The one that was used the longest time ago goes if there are too many."""
    kept.pop(text, None)
    kept[text] = value
    if len(kept) > PATTERNS_MAX:
        del kept[next(iter(kept))]
