"""`WithCopies`: a planner for problems with a link, around one for problems without."""

from __future__ import annotations

import logging
from typing import ClassVar

from attrs import define, evolve, field, frozen

from remat.algorithms._copies.copy_arrays import MOST_READS
from remat.algorithms._copies.copy_passes import (
    BoundMarks,
    CopiesAlone,
    LargerBudgets,
    ReplaceReruns,
    RuinCopies,
    ShaveBoth,
    ShavePostponed,
)
from remat.algorithms._copies.copy_search import CopyMove, CopySearch
from remat.algorithms._copies.fixed_options import FixedOptions
from remat.algorithms._copies.link_passes import LinkFloor, LinkInstants
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import ClassBound, Outcome, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import FromStart, Solver, a_solver, as_plan, with_start
from remat.algorithms._core.wording import indented
from remat.errors import InvalidSchedule
from remat.ir import Graph, Prefetch, Schedule, validate
from remat.settings import instance, optional, tuple_of
from remat.units import Ns

WITHOUT_COPIES = "no copies over the link"
"""The class of schedules that bounds of the problem without its link are of."""

_SHARE = 0.4  # of the time that is left, for the plan without copies, and for each choice of options
_QUICK: tuple[CopyMove, ...] = (LinkFloor(), CopiesAlone())
_MOVES: tuple[CopyMove, ...] = (
    ReplaceReruns(),
    ShaveBoth(),
    ShavePostponed(),
    LinkInstants(),
    BoundMarks(),
    LargerBudgets(),
    RuinCopies(),
    RuinCopies(unless=0.005, temperature=0.002, disorder=0.3, gathering=0.2),
    RuinCopies(work=6e7, unless=0.02, disorder=0.3, gathering=0.2, most=6000, searches=3),
    RuinCopies(work=6e7, temperature=0.002, unless=0.005, disorder=0.3, gathering=0.2, most=6000),
    ReplaceReruns(),
)


logger = logging.getLogger(__name__)
"""Logs plans that the validator does not confirm (INFO)."""


@frozen(repr=False)
class WithCopies(FromStart):
    """Plans copies over the link together with recomputation; without a link, what `plain` plans.

    Copies alone are tried first, since a fast link needs nothing else. The plan of `plain` for the problem without the link is
    one start of the search, so the result is never slower than it. Bounds hold for every schedule with copies; those of
    `plain` are reported as a class bound. On a graph with layers or options copies are planned with options chosen before (those
    of the plan of `plain`, the fastest, and a mixture), phantoms being copied like data; `WithCopies(hierarchical(…))` plans
    them on the flat graph, from the plan of the hierarchy.

    Attributes:
        plain: plans without copies.
        moves: the passes after that, in order.
        rough: plans without copies in little time, for `LargerBudgets`; None: that pass does nothing.
        thorough: takes its place where no plan without copies exists, which copies could begin from; None: nothing does.
    """

    models_link: ClassVar[bool] = True

    plain: Solver = field(validator=a_solver)
    moves: tuple[CopyMove, ...] = field(default=_MOVES, validator=tuple_of(instance(CopyMove, "ShaveBoth()")))
    rough: Solver | None = field(default=None, validator=optional(a_solver))
    thorough: Solver | None = field(default=None, validator=optional(a_solver))

    def __repr__(self) -> str:
        more = "" if self.moves == _MOVES else f", {self.moves!r}"
        rough = "" if self.rough is None else f", rough={self.rough!r}"
        thorough = "" if self.thorough is None else f", thorough={self.thorough!r}"
        return f"WithCopies({self.plain!r}{more}{rough}{thorough})"

    def refuses(self, graph: Graph) -> str | None:
        """What its solver without copies refuses."""
        return self.plain.refuses(graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """Those of its solver; with a link, its passes come after them."""
        passes = indented("with a link, then:", tuple(map(repr, self.moves)))
        return (*self.plain.outline(graph), *passes)

    @property
    def takes_start(self) -> bool:
        """Whether its solver does."""
        return self.plain.takes_start

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """The plan of its solver, or with a link the best plan with copies."""
        if problem.link is None:
            return as_plan(with_start(self.plain, start).solve(problem, clock=clock, seed=seed))
        if not problem.graph.flat:
            return self._with_options(problem, start, clock, seed)
        reason = leaves_out(problem.graph)
        if reason is not None:
            outcome = with_start(self.plain, start).solve(problem, clock=clock, seed=seed)
            return as_plan(evolve(outcome, trail=(*outcome.trail, f"{self!r} plans no copies: {reason}")))
        search = CopySearch(problem, clock, seed, self, self.rough)
        self._improve(search, _QUICK)
        if search.within(0.0):
            return _plan(search, Outcome())
        plain = self._without_copies(search, start)
        self._improve(search, self.moves)
        return _plan(search, plain)

    def _without_copies(self, search: CopySearch, start: Schedule | None) -> Outcome:
        """Solve the problem without the link and offer its plan; so is the start, with its copies."""
        problem, clock = search.problem, search.clock
        if start is not None:
            search.offer(search.replayed(*search.runs_of(start)), "the start")
        if start is not None and any(isinstance(step, Prefetch) for step in start.steps):
            start = None
        aside = _part(clock)
        bare = evolve(problem, link=None, host_budget=None, proof_leaves=0)
        outcome = with_start(self.plain, start).solve(bare, clock=aside, seed=search.seed)
        search.trail += outcome.trail
        search.plain_gap = float("inf") if outcome.gap is None else outcome.gap
        search.plain_effort = aside.effort
        if outcome.schedule is not None:
            search.offer(search.replayed(*search.runs_of(outcome.schedule)), f"{self.plain!r} without copies")
        search.rough = self._for_larger_budgets(outcome)
        return outcome

    def _for_larger_budgets(self, plain: Outcome) -> Solver | None:
        """What plans without copies for larger budgets."""
        return self.rough if plain.schedule is not None or self.thorough is None else self.thorough

    def _with_options(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """A plan of a graph with layers or options: copies are planned on flat graphs with options chosen before.

        Chosen are the fastest, which keep most, for copies to take away; those of the plan without copies; and of the layers that
        the first plan with copies runs again those of the plan without, of the others the fastest.
        """
        best = _Best(self, problem, clock)
        best.offer(start, "the start")
        aside = _part(clock)
        bare = evolve(problem, link=None, host_budget=None, proof_leaves=0)
        copies = start is not None and any(isinstance(step, Prefetch) for step in start.steps)
        plain = with_start(self.plain, None if copies else start).solve(bare, clock=aside, seed=seed)
        best.offer(plain.schedule, f"{self.plain!r} without copies")
        fastest = FixedOptions.fastest(problem.graph)
        first = self._by_options(best, fastest, plain, aside.effort, seed)
        if plain.schedule is not None and not best.least:
            chosen = fastest.where(plain.schedule)
            self._by_options(best, chosen, plain, aside.effort, seed)
            if first is not None:
                self._by_options(best, fastest.mixed(chosen, first), plain, aside.effort, seed)
        trail = (*plain.trail, *best.trail)
        return Plan(schedule=best.schedule, lower=best.lower, trail=trail, class_bounds=_of_class(plain))

    def _by_options(
        self, best: _Best, chosen: FixedOptions, plain: Outcome, effort: float, seed: int
    ) -> Schedule | None:
        """Plan copies on a graph with these options, and offer the plan to `best`; its schedule there, None without one."""
        graph = chosen.graph
        if leaves_out(graph) is not None or graph in best.seen or (best.clock.expired and best.schedule is not None):
            return None
        best.seen.append(graph)
        problem = evolve(best.problem, graph=graph, proof_leaves=0)
        search = CopySearch(problem, _part(best.clock), seed, self, self._for_larger_budgets(plain))
        search.plain_gap, search.plain_effort = float("inf") if plain.gap is None else plain.gap, effort
        try:
            self._improve(search, _QUICK)
            if not search.within(0.0) and plain.schedule is not None:
                search.offer(
                    search.replayed(*search.runs_of(chosen.fixed(plain.schedule))), f"{self.plain!r} without copies"
                )
            self._improve(search, self.moves)
        finally:  # an interruption keeps what was found
            schedule = search.schedule()
            if schedule is not None:
                for unsaved in (True, False):
                    best.offer(chosen.lifted(schedule, unsaved=unsaved), search.trail[-1])
        return schedule

    def _improve(self, search: CopySearch, moves: tuple[CopyMove, ...]) -> None:
        for move in moves:
            late = search.clock.expired
            if search.within(search.close if search.large else 0.0) or (late and search.best is not None):
                return
            if late and move.purpose == "bound":
                continue
            began = search.clock.elapsed
            move.improve(search)
            search.clock.charge(move.purpose, search.clock.elapsed - began)


def _part(clock: Clock) -> Clock:
    """A nested clock for work on another problem, with a share of the time that is left."""
    return clock.aside(None if clock.remaining == float("inf") else clock.remaining * _SHARE)


@define
class _Best:
    """The fastest plan of a graph with layers or options so far.

    Attributes:
        who, problem, clock: of the solve.
        schedule, time: the plan; None: there is none.
        trail: a line per improvement. seen: flat graphs that copies were planned on.
    """

    who: object
    problem: Problem
    clock: Clock
    schedule: Schedule | None = None
    time: Ns | None = None
    trail: list[str] = field(factory=list)
    seen: list[Graph] = field(factory=list)

    @property
    def lower(self) -> Ns:
        """Every node that must run does, by its fastest option at best."""
        graph = self.problem.graph
        return sum(min(option.time for option in graph.computes[i].options) for i in graph.required)

    @property
    def least(self) -> bool:
        """Whether no plan is faster."""
        return self.time is not None and self.time <= self.lower

    def offer(self, schedule: Schedule | None, how: str) -> None:
        """Take a schedule that is valid, fits and is faster."""
        if schedule is None:
            return
        problem = self.problem
        try:
            cost = validate(problem.graph, schedule, problem.budget, problem.link)
        except InvalidSchedule as error:
            logger.info("%s: %s", how, error)
            return
        fits = problem.host_budget is None or cost.host_peak <= problem.host_budget
        if fits and (self.time is None or cost.time < self.time):
            self.schedule, self.time = schedule, cost.time
            self.trail.append(f"{how} (with layers or options: {cost.time} ns)")
            self.clock.report(self.who, schedule=schedule, best=cost.time, bound=self.lower, note=how)


def leaves_out(graph: Graph) -> str | None:
    """Why copies are not planned on a graph as it is."""
    if not graph.flat:
        return "the graph has layers or options"
    if any(len(reads) > MOST_READS for reads in graph.reads_by_node):
        return f"a node reads more than {MOST_READS} data"
    return None


def _plan(search: CopySearch, plain: Outcome) -> Plan:
    """The best plan with copies or that without; the bound of the problem without a link, as that of a class."""
    schedule = search.schedule()
    if search.best is None or plain.upper < search.best.time:
        schedule = plain.schedule
    trail, of_class = tuple(search.trail), _of_class(plain)
    return Plan(schedule=schedule, lower=search.lower, trail=trail, class_bounds=of_class, evidence=search.evidence)


def _of_class(plain: Outcome) -> tuple[ClassBound, ...]:
    """The bound of a plan without copies, as one of such schedules."""
    return () if not plain.lower else (ClassBound(value=plain.lower, assumes=WITHOUT_COPIES),)
