"""`Ilp` and `HIlp`: the MILP formulations as solvers. Settings here; the formulations in the modules `form_*`."""

from __future__ import annotations

import math
from typing import ClassVar, Final, Literal

from attrs import evolve, field, fields, frozen

from remat.algorithms._bounds.floor import node_floor
from remat.algorithms._copies.with_copies import leaves_out
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, ClassBound, Outcome, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import refuse_unless_flat
from remat.algorithms._core.warm_started import WarmStarted
from remat.algorithms._milp.backend import Backend
from remat.algorithms._milp.backends import Highs
from remat.algorithms._staged.budget_solver import BudgetResult, BudgetSolver, Watch
from remat.algorithms._staged.copies_solver import CopiesSolver
from remat.algorithms._staged.decode import reordered
from remat.algorithms._staged.form_checkmate import checkmate_form, refuse_unless_checkmate
from remat.algorithms._staged.form_events import Form, events_form
from remat.algorithms._staged.form_published import published_form
from remat.algorithms._staged.memory_items import StagedGraph
from remat.algorithms._staged.option_sweep import Budgets, IlpSweep
from remat.algorithms._staged.slots import RERUNS, Reruns, Slots, slots_of
from remat.algorithms._staged.warm_start import starting_plan
from remat.ir import Graph, Schedule
from remat.ir.arguments import A_GRAPH
from remat.ir.hierarchy import Condensed
from remat.settings import FLAG, instance, number, one_of, optional, takes, whole

FormName = Literal["events", "published", "checkmate"]
FORMS: Final = ("events", "published", "checkmate")

ENTRIES_WITH_COPIES: Final = 45
"""Matrix entries of the formulation with copies for one of that without: of a datum that may be copied, in a slot of its life."""

RUNG: Final = 60
"""Nodes from which a restricted formulation is solved first."""

RUNG_OF_LAYERS: Final = 40
"""Nodes from which a graph of layers is planned without reruns first."""


@frozen(kw_only=True, repr=False)
class HIlp(WarmStarted):
    """H-ILP (HiRemate, App. B); on an undivided graph it is rk-Checkmate (Rockmate, App. B).

    Optimal, within `gap`, over *staged* schedules: first runs in one order, each node at most once between two of
    them. On some branching graphs other schedules are faster, so its bound is one of a class and its "infeasible"
    too; both stand in `class_bounds`. Not a method for flat graphs of more than about 100 nodes: start it from a plan
    (`warm(HIlp(), seed=auto)`), thin it out, or divide the graph. With a link it plans copies of data of one writer on flat
    graphs (`form_copies.py`), a reference for graphs of up to about 60 nodes.

    Attributes:
        form: `events`, the production form; `published`, the papers'.
        reruns, window: restrict the slots; `slots_of` says what each may lose.
        gap: relative gap at which to stop.
        cuts: the rows of `rerun_cuts.py` in the production form; they strengthen its relaxation and keep its integral points.
            They help proofs more than the search for plans. None: if it starts from a plan of its own search.
        warm_start: begin with a short search over run sequences (flat graphs, where the back end takes a start), and look only
            for plans that are better by more than the gap. Its plan may lie outside the class; without it, none does.
        ladder: without a plan to begin with, solve with `none` first on a graph of layers of 40 nodes and more, then with
            `backward-once` on 60 and more, each from the plan before.
        order: of first runs; `start`: that of the start where there is one, else the graph's; `graph`: the graph's.
        backend: the MILP solver.
        entries: refuse formulations of more matrix entries than this (about 100 bytes each).
    """

    models_link: ClassVar[bool] = True

    form: FormName = field(default="events", validator=one_of(*FORMS))
    reruns: Reruns = field(default="all", validator=one_of(*RERUNS))
    window: int | None = field(default=None, validator=optional(whole(1, "nodes")))
    gap: float = field(default=1e-3, validator=number(0))
    cuts: bool | None = field(default=None, validator=optional(FLAG))
    warm_start: bool = field(default=True, validator=FLAG)
    ladder: bool = field(default=True, validator=FLAG)
    order: Literal["start", "graph"] = field(default="start", validator=one_of("start", "graph"))
    backend: Backend = field(factory=Highs, validator=instance(Backend, 'Highs() or Cvxpy(solver="SCIP")'))
    entries: int = field(default=20_000_000, validator=whole(1, "entries"))

    def __repr__(self) -> str:
        # only what is not default, so that trails stay readable
        plain = type(self)()
        settings = ((setting.name, getattr(self, setting.name)) for setting in fields(type(self)))
        changed = ", ".join(f"{name}={value!r}" for name, value in settings if value != getattr(plain, name))
        return f"{type(self).__name__}({changed})"

    @takes(graph=A_GRAPH)
    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: its formulation would not fit in memory, or its form cannot represent the graph."""
        if self.form == "checkmate":
            reason = refuse_unless_checkmate(graph)
            if reason is not None:
                return reason
        size = self._entries(graph)
        if size <= self.entries:
            return None
        return (
            f"{len(graph)} nodes make a formulation of about {size:.0e} entries; restrict it (reruns='backward-once', "
            "window=20), divide the graph (hierarchical), or plan it with auto"
        )

    def _entries(self, graph: Graph) -> float:
        """A rough count of matrix entries: a memory row per slot over half of the cells."""
        n = len(graph)
        slots = n * (n + 1) // 2 if self.window is None else n * (self.window + 2)
        return slots * len(graph.data) / 2

    def build(self, graph: Graph, *, save: bool = False) -> BudgetSolver:
        """The formulation of a graph, for many budgets."""
        self.backend.check()
        stage = StagedGraph(graph)
        backend = self.backend.with_save() if save and not self.warm_starts else self.backend
        lower = None
        for reruns in self._rungs(graph):
            thin = evolve(self, reruns=reruns)
            lower = BudgetSolver(thin._form_of(stage, save), backend, self.gap, lower=lower)
        return BudgetSolver(self._form_of(stage, save), backend, self.gap, lower=lower)

    def _rungs(self, graph: Graph) -> tuple[Reruns, ...]:
        """The restrictions under which a graph is planned first, each for a start of the next."""
        if not self.ladder or self.form != "events" or self.window is not None:
            return ()
        wide = bool(graph.layers) and len(graph) >= RUNG_OF_LAYERS
        once: tuple[Reruns, ...] = ("none",) if wide and self.reruns != "none" else ()
        thin: tuple[Reruns, ...] = ("backward-once",) if len(graph) >= RUNG and self.reruns in RERUNS[:2] else ()
        return once + thin

    def _form_of(self, stage: StagedGraph, save: bool) -> Form:
        slots: Slots = slots_of(stage, self.reruns, self.window, every=self.form != "events")
        if self.form == "checkmate":
            return checkmate_form(stage, slots)
        if self.form == "published":
            return published_form(stage, slots, tight=False, save=save)
        return events_form(stage, slots, cuts=self._cuts, save=save)

    def sweep(self, *, peaks: Budgets = 8, saves: Budgets = 6, workers: int | None = 1) -> IlpSweep:
        """Many budgets of a block, by one formulation: see `IlpSweep`."""
        return IlpSweep(self, peaks=peaks, saves=saves, workers=workers)

    def top(self, condensed: Condensed) -> BudgetSolver:
        """The formulation of a level with H-ILP's correction terms, for many budgets of the *flat* graph.

        Exact where the options' profiles are: its plans are replayed expanded. They may exceed the budget in the replay of the
        condensed graph, which has only workspaces.
        """
        self.backend.check()
        stage = StagedGraph(condensed.graph)

        def built(reruns: Reruns, window: int | None, lower: BudgetSolver | None) -> BudgetSolver:
            form = events_form(stage, slots_of(stage, reruns, window), cuts=bool(self.cuts), corrections=True)
            return BudgetSolver(form, self.backend, self.gap, condensed, lower=lower)

        once = next((built(reruns, None, None) for reruns in self._rungs(condensed.graph)[:1]), None)
        return built(self.reruns, self.window, once)

    @property
    def restriction(self) -> str:
        """The restriction in words, or nothing."""
        words = [] if self.reruns == "all" else [self.reruns]
        return ", ".join([*words, *([f"window {self.window}"] if self.window is not None else [])])

    def _ended_by(self, first: Outcome, clock: Clock) -> str:
        """Why the solve ends with the first plan; empty: it goes on. The clock keeps the plan for an interruption."""
        if first.schedule is not None:
            best, bound = int(first.upper), first.lower
            clock.report(self, schedule=first.schedule, best=best, bound=bound, stage="start", note="the first plan")
        if first.upper <= first.lower * (1 + self.gap):
            return "no MILP solve was needed"
        if clock.expired:
            return "stopped without a plan" if first.schedule is None else "stopped before the MILP solve"
        return ""

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """Solve; the start is the incumbent, and the fallback in any case."""
        self.backend.check()  # a missing back end is an error even if it would not have been used
        floor = node_floor(problem.graph)
        if floor > problem.budget:
            return Plan(lower=IMPOSSIBLE, trail=(f"{self!r}: one node alone, or the end, needs {floor} B",))
        if problem.link is not None:
            return self._with_copies(problem, start, clock, seed)
        lower: int | float = 0
        trail: list[str] = []
        graph = problem.graph
        if start is not None:
            trail.append(f"start: used as the first {'incumbent' if self.backend.takes_start else 'plan'}")
            graph = reordered(graph, start) if self.order == "start" else graph
        elif self.warm_starts:
            first = starting_plan(problem, self.gap, clock, seed)
            start, lower = first.schedule, first.lower
            trail += [f"warm start: {words}" for words in first.trail[-1:]]
            ended = self._ended_by(first, clock)
            if ended:
                return Plan(schedule=start, lower=lower, trail=(f"{self!r}: {ended}", *trail))
        ordered = "the graph's order" if graph is problem.graph else "the start's order"
        budget_solver = self.build(graph)
        incumbent = None if start is None else budget_solver.incumbent(start, problem.budget)
        result = budget_solver.solve(problem.budget, incumbent=incumbent, watch=Watch(clock, self))
        return self._plan(result, incumbent, ordered, trail, lower)

    def _with_copies(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """The plan of the formulation with copies, where there is one."""
        size = ENTRIES_WITH_COPIES * self._entries(problem.graph)
        why = leaves_out(problem.graph)
        if why is None and self.form != "events":
            why = f"not in the form {self.form!r}"
        if why is None and size > self.entries:
            why = f"their formulation has about {size:.0e} entries"
        if why is not None:
            return Plan(schedule=start, trail=(f"{self!r}: schedules with copies are not modelled, {why}",))
        solver = CopiesSolver(
            reruns=self.reruns,
            window=self.window,
            gap=self.gap,
            backend=self.backend,
            who=self,
            search=self.warm_starts,
        )
        return solver.plan(problem, start, clock, seed)

    @property
    def warm_starts(self) -> bool:
        """Whether it begins with a plan of its own search."""
        return self.warm_start and self.form == "events" and self.backend.takes_start

    @property
    def _cuts(self) -> bool:
        return self.warm_starts if self.cuts is None else self.cuts

    def _plan(
        self, result: BudgetResult, incumbent: BudgetResult | None, ordered: str, trail: list[str], lower: int | float
    ) -> Plan:
        restriction = f", {self.restriction}" if self.restriction else ""
        assumes = f"staged schedules, first runs in {ordered}{restriction}"
        trail = [f"{self!r}: {self.story(result)}; {'; '.join(result.notes)}", *trail]
        if incumbent is not None and not result.better(incumbent):
            result = evolve(result, schedule=incumbent.schedule, cost=incumbent.cost)
            trail.append("the start was not improved")
        class_bounds: tuple[ClassBound, ...] = (
            (ClassBound(value=result.bound, assumes=assumes),) if result.bound else ()
        )
        return Plan(schedule=result.schedule, lower=lower, trail=tuple(trail), class_bounds=class_bounds)

    def story(self, result: BudgetResult) -> str:
        """How a solve ended, in words."""
        if result.bound == math.inf:
            return "no schedule of its class fits (confirmed by a second solve)"
        if result.cost is None:
            return "stopped without a plan"
        gap = f"{result.cost.time / result.bound - 1:.2%}" if result.bound else "unknown"
        return f"{'finished' if result.finished else 'stopped at a limit'}, gap to the bound of its class {gap}"


@frozen(kw_only=True, repr=False)
class Ilp(HIlp):
    """Checkmate (Jain et al., 2020) with the production form: `OneOutputPerOp() >> Ilp()`. Flat graphs only; else as `HIlp`."""

    def refuses(self, graph: Graph) -> str | None:
        """Why a graph is refused: it has layers or options, or `HIlp` refuses it."""
        return refuse_unless_flat(graph) or super().refuses(graph)
