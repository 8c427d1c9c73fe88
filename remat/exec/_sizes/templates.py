"""Functions of the plans of a stencil: one text for each schedule, in which integers that depend on sizes are names.

A schedule's functions are written with such names, so that another size has the same text and no compilation of its own. Where
two sizes have given the same text, a third takes the functions as they are, with its own integers under the names: nothing in the
text can depend on a size in another way, since it would have differed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from attrs import define, evolve, field

from remat.exec._program.program import Program
from remat.exec._program.source import Size
from remat.exec._run.lowering import Lowered, lower
from remat.exec._run.tangents import Tangents, layouts_vary
from remat.exec._sizes.filling import Filler
from remat.exec._sizes.merging import Number, Record, Same, parts_of
from remat.ir import Schedule

SIZE = "_size_"
"""How names of integers begin."""
MOST = 24
"""Schedules of a stencil whose functions are kept, the most recently used."""


@define(eq=False)
class Template:
    """The functions of a schedule at one size.

    Attributes:
        lowered: with the names of integers.
        unseen: names whose integers were equal at all sizes that have given this text; none: it stands for other sizes too.
    """

    lowered: Lowered
    unseen: set[str]

    @classmethod
    def of(cls, lowered: Lowered) -> Template:
        """Of the first size."""
        return cls(lowered, {name for name in _globals(lowered) if name.startswith(SIZE)})

    def confirm(self, other: Lowered) -> bool:
        """Compare with another size; whether they are the same code with the same objects."""
        ours, theirs = _globals(self.lowered), _globals(other)
        constants = [name for name in ours if name.startswith("_constant_")]
        self.unseen = {name for name in self.unseen if ours[name] == theirs.get(name)}
        return self.lowered.source == other.source and all(ours[name] is theirs[name] for name in constants)


@define(eq=False)
class Templates:
    """The functions of the schedules of one stencil.

    Attributes:
        by_schedule: by the steps of each, the most recently used last; None: its text depends on sizes in other ways.
        named: whether integers alone depend on sizes in the program's pattern; None: not looked at yet.
    """

    by_schedule: dict[Hashable, Template | None] = field(factory=dict)
    named: bool | None = None

    def lowered(self, filler: Filler, numbers: tuple[int, ...], program: Program, schedule: Schedule) -> Lowered:
        """The functions of a plan.

        Args:
            filler: of programs.
            numbers: the integers of the pattern.
            program: filled in with these.
            schedule: without copies, as `validate` accepts it.

        Raises:
            Uncapturable: X-STAGE, where an operation cannot be written as code.
        """
        if self.named is None:
            self.named = not _has_floats(filler.pattern)
        key = (schedule.steps, layouts_vary(program))
        if not self.named or self.by_schedule.get(key, ...) is None:
            return lower(program, schedule)
        template = self.by_schedule.pop(key, None)
        if template is None:
            template = Template.of(_lowered(filler, numbers, schedule))
        elif template.unseen and not template.confirm(_lowered(filler, numbers, schedule)):
            self.by_schedule[key] = None
            return lower(program, schedule)
        self.by_schedule[key] = template
        for old in list(self.by_schedule)[:-MOST]:
            del self.by_schedule[old]
        return _at(template.lowered, numbers, program, schedule)


def _lowered(filler: Filler, numbers: Sequence[int], schedule: Schedule) -> Lowered:
    """Functions with names, which keep no program of their own."""
    named = [Size.of(number, _name(at)) for at, number in enumerate(numbers)]
    lowered, pattern = lower(filler.at(named), schedule), filler.pattern
    assert isinstance(pattern, (Record, Same))
    first: Program = pattern.first if isinstance(pattern, Record) else pattern.value
    return evolve(lowered, tangents=Tangents(first), lowered_from=(first, schedule, None))


def _at(lowered: Lowered, numbers: Sequence[int], program: Program, schedule: Schedule) -> Lowered:
    """The same functions with other integers under their names."""
    names = _globals(lowered)
    space = names | {name: number for at, number in enumerate(numbers) if (name := _name(at)) in names}
    forward, backward = (_with_globals(function, space) for function in (lowered.forward, lowered.backward))
    return evolve(
        lowered, forward=forward, backward=backward, tangents=Tangents(program),
        lowered_from=(program, schedule, None), variants={},
    )  # fmt: skip


def _with_globals(function: Callable[..., Any], space: dict[str, Any]) -> Callable[..., Any]:
    assert isinstance(function, types.FunctionType)
    space[function.__name__] = types.FunctionType(function.__code__, space, function.__name__)
    return space[function.__name__]  # type: ignore[no-any-return]


def _globals(lowered: Lowered) -> dict[str, Any]:
    names: dict[str, Any] = lowered.forward.__globals__
    return names


def _name(at: int) -> str:
    return f"{SIZE}{at}"


def _has_floats(pattern: Any) -> bool:
    """Whether a float depends on sizes: it is text, not a name."""
    if isinstance(pattern, Number):
        return pattern.kind is not int
    return not isinstance(pattern, Same) and any(map(_has_floats, parts_of(pattern)))


__all__ = ["Template", "Templates"]
