"""Offloading alone, and the two heuristics that POFO is compared with. All plan chains with a link, with whole transfers.

What copies may hold on the host is limited where the problem says so; the papers have no such limit.

Reference: POFO (Beaumont, Eyraud-Dubois, Shilova, 2021), section 5.1; offloading alone: the same search without reruns.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, field, frozen

from remat.algorithms._chain.host_memory import held_on_host, host_room, those_with_room
from remat.algorithms._chain.pofo import Pofo
from remat.algorithms._chain.quantise import Quantise
from remat.algorithms._chain.rotor import RotorTable, chain_refusal, keep_all, rotor_values
from remat.algorithms._chain.transfers import Trace, place, trace
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.errors import BudgetExceeded
from remat.ir import Graph, Link, Run, Schedule, validate
from remat.ir.chain import Chain
from remat.settings import whole
from remat.units import Bytes, Ns

_NO_LINK = "the problem has no link; give Problem(link=Link.symmetric(gb_per_s=…))"


@frozen(kw_only=True)
class OffloadOnly(Pofo):
    """POFO's search without recomputation: every stage runs once and saves all; what is offloaded is chosen optimally."""

    _recomputes: ClassVar[bool] = False


@frozen(kw_only=True)
class Autocapper(Solver):
    """Plan with Rotor for more memory than the budget, then offload until the peak fits; try several limits, keep the best.

    `capper` takes a limit above the budget, plans without a link, and offloads the first activation that is resident at the
    peak, until the peak fits. With the largest limit nothing is recomputed.

    Attributes:
        limits: how many limits are tried, evenly spaced from the budget to the peak without recomputation.
        slots: slots of Rotor's table.
    """

    limits: int = field(default=40, validator=whole(1, "limits"))
    slots: int = field(default=500, validator=whole(1, "slots"))

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: it is not a chain."""
        return chain_refusal(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The fastest replay among the limits."""
        if problem.link is None:
            return Plan(trail=(f"{self!r} refused: {_NO_LINK}",))
        chain = Chain(problem.graph)
        high = max(problem.budget, max(trace(chain.graph, all_saved(chain)).charges))
        table = rotor_of(problem, high, self.slots)
        # the last limit is above the rounding of the table, so that nothing is recomputed under it
        limits = [problem.budget + (high - problem.budget) * k // max(1, self.limits - 1) for k in range(self.limits)]
        planned = (runs for runs in map(table.runs, limits) if runs is not None)
        sequences = dict.fromkeys((*planned, all_saved(chain)))
        best: tuple[Ns, Bytes, Schedule] | None = None
        for done, runs in enumerate(sequences, 1):
            replayed = capped(trace(chain.graph, runs), problem)
            if replayed is not None and (best is None or replayed[:2] < best[:2]):
                best = replayed
                clock.report(
                    self, schedule=replayed[2], best=replayed[0], stage="limits", done=done, total=len(sequences)
                )
            if clock.expired:
                break
        note = f"{self!r}: {len(sequences)} sequences of {self.limits} limits"
        return Plan(schedule=None if best is None else best[2], trail=(note,))


def capped(traced: Trace, problem: Problem) -> tuple[Ns, Bytes, Schedule] | None:
    """Offload the first cell that is idle at the peak and has room on the host, until the peak fits: (time, peak, schedule)."""
    charges = list(traced.charges)
    away: set[str] = set()
    room = host_room(problem)
    while max(charges) > problem.budget:
        worst = charges.index(max(charges))
        idle = (
            stay
            for stay in traced.stays
            if 0 < stay.size <= room and stay.cell not in away and stay.leaves < worst < stay.wanted
        )
        stay = next(idle, None)
        if stay is None:
            return None
        away.add(stay.cell)
        room -= stay.size
        for k in range(stay.leaves + 1, stay.wanted):
            charges[k] -= stay.size
    return _replayed(traced, away, problem)


def _replayed(traced: Trace, away: set[str], problem: Problem) -> tuple[Ns, Bytes, Schedule] | None:
    assert problem.link is not None
    schedule = place(traced, away, problem.budget, problem.link)
    if schedule is None or held_on_host(traced, away) > host_room(problem):
        return None
    try:
        cost = validate(traced.graph, schedule, problem.budget, problem.link)
    except BudgetExceeded:
        return None
    return cost.time, cost.peak, schedule


@frozen(kw_only=True)
class Opportunist(Solver):
    """Keep the link busy: save and offload one stage, run without saving while its copies last, and so on until the rest fits.

    The backward of each group of stages that ran without saving is Rotor's.

    Attributes:
        slots: slots of Rotor's table.
    """

    slots: int = field(default=500, validator=whole(1, "slots"))

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: it is not a chain."""
        return chain_refusal(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The one schedule of the policy, when it fits."""
        if problem.link is None:
            return Plan(trail=(f"{self!r} refused: {_NO_LINK}",))
        chain = Chain(problem.graph)
        groups, rest = grouped(chain, problem.budget, problem.link)
        runs = opportunist_runs(chain, groups, rest, rotor_of(problem, problem.budget, self.slots), problem.budget)
        note = f"{self!r}: {len(groups)} stages offloaded, {len(chain) - rest} kept"
        if runs is None:
            return Plan(trail=(f"{note}; the backward of a group does not fit",))
        away: set[str] = set()
        for start, _ in groups:
            stage = chain.stages[start]
            away |= {stage.phantom, stage.output} | ({chain.stages[start - 1].output} if start else set())
        traced = trace(chain.graph, runs)
        replayed = _replayed(traced, those_with_room(traced, away, host_room(problem)), problem)
        return Plan(schedule=None if replayed is None else replayed[2], trail=(note,))


def grouped(chain: Chain, budget: Bytes, link: Link) -> tuple[list[tuple[int, int]], int]:
    """Groups (the stage that saves, the end of the no-save forwards after it), and the first stage of the rest."""
    options = keep_all(chain)
    fits = _fitting_suffix(chain, budget)
    groups: list[tuple[int, int]] = []
    now = lane = at = 0
    while at < fits:
        stage, option = chain.stages[at], options[at][0]
        now += stage.options[option].forward
        for size in (stage.input_size, stage.options[option].phantom, stage.output_size):
            if size:
                lane = max(lane, now) + link.offload_time(size)
        behind = at + 1
        while behind < fits and now < lane:
            now += chain.stages[behind].no_save.time
            behind += 1
        groups.append((at, behind))
        at = behind
    return groups, at


def _fitting_suffix(chain: Chain, budget: Bytes) -> int:
    """The first stage from which on all can be saved, with nothing else resident but the stage's input."""
    options = keep_all(chain)
    need = chain.loss_needs + chain.kept_before[-1]  # of what comes after, without the input of the current stage
    first = len(chain)
    for i in reversed(range(len(chain))):
        stage, option = chain.stages[i], options[i][0]
        forward = stage.forward_needs(option) + chain.kept_before[i]
        backward = stage.backward_needs(option) + chain.after[i]
        need = max(need + stage.saves(option), forward, backward)
        if need + stage.input_size > budget:
            return first
        first = i
    return first


def opportunist_runs(
    chain: Chain, groups: list[tuple[int, int]], rest: int, table: RotorTable, budget: Bytes
) -> tuple[Run, ...] | None:
    """The runs of the policy; None when Rotor has no backward for some group."""
    options = keep_all(chain)
    stages = chain.stages
    runs: list[Run] = []
    for start, end in groups:
        runs.append(Run(stages[start].forward, options[start][0]))
        runs += [Run(stage.forward, len(stage.options)) for stage in stages[start + 1 : end]]
    runs += [Run(stages[i].forward, options[i][0]) for i in range(rest, len(chain))]
    runs.append(Run(chain.loss, chain.loss_option))
    runs += [Run(stages[i].backward, options[i][0]) for i in reversed(range(rest, len(chain)))]
    for start, end in reversed(groups):
        if end > start + 1:
            inner = table.part(start + 1, end - 1, budget - stages[start].output_size)
            if inner is None:
                return None
            runs += inner
        runs.append(Run(stages[start].backward, options[start][0]))
    return tuple(runs)


def all_saved(chain: Chain) -> tuple[Run, ...]:
    """The runs without recomputation."""
    options = keep_all(chain)
    forward = [Run(stage.forward, o) for stage, (o,) in zip(chain.stages, options, strict=True)]
    backward = [Run(stage.backward, o) for stage, (o,) in zip(chain.stages, options, strict=True)]
    return (*forward, Run(chain.loss, chain.loss_option), *reversed(backward))


def rotor_of(problem: Problem, budget: Bytes, slots: int) -> RotorTable:
    """Rotor's table of the problem's chain, rounded to slots of a budget; its runs are runs of the chain."""
    coarse = Quantise(slots).apply(evolve(problem, budget=budget)).problem
    chain = Chain(coarse.graph)
    return rotor_values(chain, coarse.budget, keep_all(chain))
