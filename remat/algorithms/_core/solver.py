"""The protocol of solvers, and the combinators that its operators build.

Solvers propose, the validator decides: an author writes `refuses` and `plan`; `solve` is final, replays whatever `plan`
returns and reports the replay's cost.

| written | means |
|---|---|
| `a | b`, `first(a, b)` | ask in turn and merge until a schedule is found or none can exist; the last even after the deadline |
| `best(a, b)` | ask all, merge |
| `s.within(seconds)` | a deadline |
| `s.when(test)` | only where a test of the graph holds |
| `s.sweep(peaks=, saves=)` | options of a block, see `options.py` |
| `warm(main, seed=…)` | the seed's schedule is the incumbent of `main`, see `warm_started.py` |

Their laws are property tests (`remat.testing`).
Operators make combinators, which are solvers: both are here.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, final

from attrs import evolve, field, frozen

from remat.algorithms._core.clock import A_CLOCK, Clock
from remat.algorithms._core.evidence import Evidence
from remat.algorithms._core.options import OptionSource, Sweep
from remat.algorithms._core.outcome import Outcome, Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.startup import planning_time
from remat.algorithms._core.wording import indented, operand
from remat.errors import BudgetExceeded, IllFormed
from remat.ir import Graph, Schedule, validate
from remat.ir.arguments import A_GRAPH
from remat.settings import FLAG, NAME, SECONDS, SEED, Setting, instance, optional, takes, tuple_of

logger = logging.getLogger(__name__)
"""Logs every completed solve (DEBUG): its seconds, its plan's time and its bound."""

PROOF_LEAVES = 1000
"""Most leaves of the branch trees of a proof where `proof=True` asks for one."""

_REASON = optional(NAME)
_PROBLEM = instance(Problem, "Problem(graph=…, budget=…)")
_PLAN = instance(Plan, "Plan(schedule=…)")
_A_TEST = Setting("a function of a graph, e.g. is_flat", lambda value: callable(value) and not isinstance(value, type))


class Solver(ABC):
    """Proposes a schedule for a problem. Subclasses are frozen attrs classes of settings; their repr rebuilds them."""

    __slots__ = ()

    models_link: ClassVar[bool] = False
    """Whether its bounds hold for schedules with copies too; otherwise they are ignored for a problem with a link."""

    @takes(graph=A_GRAPH)
    def refuses(self, graph: Graph) -> str | None:
        """Why this solver cannot treat the graph, with a remedy; None when it can."""
        del graph
        return None

    @abstractmethod
    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """Propose a schedule, a bound, or both.

        Args:
            problem: what to solve; never changed.
            clock: ask `clock.expired` between pieces of work; hand improvements to `clock.report`.
            seed: the same problem and seed give the same plan.
        """

    @final
    def solve(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0, proof: bool = False) -> Outcome:
        """Ask, plan, replay, report.

        Args:
            problem: what to solve.
            clock: limits; None: the problem's deadline.
            seed: of all random choices.
            proof: grow a proof of the bound: a claimed bound becomes certified, or certified in part.

        Returns:
            The outcome; its cost comes from the validator alone. An interruption (Ctrl-C) keeps the best plan reported.

        Raises:
            BadArgument: A-SETTING, when `problem` is no Problem, the solver's answer no Plan, or its refusal no text.
            InvalidSchedule: a broken rule other than the budget, which is a bug of the solver.
            UnsoundBound: A-BOUND, a lower bound above the time of a valid schedule, which is a bug of the solver or of remat.
        """
        _PROBLEM.check(problem, "solve: problem")
        A_CLOCK.check(clock, "solve: clock")
        SEED.check(seed, "solve: seed")
        FLAG.check(proof, "solve: proof")
        if proof and not problem.proof_leaves:
            problem = evolve(problem, proof_leaves=PROOF_LEAVES)
        clock = Clock(problem.deadline) if clock is None else clock
        reason = self.refuses(problem.graph)
        _REASON.check(reason, f"{self!r}: the answer of refuses")
        if reason is not None:
            return Outcome(trail=(f"{self!r} refused: {reason}",))
        inner, start = clock.nested(), planning_time()
        plan = self._planned(problem, inner, seed)
        _PLAN.check(plan, f"{self!r}: the answer of plan")
        try:
            outcome = self._replayed(problem, plan)
        except (KeyboardInterrupt, SystemError) as error:
            if not is_interruption(error):
                raise
            inner.stop()
            outcome = self._replayed(problem, plan)  # the plan is kept; a second interruption ends this
        if logger.isEnabledFor(logging.DEBUG):
            seconds = planning_time() - start
            logger.debug("%.200r: %.3f s, time %s ns, bound %s ns", self, seconds, outcome.upper, outcome.lower)
        return outcome

    def _planned(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The answer of `plan`; after an interruption the best plan reported."""
        try:
            return self.plan(problem, clock, seed)
        except IllFormed as error:
            if error.rule != "G-RANGE":
                raise
            # the graph is legal: what is planned in its place is not
            return Plan(trail=(f"{self!r} refused: a graph made from this one is too large: {error.what}",))
        except (KeyboardInterrupt, SystemError) as error:
            if not is_interruption(error):
                raise
            clock.stop()
            return Plan(schedule=clock.best, lower=clock.lower, trail=(f"{self!r} was interrupted",))

    def _replayed(self, problem: Problem, plan: Plan) -> Outcome:
        if problem.link is not None and (plan.lower or plan.evidence is not None) and not self.models_link:
            note = f"{self!r}: a bound of {plan.lower} ns is not taken over, it knows no copies"
            plan = evolve(plan, lower=0, class_bounds=(), evidence=None, trail=(*plan.trail, note))
        class_bounds = tuple(
            evolve(bound, evidence=_evidence_of(problem, bound.evidence)) for bound in plan.class_bounds
        )
        evidence = _evidence_of(problem, plan.evidence)
        bounds: dict[str, Any] = {"lower": plan.lower, "class_bounds": class_bounds, "evidence": evidence}
        if plan.schedule is None:
            return Outcome(trail=(*plan.trail, f"{self!r} found no schedule"), **bounds)
        try:
            cost = validate(problem.graph, plan.schedule, problem.budget, problem.link)
        except BudgetExceeded as error:
            return Outcome(trail=(*plan.trail, f"{self!r} proposed a schedule over the budget: {error.what}"), **bounds)
        if problem.host_budget is not None and cost.host_peak > problem.host_budget:
            note = f"{self!r} proposed a schedule with {cost.host_peak} B on the host, over the {problem.host_budget} B"
            return Outcome(trail=(*plan.trail, note), **bounds)
        return Outcome(schedule=plan.schedule, cost=cost, trail=plan.trail or (f"{self!r} planned it",), **bounds)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """What it would do with a graph, in lines of text; nothing is planned. Combinators describe their parts."""
        reason = self.refuses(graph)
        return (repr(self) if reason is None else f"{self!r} refuses: {reason}",)

    @property
    def takes_start(self) -> bool:
        """Whether it, or a part of it, can use an initial schedule."""
        return False

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """Plan, with `start` (validated, under the budget) as the incumbent where it can use one; see `takes_start`."""
        del start
        return self.plan(problem, clock, seed)

    def __or__(self, other: Solver) -> Solver:
        """`a | b`: the first that fits."""
        return first(self, other)

    def within(self, seconds: float) -> Solver:
        """This solver with its own deadline; of nested deadlines, the earlier counts."""
        return Within(self, seconds)

    def sweep(self, *, peaks: int = 8, saves: int = 6) -> OptionSource:
        """This solver under many budgets of a block: options for the level above (see `Sweep`)."""
        return Sweep(self, peaks=peaks, saves=saves)

    def when(self, test: Callable[[Graph], bool]) -> Solver:
        """This solver where `test(graph)` holds; it refuses other graphs. The repr of `test` should name it."""
        return When(self, test)


class FromStart(Solver):
    """A solver that plans with or without a start in the same way: authors write `plan_from`."""

    __slots__ = ()

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """Plan without a start."""
        return self.plan_from(problem, None, clock, seed)

    @abstractmethod
    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """Plan, with `start` (validated, under the budget) as the incumbent where there is one."""


def _evidence_of(problem: Problem, evidence: Evidence | None) -> Evidence | None:
    """The evidence where it is for this problem and its link."""
    holds = evidence is not None and evidence.holds_for(problem.graph, problem.budget, problem.link)
    return evidence if holds else None


def is_interruption(error: KeyboardInterrupt | SystemError) -> bool:
    """Whether this is Ctrl-C.

    A signal that arrives while a compiled kernel runs is handled while its result is converted to Python objects, and is then
    raised as a SystemError (`returned a result with an exception set`) that comes from the KeyboardInterrupt, or from another
    such SystemError.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    causes = {id(part): part for part in (error.__cause__, error.__context__)}
    return any(is_interruption(part) for part in causes.values() if isinstance(part, (KeyboardInterrupt, SystemError)))


def refuse_unless_flat(graph: Graph) -> str | None:
    """The refusal of a solver that plans flat graphs only."""
    A_GRAPH.check(graph, "refuses: graph")
    if graph.flat:
        return None
    return "the graph has layers or options; plan it with a solver of hierarchical graphs, or expand it first"


def as_plan(outcome: Outcome) -> Plan:
    """An outcome, as a plan of the solver that asked for it."""
    return Plan(
        schedule=outcome.schedule,
        lower=outcome.lower,
        trail=outcome.trail,
        class_bounds=outcome.class_bounds,
        evidence=outcome.evidence,
    )


def all_refuse(solvers: tuple[Solver, ...], graph: Graph) -> str | None:
    """The reasons of all, when all refuse."""
    reasons = [solver.refuses(graph) for solver in solvers]
    if any(reason is None for reason in reasons):
        return None
    return "; ".join(f"{solver!r}: {reason}" for solver, reason in zip(solvers, reasons, strict=True))


a_solver = instance(Solver, "StoreAll()")
"""A field that holds a solver."""


@frozen
class _Started(Solver):
    """A solver bound to its initial schedule, so that its plan passes through the same `solve`."""

    main: Solver = field(validator=a_solver)
    start: Schedule

    def __repr__(self) -> str:
        return repr(self.main)

    def refuses(self, graph: Graph) -> str | None:
        """What the solver refuses."""
        return self.main.refuses(graph)

    @property
    def models_link(self) -> bool:  # type: ignore[override]
        """As the solver."""
        return self.main.models_link

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """Its plan from the start."""
        return self.main.plan_from(problem, self.start, clock, seed)


def with_start(solver: Solver, start: Schedule | None) -> Solver:
    """The solver bound to an initial schedule, where there is one and the solver takes one."""
    return solver if start is None or not solver.takes_start else _Started(solver, start)


@frozen
class _Several(FromStart):
    """Asks solvers in turn and merges their outcomes, until the result suffices."""

    models_link: ClassVar[bool] = True  # each part was asked separately

    _how: ClassVar[str]

    solvers: tuple[Solver, ...] = field(validator=tuple_of(a_solver))

    def refuses(self, graph: Graph) -> str | None:
        """Refuses when all do."""
        return all_refuse(self.solvers, graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """Those of its parts."""
        return indented(self._how, *(solver.outline(graph) for solver in self.solvers))

    @property
    def takes_start(self) -> bool:
        """Whether any of its parts does."""
        return any(solver.takes_start for solver in self.solvers)

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """The merged outcome of the solvers asked before the result sufficed or time was over; all that take a start get it."""
        outcome = Outcome()
        for done, solver in enumerate(self.solvers, 1):
            if done > 1 and self._skips(outcome, clock, last=done == len(self.solvers)):
                continue
            outcome = outcome.merge(with_start(solver, start).solve(problem, clock=clock, seed=seed))
            if outcome.schedule is not None:
                clock.report(
                    solver,
                    schedule=outcome.schedule,
                    best=int(outcome.upper),
                    bound=outcome.lower,
                    stage=repr(solver),
                    done=done,
                    total=len(self.solvers),
                )
            if self._enough(outcome):
                break
        return as_plan(outcome)

    def _skips(self, outcome: Outcome, clock: Clock, *, last: bool) -> bool:
        """Whether a part after the first is skipped; a last part that plans at once is an anytime fallback and is not."""
        return clock.stopped or (clock.expired and (outcome.settled or not last))

    def _enough(self, outcome: Outcome) -> bool:
        return False


@frozen
class First(_Several):
    """Ask in turn and merge, until the outcome is settled. Associative, idempotent; keeps proofs.

    When the time is over, the last part is asked nevertheless: a part that plans at once is a fallback that no deadline skips.
    """

    _how: ClassVar[str] = "in turn, until there is a plan or none can exist:"

    def __repr__(self) -> str:
        return f"first({', '.join(map(repr, self.solvers))})"

    def _enough(self, outcome: Outcome) -> bool:
        return outcome.settled


@frozen
class Best(_Several):
    """Ask all and merge. Associative, commutative, idempotent; never worse than any of its parts.

    When the time is over, only the last part is asked, and only if there is no plan yet.
    """

    _how: ClassVar[str] = "all, and the best of them:"

    def __repr__(self) -> str:
        return f"best({', '.join(map(repr, self.solvers))})"


@frozen
class Within(FromStart):
    """A solver with a deadline in seconds."""

    models_link: ClassVar[bool] = True  # each part was asked separately

    solver: Solver = field(validator=a_solver)
    seconds: float = field(validator=SECONDS)

    def __repr__(self) -> str:
        return f"{operand(self.solver)}.within({self.seconds!r})"

    def refuses(self, graph: Graph) -> str | None:
        """Refuses what its solver refuses."""
        return self.solver.refuses(graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """Those of its solver."""
        return indented(f"for {self.seconds:g} s at most:", self.solver.outline(graph))

    @property
    def takes_start(self) -> bool:
        """Whether its solver does."""
        return self.solver.takes_start

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """The solver's plan under the earlier of the two deadlines."""
        return as_plan(with_start(self.solver, start).solve(problem, clock=clock.nested(self.seconds), seed=seed))


@frozen
class When(FromStart):
    """A solver where a test of the graph holds."""

    models_link: ClassVar[bool] = True  # each part was asked separately

    solver: Solver = field(validator=a_solver)
    test: Callable[[Graph], bool] = field(validator=_A_TEST)

    def __repr__(self) -> str:
        name = getattr(self.test, "__name__", None) or repr(self.test)
        return f"{operand(self.solver)}.when({name})"

    def refuses(self, graph: Graph) -> str | None:
        """Refuses where the test fails, and what its solver refuses."""
        if not self.test(graph):
            name = getattr(self.test, "__name__", None) or repr(self.test)
            return f"{name} does not hold for {graph!r}"
        return self.solver.refuses(graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """Those of its solver, where the test holds."""
        return self.solver.outline(graph) if self.test(graph) else super().outline(graph)

    @property
    def takes_start(self) -> bool:
        """Whether its solver does."""
        return self.solver.takes_start

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """The solver's plan."""
        return as_plan(with_start(self.solver, start).solve(problem, clock=clock, seed=seed))


def first(*solvers: Solver) -> Solver:
    """The first that fits: ask in turn and merge until a schedule is found or none can exist."""
    return First(_flattened(First, solvers))


def best(*solvers: Solver) -> Solver:
    """The best of all: ask every solver, merge."""
    return Best(_flattened(Best, solvers))


def _flattened(kind: type[First] | type[Best], solvers: tuple[Solver, ...]) -> tuple[Solver, ...]:
    flat: list[Solver] = []
    for solver in solvers:
        a_solver.check(solver, f"{kind.__name__.lower()}: a part")
        flat.extend(solver.solvers if isinstance(solver, kind) else (solver,))
    return tuple(dict.fromkeys(flat))  # asking one solver twice adds nothing
