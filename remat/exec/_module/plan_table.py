"""A table of bounded size: entries by key, the least recently used forgotten first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class PlanTable(Generic[T]):
    """Entries by key, several of a key in the order of their last use; entries are told apart by identity.

    Args:
        most: largest number of entries, of all keys together.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._by_key: dict[Hashable, list[T]] = {}  # most recently used first
        self._key_by_entry: dict[T, Hashable] = {}  # most recently used last

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._by_key)

    def __iter__(self) -> Iterator[T]:
        """All entries, by key."""
        return (entry for entries in self._by_key.values() for entry in entries)

    def of(self, key: Hashable) -> tuple[T, ...]:
        """The entries of a key, the most recently used first."""
        return tuple(self._by_key.get(key, ()))

    def use(self, key: Hashable, entry: T) -> list[T]:
        """Put an entry first, whether it is new or not; returns the entries that were evicted for it."""
        self.forget(entry)
        self._by_key.setdefault(key, []).insert(0, entry)
        self._key_by_entry[entry] = key
        forgotten = list(self._key_by_entry)[: max(0, len(self._key_by_entry) - self.most)]
        for other in forgotten:
            self.forget(other)
        return forgotten

    def forget(self, entry: T) -> None:
        """Remove an entry, if the table has it."""
        if entry not in self._key_by_entry:
            return
        key = self._key_by_entry.pop(entry)
        self._by_key[key].remove(entry)
        if not self._by_key[key]:
            del self._by_key[key]

    def copied(self, copy: Callable[[T], T]) -> PlanTable[T]:
        """A table of copies of the entries, with the same order of use."""
        table = PlanTable[T](self.most)
        for entry, key in self._key_by_entry.items():
            table.use(key, copy(entry))
        return table
