"""One pattern of several objects that agree in all but integers: what two captures of a structure have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import torch
from attrs import define, field, frozen

from remat._frozen import fields_of
from remat.exec._program.program import Ref, Spec
from remat.exec._sizes.functions import Column
from remat.exec._torch.outlined import Form

_MANY_ALIKE = (Spec, Form)
"""Classes of which most objects of a step are equal."""


class Unlike(Exception):
    """Objects differ in more than integers; the message says where."""


@frozen
class Same:
    """The object that all have."""

    value: Any


@frozen
class Number:
    """An integer, or a float with its value."""

    at: int
    kind: Callable[[int], Any] = int


@frozen
class Parts:
    """A tuple or list, or a dict as its values."""

    kind: type
    parts: tuple[Any, ...]
    keys: tuple[Any, ...] = ()


@frozen
class Record:
    """An object of a class of attrs: the first one, and the fields in which others differ."""

    first: Any
    fields: tuple[tuple[str, Any], ...]


Pattern = Same | Number | Parts | Record


@define
class Patterns:
    """Merges, and collects the columns of integers.

    Attributes:
        columns: of all numbers, each once, in the order in which they were met.
        shared: patterns of shapes, specs and forms, each once: they are the same for most values of a step.
    """

    columns: dict[Column, int] = field(factory=dict)
    shared: dict[Hashable, Pattern] = field(factory=dict)

    def merge(self, items: Sequence[Any], where: str = "") -> Pattern:
        """The pattern of objects.

        Raises:
            Unlike: they differ in more than integers.
        """
        first = items[0]
        if all(item is first for item in items):
            return Same(first)
        kind = type(first)
        if any(type(item) is not kind for item in items):
            raise Unlike(f"{where} is {first!r:.80}, then of another type")
        if kind is int:
            return self._number(tuple(items))
        if kind is float and all(item.is_integer() for item in items) and len(set(items)) > 1:
            return Number(self._at(tuple(map(int, items))), float)
        if kind in (tuple, list, dict):
            return self._container(items, where)
        if attrs.has(kind) and kind is not Ref and not isinstance(first, torch.Tensor):
            return self._record(items, where)
        if not _equal(items):
            raise Unlike(f"{where} is {first!r:.80}, then {next(item for item in items if item is not first)!r:.80}")
        return Same(first)

    def _number(self, column: Column) -> Same | Number:
        if len(set(column)) == 1:
            return Same(column[0])
        return Number(self._at(column))

    def _at(self, column: Column) -> int:
        return self.columns.setdefault(column, len(self.columns))

    def _container(self, items: Sequence[Any], where: str) -> Pattern:
        first = items[0]
        keys = tuple(first) if isinstance(first, dict) else ()
        if any(len(item) != len(first) or (keys and tuple(item) != keys) for item in items):
            raise Unlike(f"{where} has other parts, or more")
        parts = [tuple(item.values()) if keys else item for item in items]
        names = keys or tuple(range(len(first)))
        merged = tuple(
            self.merge(values, f"{where}.{name}") for name, values in zip(names, zip(*parts, strict=True), strict=True)
        )
        if all(isinstance(part, Same) for part in merged):
            return Same(first)
        pattern = Parts(type(first), merged, keys)
        return self.shared.setdefault(merged, pattern) if type(first) is tuple and all(map(_plain, merged)) else pattern

    def _record(self, items: Sequence[Any], where: str) -> Pattern:
        first = items[0]
        fields = []
        for about in attrs.fields(type(first)):
            part = self.merge([getattr(item, about.name) for item in items], f"{where}.{about.name}")
            if not isinstance(part, Same):
                fields.append((about.name, part))
        if not fields:
            return Same(first)
        pattern = Record(first, tuple(fields))
        if type(first) not in _MANY_ALIKE:
            return pattern
        changed = {name for name, _ in fields}
        rest = [getattr(first, name) for name in fields_of(type(first)) if name not in changed]
        return self.shared.setdefault((type(first), *fields, *rest), pattern)


def _plain(part: Pattern) -> bool:
    """Whether it stands for an integer."""
    return isinstance(part, Number) or (isinstance(part, Same) and type(part.value) is int)


def columns_in(pattern: Any) -> set[int]:
    """The columns whose integers a pattern has."""
    if isinstance(pattern, Number):
        return {pattern.at}
    return set().union(*map(columns_in, parts_of(pattern)))


def parts_of(pattern: Any) -> tuple[Any, ...]:
    """The patterns that a pattern consists of."""
    if isinstance(pattern, Record):
        return tuple(part for _, part in pattern.fields)
    return pattern.parts if isinstance(pattern, Parts) else ()


def _equal(items: Sequence[Any]) -> bool:
    first = items[0]
    if isinstance(first, torch.Tensor):
        forms = {(item.shape, item.stride(), item.dtype, item.device) for item in items}
        return len(forms) == 1 and all(torch.equal(item, first) for item in items)
    if isinstance(first, float):
        return len(set(map(repr, items))) == 1
    return bool(all(item == first for item in items))
