"""What a solver is, what it is asked and what it answers.

Solvers propose and the validator disposes: an author writes `refuses` and `plan`; `solve` is final, replays whatever `plan`
returns and reports the replay's cost. An `Outcome` is two numbers and a witness: the time of a validated schedule, and a
bound proved for every schedule of the problem. Everything else (status, gap) is derived from them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from attrs import evolve, field, frozen

from remat.algorithms._core.clock import Clock
from remat.errors import BudgetExceeded, UnsoundBound
from remat.ir import Cost, Graph, Link, Schedule, validate
from remat.ir.checks import at_least
from remat.units import Bytes, Ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from remat.algorithms._core.options import OptionSource

IMPOSSIBLE: Final = math.inf
"""The lower bound of a problem that was proved to have no schedule."""

NOTHING: Final = math.inf
"""The upper bound of a problem for which no schedule was found."""


class Status(Enum):
    """What two numbers say about a problem."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NOT_FOUND = "not found"


@frozen(kw_only=True)
class Problem:
    """A graph, the bytes its schedule may hold, and optionally a link to the host and a deadline.

    Attributes:
        graph: the training step.
        budget: most bytes live in any step, inputs and buffers not counted.
        link: the link to the host; None: schedules may hold no copies.
        deadline: seconds of planning; None: no limit.
    """

    graph: Graph
    budget: Bytes = field(validator=at_least(0, "bytes"))
    link: Link | None = None
    deadline: float | None = None


@frozen(kw_only=True)
class ClassBound:
    """A bound that holds only for a class of schedules; shown beside the proved one, never inside it.

    Attributes:
        value: every schedule of the class takes at least this long [ns]; infinite: the class holds none.
        assumes: what the class is, e.g. `first runs in the captured order`.
    """

    value: Ns | float
    assumes: str


@frozen(kw_only=True)
class Plan:
    """What a solver's `plan` returns; nothing in it is believed before the replay, except that `lower` was proved.

    Attributes:
        schedule: the proposed schedule, or None.
        lower: a bound proved for every schedule of the problem [ns]; `IMPOSSIBLE`: proved that there is none.
        trail: what to say about how it was found.
        beside: bounds of restricted classes.
    """

    schedule: Schedule | None = None
    lower: Ns | float = 0
    trail: tuple[str, ...] = ()
    beside: tuple[ClassBound, ...] = ()


@frozen(kw_only=True)
class Outcome:
    """What is known about a problem: two numbers and a witness.

    Attributes:
        schedule, cost: the best validated schedule and its replayed cost, or neither.
        lower: a bound proved for every schedule of this problem [ns]; `IMPOSSIBLE`: proved that there is none.
        trail: who was asked, who refused and why, who is optimal in which class.
        beside: bounds that hold for a class of schedules only.
    """

    schedule: Schedule | None = None
    cost: Cost | None = None
    lower: Ns | float = 0
    trail: tuple[str, ...] = field(default=(), eq=False)
    beside: tuple[ClassBound, ...] = field(default=(), eq=False)

    def __attrs_post_init__(self) -> None:
        if self.lower > self.upper:
            what = f"a lower bound of {self.lower} ns above a validated schedule of {self.upper} ns"
            raise UnsoundBound(
                "A-BOUND", f"{what} ({'; '.join(self.trail)}).", fix="report it: one of the two has a bug."
            )

    @property
    def upper(self) -> Ns | float:
        """Time of the schedule [ns], `NOTHING` (infinite) without one."""
        return NOTHING if self.cost is None else self.cost.time

    @property
    def gap(self) -> float | None:
        """How far the schedule may be from the optimum, as a fraction of the bound; None without schedule or bound."""
        if self.cost is None or self.lower <= 0:
            return None
        return self.cost.time / self.lower - 1

    @property
    def status(self) -> Status:
        """The word for the two numbers."""
        if self.cost is not None:
            return Status.OPTIMAL if self.lower == self.cost.time else Status.FEASIBLE
        return Status.INFEASIBLE if self.lower == IMPOSSIBLE else Status.NOT_FOUND

    @property
    def settled(self) -> bool:
        """Whether nothing is left to ask: a schedule is there, or it is proved that none exists."""
        return self.cost is not None or self.lower == IMPOSSIBLE

    def _rank(self) -> tuple[Ns | float, Bytes, str]:
        # Ties in time go to the smaller peak, then to the smaller text, so that merging commutes.
        if self.cost is None or self.schedule is None:
            return (NOTHING, 0, "")
        return (self.cost.time, self.cost.peak, "\n".join(map(str, self.schedule.steps)))

    def merge(self, other: Outcome) -> Outcome:
        """The better schedule with the better bound.

        Raises:
            UnsoundBound: when one's bound is above the other's schedule.
        """
        if self.upper != other.upper:
            winner = self if self.upper < other.upper else other
        else:
            winner = min(self, other, key=Outcome._rank)
        return evolve(
            winner,
            lower=max(self.lower, other.lower),
            trail=self.trail + other.trail,
            beside=tuple(dict.fromkeys(self.beside + other.beside)),
        )


class Solver(ABC):
    """Proposes a schedule for a problem. Subclasses are frozen attrs classes of settings; their repr rebuilds them."""

    __slots__ = ()

    models_link: ClassVar[bool] = False
    """Whether its bounds hold for schedules with copies too; elsewhere they are not taken over for a problem with a link."""

    def refuses(self, graph: Graph) -> str | None:
        """Why this solver cannot treat the graph, with the way out; None when it can."""
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
    def solve(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Outcome:
        """Ask, plan, replay, report.

        Returns:
            The outcome; its cost comes from the validator alone. An interruption (Ctrl-C) keeps the best plan reported.

        Raises:
            InvalidSchedule: any broken rule but the budget's, which is a bug of the solver.
        """
        clock = Clock(problem.deadline) if clock is None else clock
        reason = self.refuses(problem.graph)
        if reason is not None:
            return Outcome(trail=(f"{self!r} refused: {reason}",))
        inner = clock.nested()
        try:
            plan = self.plan(problem, inner, seed)
        except (KeyboardInterrupt, SystemError) as error:
            if not is_interruption(error):
                raise
            inner.stop()
            plan = Plan(schedule=inner.best, lower=inner.lower, trail=(f"{self!r} was interrupted",))
        return self._replayed(problem, plan)

    def _replayed(self, problem: Problem, plan: Plan) -> Outcome:
        if problem.link is not None and plan.lower and not self.models_link:
            note = f"{self!r}: a bound of {plan.lower} ns is not taken over, it knows no copies"
            plan = evolve(plan, lower=0, beside=(), trail=(*plan.trail, note))
        bounds: dict[str, Any] = {"lower": plan.lower, "beside": plan.beside}
        if plan.schedule is None:
            return Outcome(trail=(*plan.trail, f"{self!r} found no schedule"), **bounds)
        try:
            cost = validate(problem.graph, plan.schedule, problem.budget, problem.link)
        except BudgetExceeded as error:
            return Outcome(trail=(*plan.trail, f"{self!r} proposed a schedule over the budget: {error.what}"), **bounds)
        return Outcome(schedule=plan.schedule, cost=cost, trail=plan.trail or (f"{self!r} planned it",), **bounds)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """What it would do with a graph, in words, a line each; nothing is planned. Solvers made of solvers say more."""
        reason = self.refuses(graph)
        return (repr(self) if reason is None else f"{self!r} refuses: {reason}",)

    def __or__(self, other: Solver) -> Solver:
        """`a | b`: the first that fits."""
        from remat.algorithms._core.combine import first

        return first(self, other)

    def within(self, seconds: float) -> Solver:
        """This solver with a deadline of its own; nested deadlines: the earlier counts."""
        from remat.algorithms._core.combine import Within

        return Within(self, seconds)

    def sweep(self, *, peaks: int = 8, saves: int = 6) -> OptionSource:
        """This solver under many budgets of a block: options for the level above (see `remat.algorithms._core.options`)."""
        from remat.algorithms._core.options import Sweep

        return Sweep(self, peaks=peaks, saves=saves)

    def when(self, test: Callable[[Graph], bool]) -> Solver:
        """This solver where `test(graph)` holds; it refuses elsewhere. Give a test whose repr names it."""
        from remat.algorithms._core.combine import When

        return When(self, test)


def is_interruption(error: KeyboardInterrupt | SystemError) -> bool:
    """Whether this is Ctrl-C.

    A signal that arrives while a compiled kernel runs is treated while its result is turned into Python's objects, and then
    comes out as a SystemError (`returned a result with an exception set`) whose cause is the KeyboardInterrupt.
    """
    return any(isinstance(part, KeyboardInterrupt) for part in (error, error.__cause__, error.__context__))


def refuse_unless_flat(graph: Graph) -> str | None:
    """The refusal of a solver that plans flat graphs only."""
    if graph.flat:
        return None
    return "the graph has layers or options; plan it with a solver of hierarchical graphs, or expand it first"


__all__ = [
    "IMPOSSIBLE",
    "NOTHING",
    "ClassBound",
    "Outcome",
    "Plan",
    "Problem",
    "Solver",
    "Status",
    "is_interruption",
    "refuse_unless_flat",
]
