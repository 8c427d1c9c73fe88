"""The part of a training step that a cluster is: its borders, its own graph, and the options that need no solver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from attrs import evolve, frozen

from remat.ir.cluster import Cluster, require_nodes
from remat.ir.graph import Graph
from remat.ir.node import Compute, Data, Kind, Phase
from remat.ir.offer import option_of
from remat.ir.option import LayerOption, Option
from remat.ir.schedule import Schedule
from remat.ir.step import Run, Step
from remat.ir.validation import validate
from remat.units import Bytes


@frozen
class Part:
    """A cluster of a flat graph, with its borders.

    Attributes:
        flat: the graph. cluster: the cluster.
    """

    flat: Graph
    cluster: Cluster

    def __attrs_post_init__(self) -> None:
        require_nodes(self.flat, self.cluster)

    # -- borders -------------------------------------------------------------------------------------------------------

    @cached_property
    def forward_nodes(self) -> tuple[Compute, ...]:
        """Its forward nodes."""
        return tuple(self.flat.node(name) for name in self.cluster.forward)

    @cached_property
    def backward_nodes(self) -> tuple[Compute, ...]:
        """Its backward nodes."""
        return tuple(self.flat.node(name) for name in self.cluster.backward)

    @cached_property
    def _data(self) -> dict[str, bool]:
        """The data that its nodes touch, and whether a node outside reads them or the step keeps them."""
        inside = {self.flat.node_index[name] for name in self.cluster.nodes}
        names = dict.fromkeys(
            n for node in (*self.forward_nodes, *self.backward_nodes) for n in (*node.reads, *node.writes)
        )
        shared_by_name = {}
        for name in names:
            index = self.flat.data_index[name]
            readers, writers = self.flat.readers_by_data[index], self.flat.writers_by_data[index]
            shared = any(node not in inside for node in (*readers, *writers))
            shared_by_name[name] = shared or self.flat.data[index].keep
        return shared_by_name

    def _border(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in dict.fromkeys(names) if self._data[name])

    @cached_property
    def interior(self) -> frozenset[str]:
        """Data that no node outside reads or writes."""
        return frozenset(name for name, seen in self._data.items() if not seen and not self.flat.datum(name).outside)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Data that its forward writes and the level above sees."""
        return self._border(name for node in self.forward_nodes for name in node.writes)

    @cached_property
    def outgoing(self) -> tuple[str, ...]:
        """Data that its backward writes and the level above sees."""
        return self._border(name for node in self.backward_nodes for name in node.writes)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """What its forward reads from outside."""
        written = {name for node in self.forward_nodes for name in node.writes}
        return tuple(dict.fromkeys(name for node in self.forward_nodes for name in node.reads if name not in written))

    @cached_property
    def incoming(self) -> tuple[str, ...]:
        """What its backward reads that the loss or other backward nodes write."""
        inside = set(self.cluster.nodes)
        reads = dict.fromkeys(name for node in self.backward_nodes for name in node.reads)
        return tuple(
            name
            for name in reads
            if (writers := self.flat.datum(name).writers)
            and self.flat.node(writers[-1]).phase is not Phase.FORWARD
            and not set(writers) & inside
        )

    def sums_once(self, writes: Iterable[str]) -> bool:
        """Whether one of the data is kept and a sum of several contributions made here: then its half runs only once."""
        inside = set(self.cluster.nodes)
        return any(
            (datum := self.flat.datum(name)).keep and sum(writer in inside for writer in datum.writers) > 1
            for name in writes
        )

    def _shares_sum(self, node: Compute) -> bool:
        """Whether it contributes to a sum with nodes outside; a rerun would count twice."""
        inside = set(self.cluster.nodes)
        return any(not inside.issuperset(self.flat.datum(name).writers) for name in node.writes)

    # -- the graph -----------------------------------------------------------------------------------------------------

    @property
    def rest(self) -> str:
        """Name of the loss node of the part."""
        return f"{self.cluster.name}.rest"

    @cached_property
    def graph(self) -> Graph:
        """The training step of the cluster alone."""
        return self._graph(self.backward_nodes)

    @cached_property
    def _forward_graph(self) -> Graph:
        return self._graph(())

    def _graph(self, backward: Sequence[Compute]) -> Graph:
        inside = {node.name for node in (*self.forward_nodes, *backward)}
        incoming = self.incoming if backward else ()
        later = {node.name for node in backward}
        loss = Compute(
            name=self.rest,
            phase=Phase.LOSS,
            # a sum to which the backward adds is not complete yet
            reads=tuple(name for name in self.outputs if later.isdisjoint(self.flat.datum(name).writers)),
            writes=incoming,
            options=(Option(time=0),),
        )
        nodes = [self._apart(node, inside) for node in (*self.forward_nodes, loss, *backward)]
        touched = dict.fromkeys(name for node in nodes for name in (*node.reads, *node.writes))
        data = [self._datum(self.flat.datum(name), inside, incoming) for name in touched]
        return Graph(name=self.cluster.name, computes=tuple(nodes), data=tuple(data))

    def _apart(self, node: Compute, inside: set[str]) -> Compute:
        """A node without its ties to nodes outside."""
        return evolve(
            node,
            after=tuple(name for name in node.after if name in inside),
            twin=node.twin if node.twin in inside else "",
            run_once=node.run_once or self._shares_sum(node),
        )

    def _datum(self, datum: Data, inside: set[str], incoming: Iterable[str]) -> Data:
        if datum.outside:
            return Data(name=datum.name, size=0, kind=Kind.BUFFER)  # always there, at every level
        if datum.name in incoming:
            return Data(name=datum.name, size=datum.size, kind=Kind.GRADIENT, writers=(self.rest,))
        writers = tuple(writer for writer in datum.writers if writer in inside)
        if not writers:
            return Data(name=datum.name, size=datum.size, kind=Kind.INPUT)
        keep = datum.keep or datum.name in self.outgoing
        return Data(name=datum.name, size=datum.size, kind=datum.kind, writers=writers, keep=keep)

    # -- options -------------------------------------------------------------------------------------------------------

    @cached_property
    def forward_runs(self) -> tuple[Run, ...]:
        """Its forward nodes once each."""
        return tuple(Run(name) for name in self.cluster.forward)

    @cached_property
    def _no_save_schedule(self) -> Schedule:
        return Schedule.from_runs(self._forward_graph, [*self.forward_runs, self.rest])

    @cached_property
    def no_save_steps(self) -> tuple[Step, ...]:
        """The forward that keeps its outputs alone."""
        steps = self._no_save_schedule.steps
        return steps[: steps.index(Run(self.rest))]

    @cached_property
    def no_save(self) -> Option:
        """Time of that forward, and its workspace beyond the outputs."""
        cost = validate(self._forward_graph, self._no_save_schedule)
        end = len(self.no_save_steps)
        peak = max(cost.timeline[:end], default=0)
        return Option(time=cost.time, workspace=max(0, peak - self._size(self.outputs)))

    def plain_options(self) -> tuple[LayerOption, ...]:
        """Keep all that the backward reads; keep nothing and run the forward again, where that is allowed."""
        runs = [Run(node.name) for node in self.graph.computes]
        options = [self.option(runs)]
        if not any(self.graph.node(name).run_once for name in self.cluster.forward) and not self.sums_once(
            self.outputs
        ):
            options.append(
                self.option([*self.forward_runs, Run(self.rest), *self.forward_runs, *runs[len(self.cluster) + 1 :]])
            )
        return tuple(dict.fromkeys(options))

    def draws_all(self, option: LayerOption) -> bool:
        """Whether its backward runs every node that draws, also one that no datum needs: later draws wait for it (S-ORDER)."""
        ran = {step.node for step in option.backward_steps if isinstance(step, Run)}
        return not ran or ran.issuperset(node.name for node in self.backward_nodes if node.draws)

    def option(self, runs: Iterable[Run | str | int]) -> LayerOption:
        """The option of a run sequence of the part's graph."""
        return option_of(self.graph, Schedule.from_runs(self.graph, runs))

    def _size(self, names: Iterable[str]) -> Bytes:
        return sum(self.flat.datum(name).size for name in names)
