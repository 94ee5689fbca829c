"""Small numbers for values that recur, so that states are tuples of numbers: quick to hash, compare and keep."""

from collections.abc import Hashable


class Interner[T]:
    """Values by number, and numbers by key."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: T, key: Hashable = None) -> int:
        """The number of the value with this key, by default the value itself; met for the first time, it is kept."""
        if key is None:
            key = value
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number

    def __getitem__(self, number: int) -> T:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)
