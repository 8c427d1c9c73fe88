"""Many budgets give options: `s.sweep(peaks=, saves=)` offers a block to the level above.

A block is a flat graph whose loss node stands for the rest of the network (`remat.ir.part`). A schedule of it is an option:
its time, its memory while it runs, and the memory it keeps in between. Reference: Rockmate, section 3.3 (block budgets);
HiRemate, section 3.2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from attrs import evolve, field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Outcome
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.wording import operand
from remat.ir import Graph, LayerOption, Option, Phase, Schedule, option_of, validate
from remat.ir.arguments import AN_OPTION
from remat.settings import MANY, SECONDS, each_of, instance, takes, whole
from remat.units import Bytes

SHARE = 2.0
"""Most time that one budget of a sweep with a deadline may take, over the time left for each budget: many need almost none."""


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

    def within(self, seconds: float) -> OptionSource:
        """This source with a deadline for each block; of nested deadlines, the earlier counts."""
        return Limited(self, seconds)


@frozen
class Limited(OptionSource):
    """A source of options with a deadline in seconds for each block."""

    source: OptionSource = field(validator=instance(OptionSource, "quick.sweep(peaks=4, saves=4)"))
    seconds: float = field(validator=SECONDS)

    def __repr__(self) -> str:
        return f"{operand(self.source)}.within({self.seconds!r})"

    def options(self, block: Graph, *, clock: Clock | None = None, seed: int = 0) -> tuple[LayerOption, ...]:
        """Those that the source finds by the earlier of the two deadlines."""
        outer = Clock() if clock is None else clock
        return self.source.options(block, clock=outer.nested(self.seconds), seed=seed)


@takes(options=MANY)
def undominated(options: Iterable[LayerOption]) -> tuple[LayerOption, ...]:
    """The options that no other option dominates, in order of time; of equal options the first stays."""
    ranked = sorted(each_of(options, AN_OPTION, "undominated: options"), key=_rank)
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


def selected(options: Sequence[LayerOption], most: int) -> tuple[LayerOption, ...]:
    """At most so many of the options, with peaks as far apart as possible, in their order.

    The rule of HiRemate (2024), section 3.2.2: first the highest peak, then the lowest, then always the one whose nearest peak
    among those chosen is farthest; of equal ones the first.
    """
    if len(options) <= most:
        return tuple(options)
    peaks = [option.phantom + max(option.forward_workspace, option.backward_workspace) for option in options]
    chosen = [max(range(len(options)), key=peaks.__getitem__)]
    while len(chosen) < most:
        left = [i for i in range(len(options)) if i not in chosen]
        chosen.append(max(left, key=lambda i: min(abs(peaks[i] - peaks[j]) for j in chosen)))
    return tuple(options[i] for i in sorted(chosen))


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
        return self.options_of_level(block, block, lambda schedule: schedule, clock=clock, seed=seed)

    def options_of_level(
        self,
        block: Graph,
        level: Graph,
        expand: Callable[[Schedule], Schedule],
        *,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> tuple[LayerOption, ...]:
        """The options of a block that is planned as another graph with the same loss node, its layers for instance.

        Args:
            block: the flat graph.
            level: what the solver plans.
            expand: makes a schedule of the block of one of the level.
            clock: how long to search, the time left divided among the budgets left.
            seed: of the solver.
        """
        clock = Clock() if clock is None else clock
        if self.solver.refuses(level) is not None:
            return ()
        options: dict[Schedule, LayerOption] = {}
        budgets = list(self._budgets(block))
        for left, (peak, room) in zip(range(len(budgets), 0, -1), budgets, strict=True):
            if clock.expired:
                break
            share = None if math.isinf(clock.remaining) else SHARE * clock.remaining / left
            problem = Problem(graph=_with_workspace(level, room), budget=peak)
            outcome = self.solver.solve(problem, clock=clock.nested(share), seed=seed)
            schedule = None if outcome.schedule is None else expand(outcome.schedule)
            if schedule is not None and schedule not in options and both_halves(block, schedule):
                options[schedule] = option_of(block, schedule)
        return undominated(options.values())

    def _budgets(self, block: Graph) -> Iterator[tuple[Bytes, Bytes]]:
        """Pairs of a peak and a workspace of the loss node, which limits the memory kept in between; the largest first."""
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
                yield peak, max(0, peak - written - save)


def both_halves(block: Graph, schedule: Schedule) -> bool:
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
