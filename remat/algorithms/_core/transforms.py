"""Transforms: problems derived from problems. `t >> s` transforms, solves, and lifts the schedule back.

A bound found on the transformed problem is lifted only where the transform keeps proofs: where every schedule of the
original problem corresponds to one of the transformed problem that is no slower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, overload

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import FromStart, Solver, a_solver, with_start
from remat.errors import InvalidSchedule, RematError
from remat.ir import Graph, Schedule, validate
from remat.ir.arguments import A_GRAPH
from remat.settings import instance, takes, tuple_of


@frozen(kw_only=True)
class Applied:
    """A transformed problem and the map back.

    Attributes:
        problem: the transformed problem.
        lift: turns a schedule of the transformed problem into one of the original; the result is replayed.
        note: what the transform could and could not do, for the trail; empty: no note.
        carry: the opposite direction, for an initial schedule; None: not available. The result is replayed, and ignored where
            it does not fit.
    """

    problem: Problem
    lift: Callable[[Schedule], Schedule]
    note: str = ""
    carry: Callable[[Schedule], Schedule] | None = None


class Transform(ABC):
    """Turns a problem into another. Subclasses are frozen attrs classes of settings; their repr rebuilds them."""

    __slots__ = ()

    keeps_proofs: ClassVar[bool] = False
    """Whether a bound, or a proof that nothing fits, of the transformed problem holds for the original one."""

    carries_starts: ClassVar[bool] = False
    """Whether schedules of the original problem can start a solver of the transformed one; `Applied.carry` is then given."""

    @takes(graph=A_GRAPH)
    def refuses(self, graph: Graph) -> str | None:
        """Why this transform cannot treat the graph; None when it can."""
        del graph
        return None

    @abstractmethod
    def apply(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Applied:
        """The transformed problem and the map back.

        Args:
            problem: what to transform; never changed.
            clock: limit for the solvers that the transform itself runs, as `clock.aside()`; None: no limit.
            seed: of the random choices of the transform.
        """

    @overload
    def __rshift__(self, other: Solver) -> Solver: ...
    @overload
    def __rshift__(self, other: Transform) -> Transform: ...
    def __rshift__(self, other: Solver | Transform) -> Solver | Transform:
        """`t >> s`: a solver of the original problem; `t >> u`: first `t`, then `u`. Associative."""
        if isinstance(other, Through):
            return Through(_then(self, other.transform), other.solver)
        if isinstance(other, Solver):
            return Through(self, other)
        return _then(self, other)


@frozen
class Then(Transform):
    """Two or more transforms, one after the other."""

    parts: tuple[Transform, ...] = field(validator=tuple_of(instance(Transform, "Linearise()")))

    def __repr__(self) -> str:
        return " >> ".join(map(repr, self.parts))

    @property
    def keeps_proofs(self) -> bool:  # type: ignore[override]
        """Only when every part does."""
        return all(part.keeps_proofs for part in self.parts)

    @property
    def carries_starts(self) -> bool:  # type: ignore[override]
        """Only when every part does."""
        return all(part.carries_starts for part in self.parts)

    def refuses(self, graph: Graph) -> str | None:
        """What the first part refuses; later parts are asked once their graph exists."""
        return self.parts[0].refuses(graph)

    def apply(self, problem: Problem, *, clock: Clock | None = None, seed: int = 0) -> Applied:
        """The last part's problem, and the composition of all maps back."""
        steps: list[Applied] = []
        for part in self.parts:
            reason = part.refuses(problem.graph)
            if reason is not None:
                raise RefusedTransform(f"{part!r} refused: {reason}")
            applied = part.apply(problem, clock=clock, seed=seed)
            problem = applied.problem
            steps.append(applied)

        def lift(schedule: Schedule) -> Schedule:
            for step in reversed(steps):
                schedule = step.lift(schedule)
            return schedule

        notes = "; ".join(step.note for step in steps if step.note)
        carries = [step.carry for step in steps if step.carry is not None]
        carry = partial(_in_turn, carries) if len(carries) == len(steps) else None
        return Applied(problem=problem, lift=lift, note=notes, carry=carry)


def _in_turn(ways: Sequence[Callable[[Schedule], Schedule]], schedule: Schedule) -> Schedule:
    for way in ways:
        schedule = way(schedule)
    return schedule


class RefusedTransform(RematError):
    """A later part of a composed transform refuses the graph that the earlier parts made."""

    def __init__(self, what: str) -> None:
        super().__init__("A-REFUSED", what, fix="see the reason; another solver may accept the graph.")


def _then(first: Transform, second: Transform) -> Transform:
    left = first.parts if isinstance(first, Then) else (first,)
    right = second.parts if isinstance(second, Then) else (second,)
    return Then((*left, *right))


@frozen
class Through(FromStart):
    """`transform >> solver`."""

    models_link: ClassVar[bool] = True  # the solver was asked about the transformed problem, and its link

    transform: Transform = field(validator=instance(Transform, "Linearise()"))
    solver: Solver = field(validator=a_solver)

    def __repr__(self) -> str:
        return f"{self.transform!r} >> {self.solver!r}"

    def refuses(self, graph: Graph) -> str | None:
        """What the transform refuses; what the solver refuses is known once its graph exists, and is noted in the trail."""
        return self.transform.refuses(graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """The transform and the solver; what the solver would do is known once its graph exists."""
        if self.refuses(graph) is not None:
            return super().outline(graph)
        return (f"{self.transform!r}, then on its graph", f"  {self.solver!r}")

    @property
    def takes_start(self) -> bool:
        """Whether its solver does, and the transform can carry one."""
        return self.solver.takes_start and self.transform.carries_starts

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """The lifted schedule; the bound, where the transform keeps proofs.

        The start is carried through the transform, and used where the result fits the transformed problem.
        """
        try:
            applied = self.transform.apply(problem, clock=clock, seed=seed)
        except RefusedTransform as refusal:
            return Plan(trail=(refusal.what,))
        carried = None if start is None else _carried(applied, start)
        outcome = with_start(self.solver, carried).solve(applied.problem, clock=clock, seed=seed)
        schedule = None if outcome.schedule is None else applied.lift(outcome.schedule)
        unlinked = problem.link is not None and applied.problem.link is None
        keeps = self.transform.keeps_proofs and not unlinked
        note = f"{self.transform!r}" + (f": {applied.note}" if applied.note else "")
        note += "" if keeps else " (its bounds are not lifted)"
        note += "" if start is None or carried is not None else " (its start does not fit the transformed problem)"
        return Plan(
            schedule=schedule,
            lower=outcome.lower if keeps else 0,
            trail=(note, *outcome.trail),
            class_bounds=outcome.class_bounds if keeps else (),
        )


def _carried(applied: Applied, start: Schedule) -> Schedule | None:
    """The start as a schedule of the transformed problem; None where it breaks a rule or the budget there."""
    if applied.carry is None:
        return None
    problem = applied.problem
    carried = applied.carry(start)
    try:
        validate(problem.graph, carried, problem.budget, problem.link)
    except InvalidSchedule:
        return None
    return carried
