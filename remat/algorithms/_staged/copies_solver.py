"""`HIlp` on a problem with a link: solve the formulation with copies, and time the copies of its plans by replay."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from attrs import frozen

from remat.algorithms._arrays.graph_arrays import row_of
from remat.algorithms._copies.copy_passes import CopiesAlone, RuinCopies, ShaveBoth
from remat.algorithms._copies.copy_search import CopyMove, CopyPlan, CopySearch
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import ClassBound, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._milp.answer import Answer, Floats
from remat.algorithms._milp.backend import Backend, Hints, Limits
from remat.algorithms._milp.milp_model import model_of
from remat.algorithms._staged.form_copies import CopiesForm, copies_form
from remat.algorithms._staged.memory_items import StagedGraph
from remat.algorithms._staged.slots import Reruns, slots_of
from remat.ir import Schedule
from remat.units import Ns

STARTS: Final[tuple[CopyMove, ...]] = (CopiesAlone(), ShaveBoth(best=3), RuinCopies(work=5e5))
"""The short search before the solve."""

PASSES: Final = 3
"""How often the plan of a point is polished."""


@frozen(kw_only=True)
class CopiesSolver:
    """What `HIlp` solves where there is a link.

    Attributes:
        reruns, window, gap, backend: its settings. who: its repr, for the trail. search: whether it starts from a search.
    """

    reruns: Reruns
    window: int | None
    gap: float
    backend: Backend
    who: object
    search: bool

    def plan(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """The best plan of the search and of the solve; the bound is that of a class."""
        search = CopySearch(problem, clock, seed, self.who)
        if start is not None:
            search.offer(search.replayed(*search.runs_of(start)), "the start")
        for move in STARTS if self.search else ():
            if not clock.expired:
                move.improve(search)
        if search.within(0.0) or clock.expired:
            why = "no MILP solve was needed" if search.within(0.0) else "stopped before the MILP solve"
            return Plan(schedule=search.schedule(), trail=(f"{self.who!r}: {why}", *search.trail))
        form = self._form(problem, search, clock)
        if form is None or clock.expired:
            return Plan(
                schedule=search.schedule(), trail=(f"{self.who!r}: stopped before the MILP solve", *search.trail)
            )
        answer = self._solve(form, problem, search, clock)
        bound = self._bound(answer, search, form)
        parts = ["staged schedules with copies of data of one writer, first runs in the graph's order"]
        parts += [] if self.reruns == "all" else [self.reruns]
        parts += [] if self.window is None else [f"window {self.window}"]
        story = f"{self.who!r}: {answer.note}; bound of its class {bound} ns"
        bounds = (ClassBound(value=bound, assumes=", ".join(parts)),) if bound else ()
        return Plan(schedule=search.schedule(), trail=(story, *search.trail), class_bounds=bounds)

    def _form(self, problem: Problem, search: CopySearch, clock: Clock) -> CopiesForm | None:
        """The formulation for schedules that are faster than the best plan; without one, for those that wait for every copy."""
        stage = StagedGraph(problem.graph)
        lanes, overhead = search.lanes, search.overhead
        most = search.base_time + int(lanes.out.sum() + lanes.back.sum()) if overhead is None else overhead
        return copies_form(stage, slots_of(stage, self.reruns, self.window), lanes, most, clock)

    def _solve(self, form: CopiesForm, problem: Problem, search: CopySearch, clock: Clock) -> Answer:
        """Solve, offering the plan of each incumbent."""
        model = model_of(form.form.linear)
        model.set(problem.budget, 0)

        def seen(point: Floats | None, bound: int) -> bool:
            del bound
            if point is not None:
                search.offer(plan_of(form, search, point), "an incumbent")
            return clock.expired

        cutoff = None
        if search.best is not None and self.backend.takes_start:
            cutoff = search.best.time / (1 + self.gap)
        limits = Limits(gap=self.gap, seconds=clock.remaining)
        answer = self.backend.solve(model, limits, Hints(cutoff=cutoff, seen=seen))
        if answer.infeasible and cutoff is None:
            answer = self.backend.solve(model, limits, Hints(second=True, seen=seen))
        if answer.point is not None:
            search.offer(plan_of(form, search, answer.point), "the formulation with copies")
        return answer

    def _bound(self, answer: Answer, search: CopySearch, form: CopiesForm) -> Ns | float:
        """A bound of the class: the solver's, for no more waiting than the formulation has; infinite: no schedule fits."""
        if answer.infeasible and search.best is None:
            return math.inf
        most = math.inf if search.best is None else search.base_time + form.most
        return min(answer.bound, most)


def plan_of(form: CopiesForm, search: CopySearch, point: Floats) -> CopyPlan:
    """The runs of a point and what they read by a copy, polished and timed."""
    slots, flat = form.form.slots, search.flat
    seq: list[int] = []
    mask: list[int] = []
    for slot, (stage, node) in enumerate(zip(slots.stage.tolist(), slots.node.tolist(), strict=True)):
        if not flat.required[node] or (stage != node and point[slots.column[slot]] < 0.5):
            continue
        bits = 0
        for k, datum in enumerate(row_of(flat.reads, node).tolist()):
            column = form.ends.get((datum, slot), -1)
            bits |= int(column >= 0 and point[column] > 0.5) << k
        seq.append(node)
        mask.append(bits)
    runs, masks = np.array(seq, np.int32), np.array(mask, np.int64)
    return search.polished(runs, masks, (0, len(runs)), PASSES)
