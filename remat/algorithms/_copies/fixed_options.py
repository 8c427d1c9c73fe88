"""A graph with layers or options as a flat one, in which each node runs by one option.

A layer's phantom becomes a datum that its forward writes and its backward reads. The replay treats both alike, copies included,
so a schedule of the flat graph takes the same time and memory above. There its forward may also run without saving: such a run
is put in where the flat schedule drops the phantom unread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np
from attrs import evolve, frozen

from remat.ir import Data, Drop, Graph, Layer, Offload, Run, Schedule
from remat.ir.step import Step
from remat.units import Ns


@frozen(eq=False)
class FixedOptions:
    """A choice of options for a graph.

    Attributes:
        above: the graph with layers or options.
        graph: the flat one.
        options: by node, the option that it runs by.
    """

    above: Graph
    graph: Graph
    options: Mapping[str, int]

    @classmethod
    def fastest(cls, above: Graph) -> FixedOptions:
        """The fastest option of each node, and the fastest pair of each layer: what keeps most, for copies to take away."""
        options = {node.name: _fastest(option.time for option in node.options) for node in above.computes}
        for layer in above.layers:
            options[layer.backward] = _fastest(option.forward + option.backward for option in layer.options)
        return cls.of(above, options)

    @classmethod
    def of(cls, above: Graph, options: Mapping[str, int]) -> FixedOptions:
        """Options by node; a layer's are those of its backward."""
        options = {**options, **{layer.forward: options[layer.backward] for layer in above.layers}}
        return cls(above, _flat(above, options), options)

    def where(self, schedule: Schedule) -> FixedOptions:
        """With the options by which a schedule of the graph above runs its nodes last, these where it does not."""
        return self.of(self.above, {**self.options, **{run.node: run.option for run in schedule.runs}})

    def mixed(self, other: FixedOptions, schedule: Schedule) -> FixedOptions:
        """With those of `other` for the layers that a schedule of this flat graph runs forward more than once."""
        runs = Counter(run.node for run in schedule.runs)
        again = [layer.backward for layer in self.above.layers if runs[layer.forward] > 1]
        return self.of(self.above, {**self.options, **{name: other.options[name] for name in again}})

    def fixed(self, schedule: Schedule) -> Schedule:
        """A schedule of the graph above with each run by the option of its node; runs alone, it may not fit the budget."""
        return Schedule.from_runs(self.graph, [Run(run.node) for run in schedule.runs])

    def lifted(self, schedule: Schedule, *, unsaved: bool = True) -> Schedule:
        """A schedule of the flat graph, of the graph above.

        Args:
            schedule: with copies or without.
            unsaved: whether a forward whose phantom is never used runs without saving it, which may take longer or more memory.
        """
        steps: list[Step] = list(schedule.steps)
        kept: set[int] = set(range(len(steps)))
        unused: dict[str, int] = {}  # where a phantom was made that nothing has used yet

        def unmade(phantom: str) -> bool:
            """Have the run that made a phantom, unless it was used, not save it; whether that is so."""
            at = unused.pop(phantom, None)
            if at is None or not unsaved:
                return False
            run = schedule.steps[at]
            assert isinstance(run, Run)
            steps[at] = Run(run.node, len(self._forwards[run.node].options))
            return True

        for i, step in enumerate(schedule.steps):
            if isinstance(step, Run):
                if (layer := self._backwards.get(step.node)) is not None:
                    unused.pop(layer.phantom, None)
                steps[i] = Run(step.node, self.options[step.node])
                if (layer := self._forwards.get(step.node)) is not None:
                    unmade(layer.phantom)
                    unused[layer.phantom] = i
            elif isinstance(step, Offload):
                unused.pop(step.datum, None)
            elif isinstance(step, Drop) and unmade(step.datum):
                kept.remove(i)
        for phantom in list(unused):
            unmade(phantom)
        return Schedule(tuple(steps[i] for i in sorted(kept)))

    @cached_property
    def _forwards(self) -> dict[str, Layer]:
        return {layer.forward: layer for layer in self.above.layers}

    @cached_property
    def _backwards(self) -> dict[str, Layer]:
        return {layer.backward: layer for layer in self.above.layers}


def _fastest(times: Iterable[Ns]) -> int:
    """The place of the least time, the first of several."""
    return int(np.argmin(list(times)))


def _flat(above: Graph, options: Mapping[str, int]) -> Graph:
    """The graph with one option per node, phantoms as data."""
    nodes = {node.name: evolve(node, options=(node.options[options[node.name]],)) for node in above.computes}
    phantoms = []
    for layer in above.layers:
        option, before, after = layer.options[options[layer.backward]], nodes[layer.forward], nodes[layer.backward]
        more = (name for name in option.backward_reads if name not in after.reads)
        nodes[layer.forward] = evolve(before, writes=(*before.writes, layer.phantom))
        nodes[layer.backward] = evolve(after, reads=(*after.reads, *more, layer.phantom))
        phantoms.append(Data(name=layer.phantom, size=option.phantom, writers=(layer.forward,)))
    return Graph(name=above.name, computes=tuple(nodes.values()), data=(*above.data, *phantoms))
