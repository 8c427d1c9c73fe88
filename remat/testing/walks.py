"""Random valid schedules of any graph, by a walk that follows the replay rules: for tests, not for planning.

The walk runs every node once, in a random topological order, and between two of them drops or offloads random data; data that a
run then misses are recomputed, or copied back. It keeps track of resident data without the library's replay, because its
schedules serve to test the validator.
"""

from __future__ import annotations

from collections.abc import Callable

from remat.ir import Drop, Graph, Offload, Phase, Prefetch, Run, Schedule, Step

Choose = Callable[[int, int], int]
"""`choose(low, high)`: any int from `low` to `high`, both included."""


def offloading(graph: Graph) -> Schedule:
    """The captured order; data used on both sides of the loss are offloaded after their last use before it and prefetched."""
    plain = Schedule.from_runs(graph, range(len(graph)))
    at = next(i for i, step in enumerate(plain.steps) if step == Run(graph.computes[graph.loss].name))
    uses = [_uses(graph, step) for step in plain.steps]
    fixed = {datum.name for datum in graph.data if datum.keep or datum.outside}
    crossing = {name for used in uses[at + 1 :] for name in used} & {name for used in uses[:at] for name in used}
    steps: list[Step] = []
    out, back = set(crossing - fixed), set(crossing - fixed)
    last = {name: i for i, used in enumerate(uses[: at + 1]) for name in used}
    for i, step in enumerate(plain.steps):
        for name in sorted(uses[i] & back if i > at else ()):
            steps.append(Prefetch(name))
            back.remove(name)
        steps.append(step)
        for name in sorted(datum for datum in out if last[datum] == i):
            steps.append(Offload(name))
            out.remove(name)
    return Schedule(tuple(steps))


def _uses(graph: Graph, step: Step) -> set[str]:
    if not isinstance(step, Run):
        return set()
    node, layer = graph.node(step.node), graph.layer_by_node.get(step.node)
    used = {*node.reads, *node.writes}
    if layer is not None:
        used.add(layer.phantom)
        if step.node == layer.backward:
            used.update(layer.options[step.option].backward_reads)
    return used


class Walk:
    """One walk. `choose` makes every choice: a seeded generator's `randint` repeats it.

    Args:
        graph: of the schedule.
        choose: makes every choice.
        copies: whether data are also copied out and back.
        captured: whether first runs keep the graph's order.
    """

    def __init__(self, graph: Graph, choose: Choose, *, copies: bool = False, captured: bool = False) -> None:
        self.graph = graph
        self.choose = choose
        self.copies = copies
        self.captured = captured
        self.steps: list[Step] = []
        self.done = {datum.name: 0 for datum in graph.data if datum.outside}
        self.complete = {datum.name: len(datum.writers) for datum in graph.data}
        self.phantom_options = {layer.phantom: len(layer.options) for layer in graph.layers}
        self.host: dict[str, int] = {}
        self.ran: set[str] = set()
        self.once = {layer.forward for layer in graph.layers if not self._may_run_again(layer.forward)}
        self.fixed = {layer.phantom for layer in graph.layers if layer.forward in self.once}
        self.droppable = {datum.name for datum in graph.data if self._may_be_made_again(datum.name)}
        self.restartable = {name for name in self.droppable if graph.datum(name).keep}

    def schedule(self) -> Schedule:
        """The walk's schedule."""
        left = [node.name for node in self.graph.computes]
        while left:
            ready = left[:1] if self.captured else [name for name in left if self._may_first_run(name)]
            name = ready[self.choose(0, len(ready) - 1)]
            self._tidy()
            self.run(name)
            left.remove(name)
            if self.choose(0, 9) == 9:
                self._again()
        self._tidy()
        return Schedule(tuple(self.steps))

    # -- what the rules allow ------------------------------------------------------------------------------------------

    def _may_be_made_again(self, name: str) -> bool:
        """Whether it may be dropped and recomputed: its writers may run again, and contribute to no other sum.

        A kept sum may be dropped while it is not complete: this depends on all of its writers except the last.
        """
        datum = self.graph.datum(name)
        names = datum.writers[:-1] if datum.keep else datum.writers
        writers = [self.graph.node(writer) for writer in names]
        several = {other for node in writers for other in node.writes if self.complete[other] > 1}
        return (
            (not datum.keep or len(writers) > 0)
            and not datum.outside
            and all(not node.run_once and node.phase is not Phase.LOSS for node in writers)
            and self.once.isdisjoint(names)
            and several <= {name}
        )

    def _may_run_again(self, name: str) -> bool:
        node = self.graph.node(name)
        return not node.run_once and all(self.complete[datum] == 1 for datum in node.writes)

    def _may_first_run(self, name: str) -> bool:
        graph, node = self.graph, self.graph.node(name)
        before = graph.computes[: graph.node_index[name]]
        if node.phase is not Phase.FORWARD and any(
            earlier.name not in self.ran for earlier in before if earlier.phase is not node.phase
        ):
            return False
        if node.draws and any(earlier.draws and earlier.name not in self.ran for earlier in before):
            return False
        layer = graph.layer_by_node.get(name)
        needs = {writer for datum in node.reads for writer in graph.datum(datum).writers}
        if layer is not None and name == layer.backward:
            needs |= {
                w for choice in layer.options for datum in choice.backward_reads for w in graph.datum(datum).writers
            }
        for datum in node.writes:
            writers = graph.datum(datum).writers
            needs |= set(writers[: writers.index(name)])
        return needs <= self.ran

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, name: str) -> None:
        """Run a node, after the nodes that it needs."""
        graph, node = self.graph, self.graph.node(name)
        layer = graph.layer_by_node.get(name)
        no_save = layer is not None and name in self.once  # the only run must leave the phantom
        option = self.choose(0, len(node.options) - 1 - no_save)
        reads = list(node.reads)
        if layer is not None and name == layer.backward:
            saved = self.done.get(layer.phantom)
            option = option if saved is None else saved
            reads += layer.options[option].backward_reads
        for datum in node.writes:
            writers = graph.datum(datum).writers
            while len(writers) > 1 and self.done.get(datum, 0) < writers.index(name):
                self._make(datum, self.done.get(datum, 0) + 1)
        for datum in reads:
            self._make(datum, self.complete[datum])
        if layer is not None and name == layer.backward:
            self._make_phantom(layer.forward, layer.phantom, option)
            for datum in reads:
                self._make(datum, self.complete[datum])
        self.steps.append(Run(name, option))
        self.ran.add(name)
        for datum in node.writes:
            self.done[datum] = self.done.get(datum, 0) + 1 if self.complete[datum] > 1 else 1
            self.host.pop(datum, None)
        if layer is not None and name == layer.forward and option < len(layer.options):
            self.done[layer.phantom] = option
            self.host.pop(layer.phantom, None)

    def _make(self, datum: str, contributions: int) -> None:
        if datum in self.done and self.done[datum] >= contributions:
            return
        if datum in self.host and datum not in self.done:
            self.steps.append(Prefetch(datum))
            self.done[datum] = self.host[datum]
            return
        writers = self.graph.datum(datum).writers
        while self.done.get(datum, 0) < contributions:
            self.run(writers[self.done.get(datum, 0)])

    def _make_phantom(self, forward: str, phantom: str, option: int) -> None:
        if phantom not in self.done and self.host.get(phantom) == option:
            self.steps.append(Prefetch(phantom))
            self.done[phantom] = option
        if self.done.get(phantom) != option:
            for datum in self.graph.node(forward).reads:
                self._make(datum, self.complete[datum])
            self.steps.append(Run(forward, option))
            for datum in self.graph.node(forward).writes:
                self.done[datum] = 1
                self.host.pop(datum, None)
            self.done[phantom] = option
            self.host.pop(phantom, None)

    def _tidy(self) -> None:
        """Drop or offload some of the resident data."""
        for name in sorted(self.done):
            phantom = name in self.phantom_options
            if not phantom and name not in self.droppable:
                continue
            if name in self.restartable and self.done[name] == self.complete[name]:
                continue  # S-KEEP
            fate = self.choose(0, 5)
            if name in self.fixed and fate < 4:
                continue
            if fate >= 4 and self.copies and (phantom or self.done[name] == self.complete[name]):
                self.steps.append(Offload(name))
                self.host[name] = self.done.pop(name)
            elif fate in (2, 3):
                self.steps.append(Drop(name))
                del self.done[name]

    def _again(self) -> None:
        """Run some node once more without need, which the rules allow."""
        able = [
            node.name
            for node in self.graph.computes
            if node.name in self.ran and node.phase is Phase.FORWARD and self._may_run_again(node.name)
        ]
        if able:
            self.run(able[self.choose(0, len(able) - 1)])
