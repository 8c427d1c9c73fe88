"""Combinators: solvers made of solvers. Their laws are property tests (`remat.testing`).

| written | means |
|---|---|
| `a | b`, `first(a, b)` | ask in turn, merge, until a schedule is found or it is proved that there is none |
| `best(a, b)` | ask all, merge |
| `s.within(seconds)` | a deadline |
| `s.when(test)` | only where a test of the graph holds |
| `warm(main, seed=…)` | the seed's schedule is the incumbent of `main` |
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.protocol import Outcome, Plan, Problem, Solver
from remat.errors import RematError
from remat.ir import Graph, Schedule


def _as_plan(outcome: Outcome) -> Plan:
    return Plan(schedule=outcome.schedule, lower=outcome.lower, trail=outcome.trail, beside=outcome.beside)


def _all_refuse(solvers: tuple[Solver, ...], graph: Graph) -> str | None:
    reasons = [one.refuses(graph) for one in solvers]
    if any(reason is None for reason in reasons):
        return None
    return "; ".join(f"{one!r}: {reason}" for one, reason in zip(solvers, reasons, strict=True))


def indented(head: str, *parts: tuple[str, ...]) -> tuple[str, ...]:
    """Lines of an outline under a head."""
    return (head, *(f"  {line}" for lines in parts for line in lines))


def operand(one: object) -> str:
    """The repr of a part before a method call: in brackets where it is an operation itself (`t >> s`)."""
    text = repr(one)
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if not depth and text.startswith((" >> ", " | "), i):
            return f"({text})"
    return text


def _solvers(instance: object, attribute: object, value: Any) -> None:
    if not isinstance(value, tuple) or not value or not all(isinstance(one, Solver) for one in value):
        raise RematError("A-SOLVER", f"{value!r:.80} is not a list of solvers.", fix="give at least one solver.")


def _solver(instance: object, attribute: object, value: Any) -> None:
    if not isinstance(value, Solver):
        raise RematError("A-SOLVER", f"{value!r:.80} is not a solver.", fix="give a solver, e.g. StoreAll().")


@frozen
class _Several(Solver):
    """Asks solvers in turn and merges what they say, until it is enough."""

    models_link: ClassVar[bool] = True  # its parts were asked one by one

    _how: ClassVar[str]

    solvers: tuple[Solver, ...] = field(validator=_solvers)

    def refuses(self, graph: Graph) -> str | None:
        """Refuses when all do."""
        return _all_refuse(self.solvers, graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """Those of its parts."""
        return indented(self._how, *(one.outline(graph) for one in self.solvers))

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The merged outcome of those asked before it was enough, or the time was over."""
        outcome = Outcome()
        for one in self.solvers:
            outcome = outcome.merge(one.solve(problem, clock=clock, seed=seed))
            if outcome.schedule is not None:
                clock.report(one, schedule=outcome.schedule, time=int(outcome.upper), lower=outcome.lower)
            if clock.expired or self._enough(outcome):
                break
        return _as_plan(outcome)

    def _enough(self, outcome: Outcome) -> bool:
        return False


@frozen
class First(_Several):
    """Ask in turn and merge, until the outcome is settled. Associative, idempotent; keeps proofs."""

    _how: ClassVar[str] = "in turn, until there is a plan or none can exist:"

    def __repr__(self) -> str:
        return f"first({', '.join(map(repr, self.solvers))})"

    def _enough(self, outcome: Outcome) -> bool:
        return outcome.settled


@frozen
class Best(_Several):
    """Ask all and merge. Associative, commutative, idempotent; never worse than any of its parts."""

    _how: ClassVar[str] = "all, and the best of them:"

    def __repr__(self) -> str:
        return f"best({', '.join(map(repr, self.solvers))})"


@frozen
class Within(Solver):
    """A solver with a deadline in seconds."""

    models_link: ClassVar[bool] = True  # its parts were asked one by one

    solver: Solver = field(validator=_solver)
    seconds: float

    def __repr__(self) -> str:
        return f"{operand(self.solver)}.within({self.seconds!r})"

    def __attrs_post_init__(self) -> None:
        Clock(self.seconds)  # refuses what is not a number of seconds

    def refuses(self, graph: Graph) -> str | None:
        """Refuses what its solver refuses."""
        return self.solver.refuses(graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """Those of its solver."""
        return indented(f"for {self.seconds:g} s at most:", self.solver.outline(graph))

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The solver's plan under the earlier of the two deadlines."""
        return _as_plan(self.solver.solve(problem, clock=clock.nested(self.seconds), seed=seed))


@frozen
class When(Solver):
    """A solver where a test of the graph holds."""

    models_link: ClassVar[bool] = True  # its parts were asked one by one

    solver: Solver = field(validator=_solver)
    test: Callable[[Graph], bool]

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

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The solver's plan."""
        return _as_plan(self.solver.solve(problem, clock=clock, seed=seed))


@frozen
class nodes_at_most:
    """Test: the graph has at most so many compute nodes."""

    limit: int

    def __call__(self, graph: Graph) -> bool:
        """Whether the graph is small enough."""
        return len(graph) <= self.limit

    def __repr__(self) -> str:
        return f"nodes_at_most({self.limit})"


def is_flat(graph: Graph) -> bool:
    """Test: no layers, one option per node."""
    return graph.flat


class WarmStarted(Solver):
    """A solver that can start from a validated schedule. Authors write `plan_from`; without a start `plan` runs cold."""

    __slots__ = ()

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """Plan without a start."""
        return self.plan_from(problem, None, clock, seed)

    @abstractmethod
    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """Plan, with `start` (validated, under the budget) as the incumbent."""


@frozen
class Warm(Solver):
    """`main`, started from the seed's schedule. Never worse than the seed."""

    models_link: ClassVar[bool] = True  # its parts were asked one by one

    main: WarmStarted
    seed_solver: Solver = field(validator=_solver)

    def __repr__(self) -> str:
        return f"warm({self.main!r}, seed={self.seed_solver!r})"

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.main, WarmStarted):
            fix = "give a solver that takes a start (WarmStarted), or write best(seed, main)."
            raise RematError("A-WARM", f"{self.main!r} cannot start from a schedule.", fix=fix)

    def refuses(self, graph: Graph) -> str | None:
        """Refuses when both do."""
        return _all_refuse((self.main, self.seed_solver), graph)

    def outline(self, graph: Graph) -> tuple[str, ...]:
        """Those of the seed, then those of the main solver."""
        return indented("first for a start, then from it:", self.seed_solver.outline(graph), self.main.outline(graph))

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The better of the seed's and the main solver's schedules."""
        start = self.seed_solver.solve(problem, clock=clock, seed=seed)
        if start.schedule is not None:
            clock.report(self.seed_solver, schedule=start.schedule, time=int(start.upper), lower=start.lower)
        if clock.expired or self.main.refuses(problem.graph) is not None:
            return _as_plan(start)
        found = _Started(self.main, start.schedule).solve(problem, clock=clock, seed=seed)
        return _as_plan(start.merge(found))


@frozen
class _Started(Solver):
    """A warm-started solver bound to its start, so that its plan passes through the one `solve`."""

    main: WarmStarted
    start: Schedule | None

    def __repr__(self) -> str:
        return repr(self.main)

    @property
    def models_link(self) -> bool:  # type: ignore[override]
        return self.main.models_link

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        return self.main.plan_from(problem, self.start, clock, seed)


def first(*solvers: Solver) -> Solver:
    """The first that fits: ask in turn, merge, until a schedule is found or none can exist."""
    return First(_flattened(First, solvers))


def best(*solvers: Solver) -> Solver:
    """The best of all: ask every solver, merge."""
    return Best(_flattened(Best, solvers))


def warm(main: WarmStarted, *, seed: Solver) -> Solver:
    """`main` with the schedule of `seed` as its incumbent."""
    return Warm(main, seed)


def _flattened(kind: type[First] | type[Best], solvers: tuple[Solver, ...]) -> tuple[Solver, ...]:
    flat: list[Solver] = []
    for one in solvers:
        flat.extend(one.solvers if isinstance(one, kind) else (one,))
    return tuple(dict.fromkeys(flat))  # asking one solver twice adds nothing
