"""A second oracle: every optimum of a tiny graph, for all budgets at once, written from the rules page.

It shares no code with replay, with `Exhaustive` or with the arrays of the solvers: it uses only names, sets and counts. A state
has all that the rules depend on: the nodes that have run, the resident data and their contributions. From each state every step
is tried: any run by any option, any drop. Labels (time, peak) leave one queue in order of time, and a label is expanded only if
its peak is smaller than those of all earlier labels of its state, so the labels that reach the end are the exact Pareto frontier.
Exponential: for graphs of up to 7 nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Literal

from attrs import frozen

from remat.ir import Compute, Drop, Graph, Phase, Run, Step
from remat.units import Bytes, Ns

Among = Literal["all", "captured", "staged"]

State = tuple[frozenset[str], tuple[tuple[str, int], ...]]
"""Nodes that have run; resident data with their contributions so far, resident phantoms with their option."""


@frozen(kw_only=True)
class Optimum:
    """A point of the frontier.

    Attributes:
        time: least time of a schedule whose peak is at most `peak` [ns].
        peak: least peak of a schedule of that time [bytes].
        steps: such a schedule.
    """

    time: Ns
    peak: Bytes
    steps: tuple[Step, ...]


def frontier(graph: Graph, among: Among = "all", *, states: int = 10**6) -> tuple[Optimum, ...] | None:
    """The optima of a graph without copies, by ascending time and descending peak; below the last peak no schedule fits.

    Args:
        graph: of up to 7 nodes.
        among: `all` schedules; those with first runs in the `captured` order; or `staged` ones: in addition every node runs, and
            between two first runs nodes run again in the graph's order, each at most once.
        states: largest number of labels.

    Returns:
        None if more labels were needed.
    """
    rules = {"all": _Rules, "captured": _Captured, "staged": _Staged}[among](graph)
    start: State = (frozenset(), ())
    labels: list[tuple[int, Step | None, State]] = [(-1, None, start)]
    queue = [(0, 0, 0)]
    least: dict[State, int] = {}
    optima: list[Optimum] = []
    while queue:
        time, peak, label = heapq.heappop(queue)
        state = labels[label][2]
        if peak >= least.get(state, peak + 1) or (optima and peak >= optima[-1].peak):
            continue
        least[state] = peak
        if len(labels) > states:
            return None
        if rules.finished(state):
            optima.append(Optimum(time=time, peak=peak, steps=_steps(labels, label)))
            continue
        for step, after, lasts, needs in rules.moves(state):
            high = max(peak, needs)
            if high < least.get(after, high + 1) and not (optima and high >= optima[-1].peak):
                labels.append((label, step, after))
                heapq.heappush(queue, (time + lasts, high, len(labels) - 1))
    return tuple(optima)


def optimum(points: tuple[Optimum, ...], budget: Bytes) -> Optimum | None:
    """The fastest point of a frontier that fits a budget; None if none fits."""
    return next((point for point in points if point.peak <= budget), None)


def _steps(labels: list[tuple[int, Step | None, State]], label: int) -> tuple[Step, ...]:
    steps = []
    while label >= 0:
        label, step, _ = labels[label]
        if step is not None:
            steps.append(step)
    return tuple(reversed(steps))


class _Rules:
    """The rules page, for a state of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.size = {datum.name: datum.size for datum in graph.data if datum.writers}
        self.writers = {datum.name: datum.writers for datum in graph.data if datum.writers}
        self.kept = {datum.name for datum in graph.data if datum.keep}
        self.forward = {node.name for node in graph.computes if node.phase is Phase.FORWARD}
        self.loss = next(node.name for node in graph.computes if node.phase is Phase.LOSS)
        self.draws = [node.name for node in graph.computes if node.draws]
        # the rules do not depend on whether other nodes have run
        self.noted = {*self.forward, self.loss, *self.draws} | {node.name for node in graph.computes if node.run_once}
        self.left_by = {layer.forward: layer for layer in graph.layers}
        self.read_by = {layer.backward: layer for layer in graph.layers}
        self.phantom = {layer.phantom: layer for layer in graph.layers}
        self.timely: dict[tuple[str, frozenset[str]], bool] = {}
        self.sums = {
            node.name: [(name, self.writers[name]) for name in node.writes if len(self.writers[name]) > 1]
            for node in graph.computes
        }
        # built once: the search makes the same steps very often
        self.drops = {name: Drop(name) for name in (*self.size, *self.phantom)}
        self.runs = {node.name: [Run(node.name, i) for i in range(len(node.options))] for node in graph.computes}

    def finished(self, state: State) -> bool:
        """S-END, and the loss of S-PHASE."""
        ran, cells = state
        return self.loss in ran and self.kept <= {name for name, count in cells if self.complete(name, count)}

    def complete(self, name: str, count: int) -> bool:
        return name in self.writers and count == len(self.writers[name])

    def moves(self, state: State) -> Iterator[tuple[Step, State, Ns, Bytes]]:
        """Every step that the rules except S-MEM allow: the state after it, its time, and the bytes that it needs."""
        ran, cells = state
        contents = dict(cells)
        live = sum(self.bytes_of(name, count) for name, count in cells)
        for name, count in cells:
            if name not in self.kept or not self.complete(name, count):  # S-KEEP
                yield self.drops[name], (ran, tuple(cell for cell in cells if cell[0] != name)), 0, 0
        for node in self.graph.computes:
            if self.may_run(node, ran, contents):
                for option, choice in enumerate(node.options):
                    if self.finds(node, option, contents):
                        after, output_bytes = self.outputs(node, option, contents)
                        need = live + choice.workspace + output_bytes
                        state = self.note(node.name, ran), tuple(sorted(after.items()))
                        yield self.runs[node.name][option], state, choice.time, need

    def note(self, name: str, ran: frozenset[str]) -> frozenset[str]:
        """The noted nodes that have run, after a run."""
        return ran | {name} if name in self.noted else ran

    def bytes_of(self, name: str, count: int) -> Bytes:
        return self.phantom[name].options[count].phantom if name in self.phantom else self.size[name]

    def may_run(self, node: Compute, ran: frozenset[str], contents: dict[str, int]) -> bool:
        """S-PHASE, S-ORDER, S-ONCE, and the order of contributions."""
        key = (node.name, ran)
        if key not in self.timely:
            self.timely[key] = self.is_timely(node, ran)
        return self.timely[key] and all(
            contents.get(name, 0) < len(writers) and writers[contents.get(name, 0)] == node.name
            for name, writers in self.sums[node.name]
        )

    def is_timely(self, node: Compute, ran: frozenset[str]) -> bool:
        """S-PHASE, S-ORDER, and S-ONCE."""
        if node.name in ran:
            if node.run_once or node.phase is Phase.LOSS:
                return False
        elif node.draws and next(name for name in self.draws if name not in ran) != node.name:
            return False
        if node.phase is Phase.FORWARD and self.loss in ran and node.name not in ran:
            return False
        if node.phase is Phase.LOSS and not self.forward <= ran:
            return False
        return node.phase is not Phase.BACKWARD or self.loss in ran

    def finds(self, node: Compute, option: int, contents: dict[str, int]) -> bool:
        """S-READ."""
        reads = list(node.reads)
        if node.name in self.read_by:
            layer = self.read_by[node.name]
            if contents.get(layer.phantom) != option:
                return False
            reads += layer.options[option].backward_reads
        return all(name not in self.writers or self.complete(name, contents.get(name, 0)) for name in reads)

    def outputs(self, node: Compute, option: int, contents: dict[str, int]) -> tuple[dict[str, int], Bytes]:
        """The data resident after a run, and the bytes of all its outputs."""
        after, output_bytes = dict(contents), 0
        for name in node.writes:
            output_bytes += self.size[name]
            after[name] = contents.get(name, 0) + 1 if len(self.writers[name]) > 1 else 1
        layer = self.left_by.get(node.name)
        if layer is not None and option < len(layer.options):
            output_bytes += layer.options[option].phantom
            after[layer.phantom] = option
        return after, output_bytes


class _Captured(_Rules):
    """First runs keep the graph's order; nodes that lead to no kept datum need not run."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.order = [node.name for node in graph.computes]
        self.noted = set(self.order)

    def is_timely(self, node: Compute, ran: frozenset[str]) -> bool:
        later = self.order[self.order.index(node.name) + 1 :]
        return (node.name in ran or ran.isdisjoint(later)) and super().is_timely(node, ran)


class _Staged(_Captured):
    """In addition every node runs; reruns between two first runs are noted as `again` with the node's name."""

    def finished(self, state: State) -> bool:
        return state[0].issuperset(self.order) and super().finished(state)

    def is_timely(self, node: Compute, ran: frozenset[str]) -> bool:
        at = self.order.index(node.name)
        if node.name in ran:
            late = any(f"again {name}" in ran for name in self.order[at:])
            return not late and not ran.issuperset(self.order) and super().is_timely(node, ran)
        return ran.issuperset(self.order[:at]) and super().is_timely(node, ran)

    def note(self, name: str, ran: frozenset[str]) -> frozenset[str]:
        if name in ran:
            return ran | {f"again {name}"}
        return frozenset({*(node for node in ran if node in self.noted), name})
