"""The common baselines: keep everything, and checkpoint around each layer. Linear time, no bounds."""

from __future__ import annotations

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver, refuse_unless_flat
from remat.ir import Graph, Phase, Schedule, validate
from remat.ir.arguments import A_GRAPH
from remat.settings import optional, takes, whole
from remat.units import Bytes


@frozen
class StoreAll(Solver):
    """Run every node once, in the graph's order; drop each datum at its last read. The budget decides whether it fits."""

    def refuses(self, graph: Graph) -> str | None:
        """Refuses graphs with options: a graph does not say which of them keeps everything."""
        return refuse_unless_flat(graph)

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The captured order; no schedule is faster, so its time is a bound."""
        schedule = Schedule.from_runs(problem.graph, range(len(problem.graph)))
        return Plan(schedule=schedule, lower=least_time(problem.graph), trail=("StoreAll: nothing is recomputed",))


@takes(graph=A_GRAPH)
def least_time(graph: Graph) -> int:
    """A bound for every schedule: forward nodes, the loss, and what leads to kept data run at least once [ns]."""
    return sum(min(option.time for option in graph.computes[i].options) for i in graph.required)


@takes(graph=A_GRAPH)
def store_all_peak(graph: Graph) -> Bytes:
    """The replayed peak of `StoreAll` [bytes]; budgets in per cent are fractions of it."""
    return validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak


@frozen
class PerLayerCheckpoint(Solver):
    """Like `torch.utils.checkpoint` around each layer: keep the outputs of layers, replay each layer in its backward.

    A layer is a sequence of consecutive forward nodes with the same scope up to `depth` names. Data that other layers read, and
    outputs of run-once nodes, stay; all other data are dropped after the forward and recomputed, for a layer at a time, when
    the backward first needs them. Proves nothing.

    Attributes:
        depth: number of leading names of the scope that identify a layer; None: the best depth that fits, otherwise the depth of
            the smallest peak.
        together: number of consecutive layers that share one checkpoint.
    """

    depth: int | None = field(default=None, validator=optional(whole(1, "names")))
    together: int = field(default=1, validator=whole(1, "layers"))

    @takes(graph=A_GRAPH)
    def refuses(self, graph: Graph) -> str | None:
        """Refuses graphs with options, and graphs whose nodes have no scope."""
        if any(node.scope for node in graph.computes):
            return refuse_unless_flat(graph)
        return "no node has a scope, so its layers cannot be identified"

    def plan(self, problem: Problem, clock: Clock, seed: int) -> Plan:
        """The checkpointed schedule, for the given depth or for the best one."""
        graph = problem.graph
        deepest = max(node.scope.count(".") + 1 for node in graph.computes if node.scope)
        depths = range(1, deepest + 1) if self.depth is None else (self.depth,)
        plans = {
            depth: Schedule.from_runs(graph, checkpointed(graph, _groups(graph, depth, self.together)))
            for depth in depths
        }
        costs = {depth: validate(graph, plan) for depth, plan in plans.items()}
        fitting = [depth for depth in depths if costs[depth].peak <= problem.budget]
        if fitting:
            chosen = min(fitting, key=lambda depth: (costs[depth].time, costs[depth].peak, depth))
        else:
            chosen = min(depths, key=lambda depth: (costs[depth].peak, depth))
        return Plan(
            schedule=plans[chosen], trail=(f"PerLayerCheckpoint: layers are the first {chosen} names of a scope",)
        )


def checkpointed(graph: Graph, group: dict[int, int], kept: frozenset[int] = frozenset()) -> list[int]:
    """The run sequence (indices of nodes) that checkpoints every group of forward nodes, except those that are kept.

    Args:
        graph: without options.
        group: of each forward node. Data that another group reads stay; the other data of a group are recomputed together, when
            the backward first needs one of them.
        kept: groups that are not replayed.
    """
    replayable = _replayable(graph, group)
    runs: list[int] = []
    replayed = set(kept)
    for i, node in enumerate(graph.computes):
        if node.phase is Phase.BACKWARD:
            for g in sorted(_needs(graph, i, group, replayable) - replayed, reverse=True):
                replayed.add(g)
                runs += [j for j in replayable if group[j] == g]
        runs.append(i)
    return runs


def _groups(graph: Graph, depth: int, together: int) -> dict[int, int]:
    """The checkpoint of each forward node: consecutive nodes of equal scope are a layer."""
    group: dict[int, int] = {}
    layer, last = -1, None
    for i, node in enumerate(graph.computes):
        if node.phase is Phase.FORWARD:
            scope = ".".join(node.scope.split(".")[:depth])
            if scope != last:
                layer, last = layer + 1, scope
            group[i] = layer // together
    return group


def _replayable(graph: Graph, group: dict[int, int]) -> list[int]:
    """Forward nodes that a checkpoint replays: those that lead to data that the backward reads and that are not kept."""
    replayable: set[int] = set()
    for i in sorted(group, reverse=True):
        dropped = [d for d in graph.writes_by_node[i] if not _stays(graph, group, d)]
        readers = {r for d in dropped for r in graph.readers_by_data[d]}
        if _may_rerun(graph, i) and any(r in replayable or graph.computes[r].phase is Phase.BACKWARD for r in readers):
            replayable.add(i)
    return sorted(replayable)


def _stays(graph: Graph, group: dict[int, int], d: int) -> bool:
    """Whether a datum is kept from its production: by the step, for another group, or for the loss."""
    writers, readers = graph.writers_by_data[d], graph.readers_by_data[d]
    outer = any(r in group and group[r] != group[w] for r in readers for w in writers)
    return graph.data[d].keep or outer or graph.loss in readers


def _may_rerun(graph: Graph, i: int) -> bool:
    single = all(len(graph.writers_by_data[d]) == 1 for d in graph.writes_by_node[i])
    return single and not graph.computes[i].run_once


def _needs(graph: Graph, i: int, group: dict[int, int], replayable: list[int]) -> set[int]:
    """The checkpoints whose replay a backward node needs."""
    replayed = set(replayable)
    return {group[w] for d in graph.reads_by_node[i] for w in graph.writers_by_data[d] if w in replayed}
