"""Transforms with one bug each: a sound one, `Rename`, behind a mistake that authors make."""

import random
import time

from attrs import evolve, frozen

from remat.algorithms import Applied, Problem, Transform
from remat.ir import Drop, Run, Schedule


@frozen
class Rename(Transform):
    """A sound transform: every node and datum gets a longer name."""

    keeps_proofs = True

    def refuses(self, graph):
        return None if graph.flat else "the graph has layers"

    def apply(self, problem, *, clock=None, seed=0):
        graph = problem.graph
        nodes = tuple(
            evolve(
                one,
                name=f"n.{one.name}",
                reads=tuple(f"d.{name}" for name in one.reads),
                writes=tuple(f"d.{name}" for name in one.writes),
                twin=one.twin and f"n.{one.twin}",
                after=tuple(f"n.{name}" for name in one.after),
            )
            for one in graph.computes
        )
        data = tuple(
            evolve(one, name=f"d.{one.name}", writers=tuple(f"n.{name}" for name in one.writers)) for one in graph.data
        )
        return Applied(problem=evolve(problem, graph=evolve(graph, computes=nodes, data=data)), lift=self.lift)

    def lift(self, schedule):
        def back(step):
            return Run(step.node[2:], step.option) if isinstance(step, Run) else evolve(step, datum=step.datum[2:])

        return Schedule(tuple(back(step) for step in schedule.steps))


def with_graph(applied, **changed):
    return evolve(applied, problem=evolve(applied.problem, graph=evolve(applied.problem.graph, **changed)))


class LosesARun(Rename):
    def lift(self, schedule):
        return Schedule(Rename.lift(self, schedule).steps[1:])


class LosesReruns(Rename):
    """Keeps one run of each node."""

    def lift(self, schedule):
        steps = Rename.lift(self, schedule).steps
        return Schedule(
            tuple(step for i, step in enumerate(steps) if not isinstance(step, Run) or step not in steps[:i])
        )


class LosesDrops(Rename):
    def lift(self, schedule):
        return Schedule(tuple(step for step in Rename.lift(self, schedule).steps if not isinstance(step, Drop)))


class ForgetsTheBudget(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        return evolve(applied, problem=evolve(applied.problem, budget=2 * problem.budget + 8))


class RoundsSizesDown(Rename):
    """To whole slots of four bytes, and takes the budget as it is."""

    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        data = tuple(evolve(one, size=one.size // 4 * 4) for one in applied.problem.graph.data)
        return with_graph(applied, data=data)


class ForgetsWorkspaces(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        lean = tuple(
            evolve(one, options=tuple(evolve(option, workspace=0) for option in one.options))
            for one in applied.problem.graph.computes
        )
        return with_graph(applied, computes=lean)


class RoundsUpAndKeepsProofs(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        data = tuple(evolve(one, size=-(-one.size // 4) * 4) for one in applied.problem.graph.data)
        return with_graph(applied, data=data)


class ForbidsAndKeepsProofs(Rename):
    """No node runs twice there."""

    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        return with_graph(applied, computes=tuple(evolve(one, run_once=True) for one in applied.problem.graph.computes))


counter = iter(range(10**9))


class NeverTheSame(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        return evolve(applied, problem=evolve(applied.problem, budget=problem.budget + next(counter)))


class ByChance(Rename):
    """A budget that the generator of the process decides."""

    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        return evolve(applied, problem=evolve(applied.problem, budget=random.randint(0, problem.budget)))


class WritesToTheGraph(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        object.__setattr__(problem.graph, "name", f"{problem.graph.name}.")
        return Rename.apply(self, problem)


class RefusesWithoutAReason(Rename):
    def refuses(self, graph):
        return ""


class LiftsRunsAlone(Rename):
    """Keeps the link, and puts drops where they can be: copies are lost."""

    def apply(self, problem, *, clock=None, seed=0):
        def lift(schedule):
            return Schedule.from_runs(problem.graph, Rename.lift(self, schedule).runs)

        return evolve(Rename.apply(self, problem), lift=lift)


class ForgetsTheDeadline(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        bare = Problem(graph=applied.problem.graph, budget=problem.budget, link=problem.link)
        return evolve(applied, problem=bare)


class ForgetsTheHost(Rename):
    """Makes the problem anew from the parts it knows."""

    def apply(self, problem, *, clock=None, seed=0):
        new = Rename.apply(self, problem).problem
        problem = Problem(graph=new.graph, budget=new.budget, link=new.link, deadline=new.deadline)
        return Applied(problem=problem, lift=self.lift)


class LiftsNothing(Rename):
    def lift(self, schedule):
        Rename.lift(self, schedule)


class LiftRaises(Rename):
    def lift(self, schedule):
        names = {"n.L": "L"}
        return Schedule(tuple(Run(names[step.node]) for step in schedule.runs))


class AnswersAProblem(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        return Rename.apply(self, problem).problem


class AsTheSetComes(Rename):
    """Data in the order of a set."""

    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        graph = applied.problem.graph
        return with_graph(applied, data=tuple(graph.datum(name) for name in {one.name for one in graph.data}))


class DataByName(Rename):
    """Data sorted by name."""

    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        return with_graph(applied, data=tuple(sorted(applied.problem.graph.data, key=lambda one: one.name)))


class SwallowsInterruption(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        try:
            return Rename.apply(self, problem)
        except KeyboardInterrupt:
            return Applied(problem=problem, lift=lambda schedule: schedule)


class NeverEnds(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        while problem.budget >= 0:
            time.sleep(0)


class TakesNoClock(Rename):
    """As if nobody handed on a clock and a seed."""

    def apply(self, problem):
        return Rename.apply(self, problem)


TRANSFORMS = {
    LosesARun(): "L-LIFT",
    LosesReruns(): "L-LIFT",
    LosesDrops(): "L-FIT L-LIFT",
    ForgetsTheBudget(): "L-FIT",
    RoundsSizesDown(): "L-FIT L-LINK",
    ForgetsWorkspaces(): "L-FIT",
    RoundsUpAndKeepsProofs(): "L-PROOF",
    ForbidsAndKeepsProofs(): "L-PROOF",
    NeverTheSame(): "L-REPEAT L-FIT",
    ByChance(): "L-GLOBAL",
    WritesToTheGraph(): "L-PURE",
    RefusesWithoutAReason(): "L-REFUSE",
    LiftsRunsAlone(): "L-LINK",
    ForgetsTheDeadline(): "L-ASKED",
    ForgetsTheHost(): "L-ASKED",
    LiftsNothing(): "L-INT",
    LiftRaises(): "L-RAISE",
    AnswersAProblem(): "L-INT",
    AsTheSetComes(): "L-NAMES",
    DataByName(): "L-NAMES",
    SwallowsInterruption(): "L-INTERRUPT",
    NeverEnds(): "L-TIME",
    TakesNoClock(): "L-RAISE",
}
"""Each planted bug, and the laws that it may break first."""
