"""Solvers with one bug each in what they promise about flags, hosts, starts and proofs."""

from attrs import evolve, frozen

from remat.algorithms import IMPOSSIBLE, Floor, Plan, StoreAll
from remat.algorithms._core.evidence import Evidence
from remat.errors import InvalidSchedule
from remat.ir import validate
from remat.proof import Proof
from remat.testing.walks import offloading
from tests.testing.planted.solvers import Planted, exact, planned, with_data, with_nodes


class HintsBind(Planted):
    """Takes nodes with hints for nodes that draw, which keep their place."""

    def plan(self, problem, clock, seed):
        named = {name for node in problem.graph.computes for name in node.after}
        graph = with_nodes(
            problem.graph, lambda one: evolve(one, draws=one.draws or bool(one.after) or one.name in named)
        )
        return planned(None, exact(problem, graph=graph).lower)


class KeepsWhatRunsOnce(Planted):
    """Takes for kept what a run-once node makes, since it cannot be made again."""

    def plan(self, problem, clock, seed):
        once = {node.name for node in problem.graph.computes if node.run_once}
        graph = with_data(problem.graph, lambda one: evolve(one, keep=True) if once & set(one.writers) else one)
        return planned(None, exact(problem, graph=graph).lower)


class HostTooSmall(Planted):
    """Takes for impossible what does not fit the host as a whole."""

    models_link = True

    def plan(self, problem, clock, seed):
        whole = sum(datum.size for datum in problem.graph.data)
        small = problem.host_budget is not None and problem.host_budget < whole
        return planned(None, IMPOSSIBLE if small else 0)


class SmallHostsTakeNothing(Planted):
    """Bounds schedules with a small host as if they made no copies."""

    models_link = True

    def plan(self, problem, clock, seed):
        return bounded_without_copies(problem, problem.host_budget is not None)


class LatencyForbidsCopies(Planted):
    """Bounds schedules over a link with a latency as if they made no copies."""

    models_link = True

    def plan(self, problem, clock, seed):
        return bounded_without_copies(problem, problem.link is not None and problem.link.to_host_latency > 0)


class SlowLinksAreNotUsed(Planted):
    """Bounds schedules over a link slower than a byte per nanosecond as if they made no copies."""

    models_link = True

    def plan(self, problem, clock, seed):
        slow = problem.link is not None and (problem.link.to_host or 10**9) < 10**9
        return bounded_without_copies(problem, slow)


class HostWithoutEnd(Planted):
    """Copies whatever the host may hold."""

    models_link = True

    def plan(self, problem, clock, seed):
        schedule = offloading(problem.graph)
        try:
            validate(problem.graph, schedule, problem.budget, problem.link)
        except InvalidSchedule:
            return exact_without_copies(problem)
        return planned(schedule)


def bounded_without_copies(problem, really):
    bare = exact(problem, link=None, host_budget=None)
    return planned(bare.schedule, bare.lower if really or problem.link is None else 0)


def exact_without_copies(problem):
    return planned(exact(problem, link=None, host_budget=None).schedule)


class StartAsBound(Planted):
    """Takes the time of a start for a bound."""

    takes_start = True

    def plan_from(self, problem, start, clock, seed):
        return planned(start, 0 if start is None else validate(problem.graph, start).time)


class StartRaises(Planted):
    takes_start = True

    def plan_from(self, problem, start, clock, seed):
        return planned(start[0])


class _Empty(Evidence):
    def write(self, step):
        return Proof({"format": "remat-proof/1", "theorem": "floor"})


class EvidenceOfNothing(Planted):
    """What it gives as evidence proves nothing."""

    def plan(self, problem, clock, seed):
        return Plan(lower=1, evidence=_Empty(problem.graph, problem.budget, 1)) if problem.graph.time else Plan()


class EvidenceOfLess(Planted):
    """Its evidence is of a smaller budget, where no schedule fits."""

    def plan(self, problem, clock, seed):
        return Plan(evidence=Floor().solve(evolve(problem, link=None, host_budget=None, budget=0)).evidence)


@frozen
class EvidenceOfMore(Planted):
    """It has a proof that there is no schedule, and claims nothing."""

    def refuses(self, graph):
        return None if graph.flat else "the graph has layers"

    def plan(self, problem, clock, seed):
        return Plan(evidence=Floor().solve(evolve(problem, link=None, host_budget=None)).evidence)


class ClaimsWhatItIsAskedToProve(Planted):
    """Where a proof is asked for and it has no plan, it says that none exists."""

    def plan(self, problem, clock, seed):
        plain = StoreAll().solve(problem, clock=clock, seed=seed)
        return planned(plain.schedule, 0 if plain.schedule or not problem.proof_leaves else IMPOSSIBLE)


PROMISES = {
    ClaimsWhatItIsAskedToProve(): "L-EVIDENCE",
    HintsBind(): "L-BOUND",
    KeepsWhatRunsOnce(): "L-BOUND",
    SmallHostsTakeNothing(): "L-HOST",
    LatencyForbidsCopies(): "L-LINK L-HOST",
    SlowLinksAreNotUsed(): "L-LINK L-HOST",
    HostTooSmall(): "L-HOST",
    HostWithoutEnd(): "L-HOST",
    StartAsBound(): "L-START",
    StartRaises(): "L-RAISE",
    EvidenceOfNothing(): "L-EVIDENCE L-BOUND",
    EvidenceOfLess(): "L-EVIDENCE",
    EvidenceOfMore(): "L-EVIDENCE",
}
"""Each planted bug, and the laws that it may break first."""
