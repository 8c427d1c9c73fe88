"""Patterns as lists of steps: an object at other integers is made by one pass over a list, without a walk over the pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from attrs import define, field

from remat._frozen import fields_of, member_of
from remat.exec._program.program import Op
from remat.exec._sizes.merging import Number, Parts, Pattern, Record, Same

Step = Callable[[list[Any]], Any]
"""Makes an object of what stands at some places before it."""

_WORKED_OUT = ("takes", "reads")
"""Cached properties of an operation that no integer changes."""


@define(eq=False)
class Filler:
    """Makes the object of a pattern from integers.

    Attributes:
        pattern: what is filled.
        constants, columns: what stands at the first places: objects, then the numbers of these columns.
        steps: what is made at the places after these; the last one is the whole.
    """

    pattern: Pattern
    constants: list[Any] = field(factory=list)
    columns: list[int] = field(factory=list)
    steps: tuple[Step, ...] = ()

    @classmethod
    def of(cls, pattern: Pattern) -> Filler:
        """Of a pattern; shapes, specs and forms that it has in several places become one object."""
        writing = _Writing()
        last = writing.place(pattern)
        first_step = len(writing.constants) + len(writing.columns)
        places = {("constant", at): at for at in range(len(writing.constants))}
        places |= {("column", at): len(writing.constants) + rank for rank, at in enumerate(writing.columns)}
        places |= {("step", at): first_step + at for at in range(len(writing.steps))}
        steps = [make([places[place] for place in needs]) for make, needs in writing.steps]
        return cls(pattern, writing.constants, list(writing.columns), (*steps, itemgetter(places[last])))

    def at(self, numbers: Sequence[int]) -> Any:
        """The object with these integers."""
        slots = [*self.constants, *(numbers[column] for column in self.columns)]
        put = slots.append
        for step in self.steps:
            put(step(slots))
        return slots[-1]


Place = tuple[str, int]


@define(eq=False)
class _Writing:
    """The steps of a pattern as they are found; each part stands before what it is part of."""

    constants: list[Any] = field(factory=list)
    columns: dict[int, None] = field(factory=dict)
    steps: list[tuple[Callable[[list[int]], Step], list[Place]]] = field(factory=list)
    by_pattern: dict[int, Place] = field(factory=dict)

    def place(self, pattern: Pattern) -> Place:
        """Where the object of a pattern will stand."""
        if isinstance(pattern, Same):
            return self.constant(pattern.value)
        if isinstance(pattern, Number):
            self.columns[pattern.at] = None
            number = "column", pattern.at
            return number if pattern.kind is int else self.step(lambda at: _converted(pattern.kind, *at), [number])
        if id(pattern) not in self.by_pattern:
            if isinstance(pattern, Parts):
                needs = [self.place(part) for part in pattern.parts]
                self.by_pattern[id(pattern)] = self.step(lambda at: _container(pattern, at), needs)
            else:
                self.by_pattern[id(pattern)] = self.record(pattern)
        return self.by_pattern[id(pattern)]

    def constant(self, value: Any) -> Place:
        """Where an object stands that is the same at all sizes."""
        self.constants.append(value)
        return "constant", len(self.constants) - 1

    def step(self, make: Callable[[list[int]], Step], needs: list[Place]) -> Place:
        """A step of its own, made when its places are known."""
        self.steps.append((make, needs))
        return "step", len(self.steps) - 1

    def record(self, pattern: Record) -> Place:
        """An object with other fields, which need no checks."""
        first, changed = pattern.first, dict(pattern.fields)
        names = fields_of(type(first)) + (_WORKED_OUT if type(first) is Op else ())
        needs = [
            self.place(changed[name]) if name in changed else self.constant(getattr(first, name)) for name in names
        ]
        return self.step(lambda at: _record(type(first), names, at), needs)


def _converted(kind: Callable[[int], Any], at: int) -> Step:
    return lambda slots: kind(slots[at])


def _tuple(places: list[int]) -> Step:
    """A tuple of what stands at some places."""
    if len(places) > 1:
        return itemgetter(*places)
    (place,) = places  # a pattern without parts is the same at all sizes
    return lambda slots: (slots[place],)


def _container(pattern: Parts, places: list[int]) -> Step:
    get, keys = _tuple(places), pattern.keys
    if keys:
        return lambda slots: dict(zip(keys, get(slots), strict=True))
    return (lambda slots: list(get(slots))) if pattern.kind is list else get


def _record(kind: Any, names: Sequence[str], places: list[int]) -> Step:
    get, new, puts = _tuple(places), kind.__new__, [member_of(kind, name).__set__ for name in names]

    def build(slots: list[Any]) -> Any:
        result = new(kind)
        for put, value in zip(puts, get(slots), strict=True):
            put(result, value)
        return result

    return build


__all__ = ["Filler"]
