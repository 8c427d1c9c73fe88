"""POFO: rematerialization and offloading of chains, optimal among persistent schedules that offload before the loss only.

The class (POFO, section 3.2): persistent schedules; whole inputs of stages leave before the loss and come back after it;
transfers are continuous: memory is freed and taken byte by byte. The search plans in that class; its plan is then written
with whole transfers and replayed, and the trail states both times.
Time O(L^2 N^3 + L^3 N^2), memory O(L^2 N^2 + L N^3) for L stages and N slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

import numpy as np
from attrs import evolve, field, frozen

from remat.algorithms._chain.chain_arrays import ChainArrays, Ints, arrays_of
from remat.algorithms._chain.host_memory import held_on_host, host_room, slower_links, within_host
from remat.algorithms._chain.pofo_kernels import (
    INFINITE,
    Lanes,
    Moves,
    States,
    Table,
    add_span,
    block_start,
    pair_of,
    row_start,
    search_layer,
    state_of,
)
from remat.algorithms._chain.quantise import Quantise
from remat.algorithms._chain.rotor import chain_refusal, keep_all
from remat.algorithms._chain.transfers import Trace, fluid, place, rounded, trace
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.errors import BudgetExceeded
from remat.ir import Graph, Link, Run, Schedule, validate
from remat.ir.chain import Chain
from remat.settings import optional, whole
from remat.units import Bytes, GiB, Ns, format_bytes

CLASS = "persistent schedules that offload inputs of stages before the loss, with continuous transfers"

_SECOND = 10**9

_SLOTS: int | None = 50
"""As in the paper."""

_BEYOND = 5
"""How many slots less than the first plan that fits are tried."""


Choice = tuple[tuple[float, int], list[tuple[int, int, int, int]]]
"""A way to begin a sub-chain: its value and moves, and the parts that follow as arguments (i, j, a, delta)."""


def moves_of(arrays: ChainArrays, bandwidth: int | None, copies: bool) -> Moves:
    """What one lane of the link moves while a chain runs [bandwidth in bytes per second]; without copies, nothing."""
    count = arrays.stages
    if not copies or bandwidth is None:
        each = arrays.slots + 1 if copies else 0
        flat = np.full(count, each, dtype=np.int64)
        return Moves(forward=flat, backward=flat, no_save=np.arange(count + 1) * each, loss=each, per_slot=0.0)

    def cumulated(times: Ints) -> Ints:
        sums = [0]
        for time in times.tolist():
            sums.append(sums[-1] + time)
        # more than all slots never matters; whole slots of the cumulated time, so that errors do not add up
        whole = [total * bandwidth // (_SECOND * arrays.unit) for total in sums]
        steps = [min(after - before, arrays.slots + 1) for before, after in pairwise(whole)]
        return np.cumsum([0, *steps]).astype(np.int64)

    return Moves(
        forward=np.diff(cumulated(arrays.forward_time)),
        backward=np.diff(cumulated(arrays.backward_time)),
        no_save=cumulated(arrays.no_save_time),
        loss=min(arrays.loss_time * bandwidth // (_SECOND * arrays.unit), arrays.slots + 1),
        per_slot=arrays.unit * _SECOND / bandwidth,
    )


@frozen(kw_only=True)
class Decision:
    """One step of the forward phase.

    Attributes:
        stage: the stage whose input is held.
        last: the last stage that runs without saving; None: the stage runs once and saves all.
        offload: whether the input leaves. a_with_input, owed: A with the input, and dB, in the state before [slots].
    """

    stage: int
    saving: bool
    last: int | None
    offload: bool
    a_with_input: int
    owed: int


@frozen(kw_only=True)
class PofoPlan:
    """The result of the search: its value [ns], the runs, and for each offloaded cell the run after which its copy may start."""

    value: float
    runs: tuple[Run, ...]
    away: dict[str, int]


class PofoTables:
    """The tables of one chain, budget and link.

    Args:
        chain, budget, link: what is planned.
        recompute: whether stages may be recomputed; without, only offloading is planned.
        clock: ends the tables, and searches in them; then there are no plans.
    """

    def __init__(
        self,
        chain: Chain,
        budget: Bytes,
        link: Link | None,
        *,
        recompute: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.chain, self.clock = chain, Clock() if clock is None else clock
        self.arrays = arrays = arrays_of(chain, budget, keep_all(chain), freeing=False)
        self.copies = link is not None
        self.out = moves_of(arrays, None if link is None else link.to_host, self.copies)
        self.back = moves_of(arrays, None if link is None else link.to_device, self.copies)
        pairs, width = arrays.stages * (arrays.stages + 1) // 2, row_start(arrays.slots + 1, arrays.slots)
        value = np.full((pairs, width if recompute else 1), INFINITE)
        self.table = Table(value, np.zeros(value.shape, dtype=np.int32))
        self.recompute = recompute
        for span in range(arrays.stages if recompute else 0):
            if self.clock.expired:
                break
            add_span(arrays, self.back, arrays.slots if self.copies else 0, self.table, span)

    def plan(self, aside: int = 0) -> PofoPlan | None:
        """The least fluid time and how to get it, without using `aside` slots.

        None when nothing of the class fits, or when the clock has expired.
        """
        arrays = self.arrays
        if aside > arrays.slots:
            return None
        block = block_start(arrays.slots + 1, arrays.slots)
        count = 2 * (arrays.stages + 1) * block
        states = States(np.full(count, INFINITE), np.full(count, -1, np.int64), np.empty(block))
        states.cost[state_of(0, aside, 0, 0, arrays.slots)] = 0.0
        lanes = Lanes(self.out, self.back, self.copies, self.recompute)
        value, state = INFINITE, -1
        for layer in range(2 * arrays.stages + 2):
            if self.clock.expired:
                return None
            value, state = min((value, state), search_layer(arrays, lanes, self.table, states, aside, layer))
        if state < 0:
            return None
        path = []
        while state >= 0:
            path.append(self._decoded(int(state)))
            state = states.came[state]
        path.reverse()
        decisions = [self._decision(origin, target) for origin, target in pairwise(path)]
        runs, away = self._written(decisions)
        return PofoPlan(value=float(value), runs=runs, away=away)

    def _decoded(self, state: int) -> tuple[int, int, int, int]:
        """(layer, A, dF, dB) of a state."""
        slots = self.arrays.slots
        layer, rest = divmod(state, int(block_start(slots + 1, slots)))
        a = next(a for a in range(slots, -1, -1) if block_start(a, slots) <= rest)
        df, db = divmod(rest - int(block_start(a, slots)), slots - a + 1)
        assert state_of(layer, a, df, db, slots) == state
        return layer, a, df, db

    def _decision(self, origin: tuple[int, int, int, int], target: tuple[int, int, int, int]) -> Decision:
        stage, saved = divmod(origin[0], 2)
        following, saving = divmod(target[0], 2)
        size = int(self.arrays.saves[stage - 1] if saved else self.arrays.input_size[stage])
        return Decision(
            stage=stage,
            saving=bool(saved),
            last=None if saving else following - 1,
            offload=size > 0 and target[1] == origin[1],
            a_with_input=origin[1] + size,
            owed=origin[3],
        )

    def _written(self, decisions: list[Decision]) -> tuple[tuple[Run, ...], dict[str, int]]:
        chain, options = self.chain, keep_all(self.chain)
        runs: list[Run] = []
        away: dict[str, int] = {}
        for decision in decisions:
            if decision.offload:
                before = chain.stages[decision.stage - 1]
                away[before.output] = len(runs)
                if decision.saving:
                    away[before.phantom] = len(runs)
            stage = chain.stages[decision.stage]
            if decision.last is None:
                runs.append(Run(stage.forward, options[decision.stage][0]))
            else:
                no_save = chain.stages[decision.stage : decision.last + 1]
                runs += [Run(each.forward, len(each.options)) for each in no_save]
        runs.append(Run(chain.loss, chain.loss_option))
        for decision in reversed(decisions):
            if decision.last is None:
                runs.append(Run(chain.stages[decision.stage].backward, options[decision.stage][0]))
            else:
                runs += self._segment(decision.stage, decision.last, decision.a_with_input, decision.owed)
        return tuple(runs), away

    # -- the backward phase --------------------------------------------------------------------------------------------

    def _at(self, i: int, j: int, a: int, delta: int) -> tuple[float, int]:
        at = row_start(a, self.arrays.slots) + delta
        pair = pair_of(i, j, self.arrays.stages)
        return float(self.table.value[pair, at]), int(self.table.moved[pair, at])

    def _segment(self, i: int, j: int, a: int, delta: int) -> list[Run]:
        """The runs of C(i, j, A, Delta), with a stack of its own."""
        options = keep_all(self.chain)
        runs: list[Run] = []
        todo: list[Run | tuple[int, int, int, int]] = [(i, j, a, delta)]
        while todo:
            item = todo.pop()
            if isinstance(item, Run):
                runs.append(item)
                continue
            i, j, a, delta = item
            target = self._at(*item)
            parts = next(parts for value, parts in self._choices(i, j, a, delta) if value == target)
            stage = self.chain.stages[i]
            if len(parts) == 2:
                runs += [Run(each.forward, len(each.options)) for each in self.chain.stages[i : parts[1][1] + 1]]
                todo += [parts[1], parts[0]]
            else:
                runs.append(Run(stage.forward, options[i][0]))
                todo.append(Run(stage.backward, options[i][0]))
                todo += parts
        return runs

    def _choices(self, i: int, j: int, a: int, delta: int) -> Iterator[Choice]:
        """Each way to begin C(i, j, A, Delta): its value and moves, and the parts that follow, the first to run first."""
        arrays, back, slots = self.arrays, self.back, self.arrays.slots
        need_f, need_b = int(arrays.forward[i] + arrays.after[j]), int(arrays.backward[i] + arrays.after[i])
        once = int(arrays.forward_time[i]) + int(arrays.backward_time[i])
        moves = int(back.forward[i]) + int(back.backward[i])
        if max(need_f, need_b) + a <= slots:
            wait_b = max(need_b + a + delta - slots, 0)
            if i == j:
                wait = max(wait_b, need_f - int(back.backward[i]) + a + delta - slots)
                yield (once + wait * back.per_slot, moves + wait), []
            elif a + int(arrays.saves[i]) <= slots:
                rest, deep = max(delta - int(back.backward[i]) - wait_b, 0), a + int(arrays.saves[i])
                if rest <= slots - deep:
                    value, moved = self._at(i + 1, j, deep, rest)
                    wait = wait_b + max(need_f + a + max(rest - moved, 0) - slots, 0)
                    yield (once + value + wait * back.per_slot, moves + moved + wait), [(i + 1, j, deep, rest)]
        yield from self._checkpointed(i, j, a, delta)

    def _checkpointed(self, i: int, j: int, a: int, delta: int) -> Iterator[Choice]:
        """The ways to begin C(i, j, A, Delta) that run stages without saving anything, up to an input that is held."""
        arrays, back, slots = self.arrays, self.back, self.arrays.slots
        cost, behind, needed = 0.0, 0, 0
        for k in range(i, j):
            cost += int(arrays.no_save_time[k])
            need = int(arrays.no_save_needs[k] + arrays.after[j]) + (int(arrays.input_size[k]) if k > i else 0)
            needed = max(needed, need)
            behind = max(behind - int(back.no_save[k + 1] - back.no_save[k]), need) if k > i else need
            deep = a + int(arrays.input_size[k + 1])
            if needed + a > slots or deep > slots:
                continue
            early, early_moved = self._at(i, k, a, delta)
            rest = max(delta - early_moved, 0)
            if rest > slots - deep or early >= INFINITE:
                continue
            late, late_moved = self._at(k + 1, j, deep, rest)
            wait = max(behind + a + max(rest - late_moved, 0) - slots, 0)
            total = cost + early + late + wait * back.per_slot
            moved = int(back.no_save[k + 1] - back.no_save[i]) + early_moved + late_moved + wait
            yield (total, moved), [(k + 1, j, deep, rest), (i, k, a, delta)]


def table_bytes(stages: int, slots: int, recompute: bool = True) -> Bytes:
    """Bytes of the tables."""
    table = 12 * (stages * (stages + 1) // 2) * row_start(slots + 1, slots) if recompute else 0
    return int(table + 16 * 2 * (stages + 1) * block_start(slots + 1, slots))


@frozen(kw_only=True)
class Pofo(Solver):
    """Optimal combination of rematerialization and offloading in the class of the paper, written with whole transfers.

    The link is the problem's; without one nothing is offloaded and the class is Rotor's. The paper has no limit of the host:
    where the problem has one and the plan does not keep it, copies that the device has room for are left out, and then the
    search is repeated with slower lanes to the host, which offload less.

    Attributes:
        slots: slots of the budget, sizes rounded to the nearest with the error carried on (`Quantise`); plans for a few slots
            more and less are replayed with the true sizes and the fastest is kept; at last all sizes are rounded up. None:
            one slot per unit of the chain's sizes, exactly.
        table_limit: most bytes of the tables; more is refused with the remedy.
    """

    slots: int | None = field(default=_SLOTS, validator=optional(whole(1, "slots")))
    table_limit: Bytes = field(default=4 * GiB, validator=whole(0, "bytes"))
    _recomputes: ClassVar[bool] = True

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: it is not a chain, or its times exceed 64-bit words."""
        return chain_refusal(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The plan of the search with whole transfers; the trail compares its fluid time with the replay."""
        plan = self._plan_with(problem, problem.link, clock)
        for link in slower_links(problem):
            if plan.schedule is not None or clock.expired:
                break
            plan = self._plan_with(problem, link, clock)
        return plan

    def _plan_with(self, problem: Problem, link: Link | None, clock: Clock) -> Plan:
        """The plan of a search with another link, which may be slower than the problem's; the replay has the problem's."""
        searched = evolve(problem, link=link, host_budget=None)
        if self.slots is None:
            return self._best_replay(problem, searched, clock, 0, 1)
        near = Quantise(self.slots, carry=True).apply(searched).problem
        plan = self._best_replay(problem, near, clock, self.slots // 12, self.slots // 2)
        if plan.schedule is not None or clock.expired:
            return plan
        return self._best_replay(problem, Quantise(self.slots).apply(searched).problem, clock, 0, 1)

    def _best_replay(self, problem: Problem, coarse: Problem, clock: Clock, more: int, tries: int) -> Plan:
        """The fastest replay of the plans of a coarse problem for `more` slots above the budget, one less, and so on.

        Rounded sizes are off by a few slots: a plan for more than the budget may fit, and one for less may copy better.
        The search ends a few slots below the first plan that fits. One table serves all of it.
        """
        chain = Chain(coarse.graph)
        unit = arrays_of(chain, coarse.budget, keep_all(chain), freeing=False).unit
        budget = coarse.budget + more * unit
        arrays = arrays_of(chain, budget, keep_all(chain), freeing=False)
        size = table_bytes(len(chain), arrays.slots, self._recomputes)
        if size > self.table_limit:
            what = f"{len(chain)} stages and {arrays.slots} slots need tables of {format_bytes(size)}"
            return Plan(trail=(f"{self!r} refused: {what}; give slots=…, e.g. 50",))
        tables = PofoTables(chain, budget, coarse.link, recompute=self._recomputes, clock=clock)
        plan = Plan()
        best: tuple[Ns, Plan] | None = None
        aside = 0
        while aside < tries and not clock.expired:
            searched = tables.plan(aside)
            if searched is None:
                break
            plan, over = self._written(problem, searched)
            if plan.schedule is not None:
                time = validate(problem.graph, plan.schedule, problem.budget, problem.link).time
                best = (time, plan) if best is None or time < best[0] else best
                tries = min(tries, aside + _BEYOND)
            aside += 1 if best is not None else max(1, over // arrays.unit // 2)
        if best is None and not plan.trail:
            ended = "stopped without a plan" if clock.expired else "nothing of its class fits"
            plan = Plan(trail=(f"{self!r}: {ended} ({CLASS})",))
        return plan if best is None else best[1]

    def _written(self, problem: Problem, searched: PofoPlan) -> tuple[Plan, Bytes]:
        """The plan on the true sizes, and by how many bytes it exceeds the budget."""
        traced = trace(problem.graph, searched.runs)
        exact = fluid(traced, searched.away, problem.budget, problem.link)
        note = f"{self!r}: {rounded_text(searched.value)} by the search ({CLASS})"
        if exact is not None:
            note += f", {rounded(exact[0])} ns as a fluid"
        over = max(traced.without(searched.away)) - problem.budget
        if problem.link is None:
            return Plan(schedule=place(traced, (), problem.budget, Link()), trail=(note,)), over
        return with_transfers(problem, traced, searched.away, note), over


def with_transfers(problem: Problem, traced: Trace, away: Mapping[str, int], note: str) -> Plan:
    """The plan with whole transfers, and the replayed time in the trail, next to that of the search.

    Copies that are not needed are left out: each group of copies is tried without, the first to start first.
    """
    assert problem.link is not None
    gone = within_host(problem, traced, away)
    best = _replayed(problem, traced, gone)
    if isinstance(best, str):
        return Plan(trail=(f"{note}; with whole transfers it does not fit: {best}",))
    for start in dict.fromkeys(away.values()):
        fewer = {cell: at for cell, at in gone.items() if at != start}
        if max(traced.without(fewer)) <= problem.budget:
            other = _replayed(problem, traced, fewer)
            if not isinstance(other, str) and other[0] <= best[0]:
                gone, best = fewer, other
    return Plan(schedule=best[1], trail=(f"{note}, {best[0]} ns replayed with whole transfers",))


def _replayed(problem: Problem, traced: Trace, away: Mapping[str, int]) -> tuple[Ns, Schedule] | str:
    """(time, schedule) of whole transfers, or why they do not fit."""
    assert problem.link is not None
    hosted = held_on_host(traced, away)
    if hosted > host_room(problem):
        return f"its copies hold {hosted} B on the host, which may hold {problem.host_budget} B"
    schedule = place(traced, away, problem.budget, problem.link)
    if schedule is None:
        return "a run needs more than the budget"
    try:
        return validate(problem.graph, schedule, problem.budget, problem.link).time, schedule
    except BudgetExceeded as error:
        return error.what


def rounded_text(value: float) -> str:
    """A value of the search as text for the trail."""
    return f"{value:.0f} ns"
