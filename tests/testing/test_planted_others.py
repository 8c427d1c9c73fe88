"""`check_transform` and `check_partitioner` on trial: sound ones pass, planted bugs are caught by their law."""

from functools import cache

import pytest
from attrs import evolve, frozen

from remat.algorithms import Applied, Transform
from remat.algorithms._hierarchy.partition import Partitioner, Segments, Undivided
from remat.ir import Cluster, Phase, Run, Schedule
from remat.testing import LawBroken, check_partitioner, check_transform


def quiet(text):
    pass


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


class LosesARun(Rename):
    def lift(self, schedule):
        return Schedule(Rename.lift(self, schedule).steps[1:])


class ForgetsTheBudget(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        return evolve(applied, problem=evolve(applied.problem, budget=2 * problem.budget + 8))


class RoundsUpAndKeepsProofs(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        graph = applied.problem.graph
        coarse = tuple(evolve(one, size=-(-one.size // 4) * 4) for one in graph.data)
        return evolve(applied, problem=evolve(applied.problem, graph=evolve(graph, data=coarse)))


counter = iter(range(10**9))


class NeverTheSame(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        applied = Rename.apply(self, problem)
        return evolve(applied, problem=evolve(applied.problem, budget=problem.budget + next(counter)))


class WritesToTheGraph(Rename):
    def apply(self, problem, *, clock=None, seed=0):
        object.__setattr__(problem.graph, "name", f"{problem.graph.name}.")
        return Rename.apply(self, problem)


class RefusesWithoutAReason(Rename):
    def refuses(self, graph):
        return ""


TRANSFORMS = {
    LosesARun(): "L-LIFT",
    ForgetsTheBudget(): "L-FIT",
    RoundsUpAndKeepsProofs(): "L-PROOF",
    NeverTheSame(): "L-REPEAT",
    WritesToTheGraph(): "L-PURE",
    RefusesWithoutAReason(): "L-REFUSE",
}


class NotConvex(Partitioner):
    def partition(self, graph):
        forward = [node.name for node in graph.computes if node.phase is Phase.FORWARD]
        return (Cluster(name="ends", forward=(forward[0], forward[-1])),)


class Overlapping(Partitioner):
    def partition(self, graph):
        forward = [node.name for node in graph.computes if node.phase is Phase.FORWARD]
        return (Cluster(name="one", forward=tuple(forward[:1])), Cluster(name="two", forward=tuple(forward[:2])))


class TakesTheLoss(Partitioner):
    def partition(self, graph):
        return (Cluster(name="one", forward=(graph.computes[graph.loss].name,)),)


class EntangledClusters(Partitioner):
    """Each cluster is convex; together they depend on each other, or cut a sum."""

    def partition(self, graph):
        forward = [node.name for node in graph.computes if node.phase is Phase.FORWARD]
        return tuple(
            Cluster(name=f"c{k}", forward=tuple(forward[k::2]), backward=self.twins(graph, forward[k::2]))
            for k in (0, 1)
        )

    def twins(self, graph, names):
        return tuple(node.name for node in graph.computes if node.twin in names)


class Moody(Partitioner):
    def partition(self, graph):
        return Segments(1 + next(counter) % 2).partition(graph)


PARTITIONERS = {
    NotConvex(): "L-CONVEX",
    Overlapping(): "L-DISJOINT",
    TakesTheLoss(): "L-DISJOINT",
    EntangledClusters(): "L-CONDENSE",
    Moody(): "L-REPEAT",
}


@cache
def broken_by(check, subject):
    try:
        check(subject, exclude={"L-REPR": "planted classes are in no registry"}, examples=150, shrink=False, say=quiet)
    except LawBroken as error:
        return error.law
    return None


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda one: type(one).__name__)
def test_planted_bug_in_a_transform_breaks_its_law(transform):
    assert broken_by(check_transform, transform) == TRANSFORMS[transform]


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=lambda one: type(one).__name__)
def test_planted_bug_in_a_partitioner_breaks_its_law(partitioner):
    others = {"L-CONVEX": "another law is on trial"} if PARTITIONERS[partitioner] == "L-CONDENSE" else {}
    exclude = {"L-REPR": "planted classes are in no registry"} | others
    with pytest.raises(LawBroken) as caught:
        check_partitioner(partitioner, exclude=exclude, examples=150, shrink=False, say=quiet)
    assert caught.value.law == PARTITIONERS[partitioner]


def test_a_sound_transform_keeps_all_laws():
    check_transform(Rename(), say=quiet)


@pytest.mark.parametrize("partitioner", [Undivided(), Segments(1), Segments(2), Segments(20)], ids=repr)
def test_own_partitioners_keep_all_laws(partitioner):
    check_partitioner(partitioner, say=quiet, examples=40)


@pytest.mark.parametrize("subject", [LosesARun(), NotConvex()], ids=lambda one: type(one).__name__)
def test_an_error_of_a_law_carries_the_example(subject):
    check = check_transform if isinstance(subject, Transform) else check_partitioner
    with pytest.raises(LawBroken) as caught:
        check(subject, exclude={"L-REPR": "not registered"}, examples=30, shrink=False, say=quiet)
    assert "remat graph 1" in caught.value.example and caught.value.example in str(caught.value)
