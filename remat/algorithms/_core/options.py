"""Many budgets give options: `s.sweep(peaks=, saves=)` offers a block to the level above.

A block is a flat graph whose loss node stands for the rest of the network (`remat.ir.part`). A schedule of it is an option:
its time, its memory while it runs, and the memory it keeps in between. Reference: Rockmate, section 3.3 (block budgets);
HiRemate, section 3.2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from attrs import evolve, field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Outcome
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.wording import operand
from remat.ir import Graph, LayerOption, Option, Phase, Schedule, option_of, validate
from remat.settings import instance, whole
from remat.units import Bytes


class OptionSource(ABC):
    """Offers options of a block. Subclasses are frozen attrs classes of settings; their repr rebuilds them."""

    __slots__ = ()

    @abstractmethod
    def options(self, block: Graph, *, clock: Clock | None = None, seed: int = 0) -> tuple[LayerOption, ...]:
        """Options of a block, none of which another one dominates, in order of time.

        Args:
            block: a flat graph; its loss node stands for the rest of the network.
            clock: how long to search; the options found by then are returned.
            seed: the same block and seed give the same options.
        """


def undominated(options: Iterable[LayerOption]) -> tuple[LayerOption, ...]:
    """The options that no other option dominates, in order of time; of equal options the first stays."""
    ranked = sorted(options, key=_rank)
    kept: list[LayerOption] = []
    for option in ranked:
        if not any(dominates(other, option) for other in kept):
            kept = [other for other in kept if not dominates(option, other)] + [option]
    return tuple(kept)


def dominates(option: LayerOption, other: LayerOption) -> bool:
    """Whether `option` is at least as good in every way: times, phantom, workspaces, and what its backward reads."""
    return all(a <= b for a, b in zip(_numbers(option), _numbers(other), strict=True)) and (
        set(option.backward_reads) <= set(other.backward_reads)
    )


def _numbers(option: LayerOption) -> tuple[int, ...]:
    return (option.forward, option.backward, option.phantom, option.forward_workspace, option.backward_workspace)


def _rank(option: LayerOption) -> tuple[object, ...]:
    return (
        option.forward + option.backward,
        option.phantom,
        *_numbers(option),
        len(option.backward_reads),
        option.backward_reads,
    )


@runtime_checkable
class Solves(Protocol):
    """What a sweep requires of its solver."""

    def refuses(self, graph: Graph) -> str | None:
        """Why the solver cannot treat the graph, or None."""

    def solve(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Outcome:
        """The solver's plan, replayed."""


@frozen
class Sweep(OptionSource):
    """One solver under many budgets of a block: limits on the memory while it runs, and on the memory it keeps in between.

    Attributes:
        solver: plans the block.
        peaks: number of budgets for the peak, evenly from the least that a run of any node needs to what `StoreAll` needs.
        saves: number of budgets for the memory kept while the loss node runs, evenly from the outputs to all saved tensors.
    """

    solver: Solves = field(validator=instance(Solves, "quick"))
    peaks: int = field(default=8, kw_only=True, validator=whole(1, "budgets"))
    saves: int = field(default=6, kw_only=True, validator=whole(1, "budgets"))

    def __repr__(self) -> str:
        return f"{operand(self.solver)}.sweep(peaks={self.peaks}, saves={self.saves})"

    def options(self, block: Graph, *, clock: Clock | None = None, seed: int = 0) -> tuple[LayerOption, ...]:
        """The options of all schedules found; none when the solver refuses the block."""
        clock = Clock() if clock is None else clock
        if self.solver.refuses(block) is not None:
            return ()
        options: dict[Schedule, LayerOption] = {}
        for problem in self._problems(block):
            if clock.expired:
                break
            outcome = self.solver.solve(problem, clock=clock.nested(), seed=seed)
            schedule = outcome.schedule
            if schedule is not None and schedule not in options and _both_halves(block, schedule):
                options[schedule] = option_of(block, schedule)
        return undominated(options.values())

    def _problems(self, block: Graph) -> Iterator[Problem]:
        """The largest budgets first. The memory kept in between is limited by a workspace of the loss node."""
        everything = Schedule.from_runs(block, range(len(block)))
        high = validate(block, everything).peak
        sizes = {datum.name: 0 if datum.outside else datum.size for datum in block.data}
        loss = block.computes[block.loss]
        low = max(
            sum(sizes[name] for name in (*node.reads, *node.writes)) + node.option.workspace for node in block.computes
        )
        written = sum(sizes[name] for name in loss.writes)
        least = sum(sizes[name] for name in loss.reads)
        most = _resident_at_loss(block, everything)
        for peak in _even(min(low, high), high, self.peaks):
            for save in dict.fromkeys(min(peak, saved) for saved in _even(least, max(least, most), self.saves)):
                room = max(0, peak - written - save)
                yield Problem(graph=_with_workspace(block, room), budget=peak)


def _both_halves(block: Graph, schedule: Schedule) -> bool:
    """Whether the schedule runs a backward node. A plan may omit them where none of their data is kept; that is no option."""
    return any(block.node(run.node).phase is Phase.BACKWARD for run in schedule.runs)


def _even(low: Bytes, high: Bytes, count: int) -> list[Bytes]:
    """`count` values from high down to low."""
    if count == 1:
        return [high]
    return list(dict.fromkeys(high - (high - low) * i // (count - 1) for i in range(count)))


def _resident_at_loss(block: Graph, schedule: Schedule) -> Bytes:
    """Bytes resident while the loss node runs, without what it writes."""
    loss = block.computes[block.loss]
    cost = validate(block, schedule)
    step = next(i for i, run in enumerate(schedule.steps) if getattr(run, "node", None) == loss.name)
    written = sum(block.datum(name).size for name in loss.writes)
    return cost.timeline[step] - written - loss.option.workspace


def _with_workspace(block: Graph, workspace: Bytes) -> Graph:
    loss = block.computes[block.loss]
    option = Option(time=loss.option.time, workspace=loss.option.workspace + workspace)
    nodes = list(block.computes)
    nodes[block.loss] = evolve(loss, options=(option,))
    return evolve(block, computes=tuple(nodes))
