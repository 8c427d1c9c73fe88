"""A backward that hands on its gradients as they are made, to those who wait for them: DDP's buckets, optimizers in the backward.

A node of autograd gives its gradients when it ends. So the step becomes a chain of nodes: the first runs the generated backward
up to the first gradients, each later one goes on from there, and autograd accumulates what one has given before it calls the
next. The lines are those of the plan, in its order; a gradient is released where it is handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from attrs import frozen

from remat.exec._program.program import Role
from remat.exec._run.lowering import Gradients, Lowered, Lowering
from remat.ir import Drop, Run
from remat.units import Bytes

MOST_PARTS = 8
"""Most nodes of a chain: each costs some tens of microseconds in a step."""

Groups = tuple[tuple[int, ...], ...]


@frozen(eq=False)
class Handing:
    """The backward of a plan in parts.

    Attributes:
        backward: as that of the plan; gives a list of gradients for each group, which the receiver empties.
        groups: positions among the gradients, in the order in which they are given.
    """

    backward: Callable[..., Iterator[list[torch.Tensor | None]]]
    groups: Groups


_handings: WeakKeyDictionary[Lowered, Handing | None] = WeakKeyDictionary()


def handing_of(lowered: Lowered) -> Handing | None:
    """The backward of a plan in parts, lowered when it is first wanted; None: it has one part.

    A plan with copies to the host, and one that was compiled, has one.
    """
    if lowered.copier is not None or lowered.eager is not None or len(lowered.grad_inputs) < 2:
        return None
    if lowered not in _handings:
        _handings[lowered] = _Handing(lowered).handing()
    return _handings[lowered]


class _Handing(Lowering):
    """Lowers the backward of a schedule as a generator."""

    def __init__(self, whole: Lowered) -> None:
        super().__init__(*whole.lowered_from)
        self.whole = whole
        self.due: dict[int, list[int]] = {}

    def handing(self) -> Handing | None:
        """The parts; None where there is one."""
        program = self.program
        cut = next(
            at for at, step in enumerate(self.steps)
            if isinstance(step, Run) and program.op_by_name[step.node].role is Role.LOSS
        )  # fmt: skip
        after = self.steps[cut + 1 :]
        self.due = self.points(after)
        if len(self.due) < 2:
            return None
        read_outputs, activations = self.saved(cut)
        self.ran = {step.node for step in self.steps[:cut] if isinstance(step, Run)}
        source, _, _ = self.backward(after, read_outputs, activations)
        space = self.names.compiled(f"{source}\n", "step in parts", program.constants)
        return Handing(space["backward"], tuple(tuple(group) for group in self.due.values()))

    def points(self, steps: Sequence[Any]) -> dict[int, list[int]]:
        """Places of steps after which gradients are handed on, with the gradients; the last place is the end.

        Whoever gets a gradient may change what it is of (an optimizer in the backward), so that nothing reads either after it.
        """
        program = self.program
        last: dict[str, int] = {}
        for at, step in enumerate(steps):
            if isinstance(step, Run):
                op = program.op_by_name[step.node]
                last.update(dict.fromkeys((*program.read(op), *program.written(op)), at))
            elif isinstance(step, Drop):
                last[step.datum] = at
        storages = [None if value is None else program.values[value].storage for value in super().results()]
        changed = [program.values[value].storage for value in self.grad_sources()]
        ready = sorted(
            (len(steps) if name is None else max(last.get(name, len(steps)), last.get(changed[at], 0)), at)
            for at, name in enumerate(storages)
        )
        sizes = [0 if name is None else program.storages[name].size for name in storages]
        return _grouped(ready, sizes, len(steps))

    def results(self) -> list[str | None]:
        """What is left for the end."""
        return []

    def used_primals(self) -> tuple[list[str], list[str]]:
        """Those of the whole backward: what the forward has saved is unpacked as it was saved."""
        watched, loose = self.whole.backward_primals, self.whole.loose_primals
        return [self.primals[at] for at in watched], [self.primals[at] for at in loose]

    def emit(self, steps: Iterable[Any]) -> None:
        steps, begin = list(steps), 0
        results = super().results()
        for end, group in self.due.items():
            super().emit(steps[begin : end + 1])
            begin = end + 1
            self.hand([results[at] for at in group])

    def hand(self, values: list[str | None]) -> None:
        """Lines that give gradients and release them."""
        self.bind_all(filter(None, values))
        self.line(f"handed = [{', '.join(value or 'None' for value in values)}]")
        self.delete(name for storage in self.storages(values) for name in self.of(storage))
        self.line("yield handed")

    def storages(self, values: Iterable[str | None]) -> list[str]:
        return list(dict.fromkeys(self.program.values[value].storage for value in values if value is not None))


def _grouped(ready: list[tuple[int, int]], sizes: list[Bytes], end: int) -> dict[int, list[int]]:
    """Gradients in at most `MOST_PARTS` groups of about equal bytes, by the place where the last of a group is ready."""
    least = -(-sum(sizes) // MOST_PARTS)
    groups: dict[int, list[int]] = {}
    group: list[int] = []
    for number, (place, at) in enumerate(ready):
        group.append(at)
        following = ready[number + 1][0] if number + 1 < len(ready) else end
        if sum(sizes[member] for member in group) >= least and following > place:
            groups[place], group = group, []
    if group:
        groups[end] = group
    if end not in groups and groups:  # what follows the last gradient belongs to its part
        groups[end] = groups.pop(list(groups)[-1])
    return groups


def in_groups(grads: Gradients, groups: Groups) -> Iterator[list[torch.Tensor | None]]:
    """All gradients of a backward that ran as a whole, group by group."""
    rest = list(grads)
    for group in groups:
        handed = [rest[at] for at in group]
        for at in group:
            rest[at] = None
        yield handed


__all__ = ["Handing", "handing_of", "in_groups"]
