"""What a composition must pass to the solvers inside it: the seed, the clock, progress and interruption.

    check_composition(lambda probe: hierarchical(Intervals(12), lower=probe.sweep(peaks=2, saves=1), top=StoreAll()), graph)

`check_composition` puts a probe in the place of a solver, solves, and examines the calls of the probe.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen

from remat.algorithms._core.clock import Clock, Progress
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._core.warm_started import WarmStarted
from remat.ir import Graph, Schedule
from remat.ir.arguments import A_GRAPH
from remat.settings import function, takes
from remat.testing.report import LawBroken

COMPOSITION_LAWS = {
    "L-SEED": "every solver inside is called with the seed of the composition",
    "L-CLOCK": "every solver inside has at most the time that is left for the composition",
    "L-HEARD": "the listener of the composition receives the reports of solvers inside",
    "L-INTERRUPT": "an interruption inside leads to an outcome, and stops the composition",
}
_SEED = 7
_SECONDS = 1000.0
_TAKES = 300.0


@frozen(eq=False)
class Probe(WarmStarted):
    """A solver that plans the captured order and records its calls.

    Attributes:
        outer: the clock of the composition. time: advances at each call. interrupts: raise as Ctrl-C does.
        asked: seed, seconds left for the probe and seconds left for the composition, of each call.
    """

    outer: Clock
    time: list[float]
    interrupts: bool = False
    asked: list[tuple[int, float, float]] = field(factory=list)

    def __repr__(self) -> str:
        return "Probe()"

    def plan_from(self, problem: Problem, start: Schedule | None, clock: Clock, seed: int) -> Plan:
        """The captured order, on graphs with layers by their first options."""
        self.asked.append((seed, clock.remaining, self.outer.remaining))
        clock.report(self, note="asked")
        self.time[0] += _TAKES
        if self.interrupts:
            raise KeyboardInterrupt
        return Plan(schedule=Schedule.from_runs(problem.graph, range(len(problem.graph))), trail=("Probe()",))


@takes(compose=function("lambda solver: solver.within(5)"), graph=A_GRAPH)
def check_composition(compose: Callable[[Solver], Solver], graph: Graph, *, budget: int = 1 << 62) -> None:
    """Check that a composition passes on seed, clock, progress and interruption.

    Args:
        compose: makes the composition from a solver, which accepts a start.
        graph: of the problem to solve; the composition must call the solver for it, or for parts of it.
        budget: of that problem [bytes].

    Raises:
        LawBroken: with the id of the law and what the solver inside received.
    """
    problem = Problem(graph=graph, budget=budget)
    heard: list[Progress] = []
    probe, clock = _probe(heard, interrupts=False)
    solver = compose(probe)
    solver.solve(problem, clock=clock, seed=_SEED)
    if not probe.asked:
        raise LawBroken(
            "L-NONE", f"{solver!r} never called the solver inside. Give a graph or budget for which it does."
        )
    for seed, inner, outer in probe.asked:
        _expect("L-SEED", seed == _SEED, f"{solver!r} was called with seed {_SEED}, and calls inside with {seed}.")
        _expect("L-CLOCK", inner <= outer, f"{solver!r} has {outer} s left, and gives {inner} s inside.")
    _expect(
        "L-HEARD",
        any(progress.who == repr(probe) for progress in heard),
        f"no report from inside {solver!r} reaches the listener.",
    )
    probe, clock = _probe([], interrupts=True)
    solver = compose(probe)
    try:
        solver.solve(problem, clock=clock, seed=_SEED)
    except KeyboardInterrupt:
        raise LawBroken("L-INTERRUPT", f"an interruption inside escapes from {solver!r}.") from None
    _expect("L-INTERRUPT", clock.stopped, f"after an interruption inside, {solver!r} does not stop.")


def _probe(heard: list[Progress], *, interrupts: bool) -> tuple[Probe, Clock]:
    time = [0.0]
    clock = Clock(_SECONDS, now=lambda: time[0], listener=heard.append)
    return Probe(clock, time, interrupts), clock


def _expect(law: str, holds: bool, what: str) -> None:
    if not holds:
        raise LawBroken(law, what)


__all__ = ["COMPOSITION_LAWS", "check_composition"]
