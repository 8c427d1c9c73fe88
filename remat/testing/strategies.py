"""Hypothesis strategies: training graphs, chains, graphs of layers, problems, links, and valid schedules.

Domains are small (a handful of nodes, sizes and times below ten), so that oracles are fast, and diverse: several contributions
per gradient, tied parameters, nodes that draw random numbers, run-once nodes, workspaces, kept activations, data of zero bytes.
For schedules that break a rule see `remat.testing.corruptions`.
"""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from attrs import frozen
from hypothesis import strategies as st

from remat.algorithms._core.problem import Problem
from remat.errors import IllFormed
from remat.ir import (
    Cluster,
    Graph,
    GraphBuilder,
    Kind,
    LayerOption,
    Link,
    Option,
    Phase,
    Schedule,
    clusters,
    condense,
    is_convex,
    layer_option,
    part,
    validate,
)
from remat.testing.legal import legal_graph
from remat.testing.walks import Walk

T = TypeVar("T")
Draw = Any
"""The `draw` function that hypothesis passes to a composite strategy."""

sizes = st.integers(0, 5)
"""Bytes of a datum or workspace."""
times = st.integers(0, 4)
"""Nanoseconds of a run."""
_seldom = st.integers(0, 7).map(lambda value: value == 7)
_sometimes = st.integers(0, 2).map(lambda value: value == 2)


# -- flat graphs -------------------------------------------------------------------------------------------------------


@st.composite
def training_graphs(
    draw: Draw, *, min_forward: int = 1, max_forward: int = 4, random: bool = True, contributions: bool = True
) -> Graph:
    """Flat graphs of a training step: a random forward graph, its loss, and the backward that differentiates it.

    Args:
        draw: given by hypothesis.
        min_forward: smallest number of forward nodes.
        max_forward: largest number of forward nodes.
        random: whether nodes may draw random numbers or be run-once.
        contributions: whether a datum may have several readers, and so its gradient several contributions.
    """
    forward = _Forward(draw, random=random, contributions=contributions)
    for i in range(draw(st.integers(min_forward, max_forward))):
        forward.node(i)
    forward.loss()
    forward.differentiate()
    return forward.builder.build()


@st.composite
def chain_graphs(draw: Draw, *, min_length: int = 1, max_length: int = 4) -> Graph:
    """Flat chains: each forward node reads the previous one, each backward node its gradient and its input or output."""
    b = GraphBuilder("chain")
    length = draw(st.integers(min_length, max_length))
    b.data("x", 0, Kind.INPUT)
    b.data("t", draw(sizes), Kind.TANGENT)
    for i in range(length):
        b.data(f"a{i}", draw(sizes))
        b.data(f"g{i}", draw(sizes), Kind.GRADIENT if i else Kind.INPUT_GRAD)
        before = "x" if i == 0 else f"a{i - 1}"
        b.forward(f"F{i}", reads=[before], writes=[f"a{i}"], time=draw(times), workspace=draw(sizes), scope=f"l.{i}")
    b.loss("L", reads=[f"a{length - 1}"], writes=["t"], time=draw(times))
    for i in reversed(range(length)):
        saved = draw(
            st.sampled_from([("x" if i == 0 else f"a{i - 1}",), (f"a{i}",), (f"a{i}", "x" if i == 0 else f"a{i - 1}")])
        )
        gradient = "t" if i == length - 1 else f"g{i + 1}"
        attributes = {"time": draw(times), "workspace": draw(sizes), "twin": f"F{i}", "scope": f"l.{i}"}
        b.backward(f"B{i}", reads=dict.fromkeys((gradient, *saved)), writes=[f"g{i}"], **attributes)
    return b.build()


class _Forward:
    """Draws a forward graph node by node, then its loss and its backward."""

    def __init__(self, draw: Draw, *, random: bool, contributions: bool) -> None:
        self.draw = draw
        self.random = random
        self.contributions = contributions
        self.builder = GraphBuilder("random")
        self.builder.data("x", 0, Kind.INPUT)
        self.nodes: list[tuple[str, list[str], list[str]]] = []  # name, reads, writes
        self.free: list[str] = []  # data without readers so far
        self.produced: list[str] = []
        self.phantoms: dict[str, str] = {}  # node -> datum that only its backward reads
        self.to_loss: list[str] = []

    def node(self, i: int) -> None:
        draw, b, name = self.draw, self.builder, f"F{i}"
        pool = self.produced if self.contributions else self.free
        if self.contributions and len(pool) > 1 and draw(st.booleans()):
            reads = [pool[-1], draw(st.sampled_from(pool[:-1]))]  # a skip: two readers, so a sum of gradients
        else:
            reads = draw(st.lists(st.sampled_from(pool[::-1]), min_size=1, max_size=2, unique=True)) if pool else ["x"]
        if pool and draw(_seldom):
            reads = [*reads[:1], "x"]
        writes = [f"a{i}.{k}" for k in range(1 + draw(_seldom))]
        for datum in writes:
            if draw(_seldom):
                b.data(datum, draw(sizes), keep=True)
            else:
                b.data(datum, draw(sizes))
        extra = []
        if draw(_seldom):
            self.phantoms[name] = f"s{i}"
            b.data(f"s{i}", draw(sizes), Kind.PHANTOM)
            extra.append(f"s{i}")
        draws = self.random and draw(st.booleans())
        once = self.random and draw(_sometimes)
        attributes = {
            "time": draw(times),
            "workspace": draw(sizes),
            "draws": draws,
            "run_once": once,
            "scope": f"m.{i // 2}",
        }
        b.forward(name, reads=reads, writes=[*writes, *extra], **attributes)
        self.nodes.append((name, reads, writes))
        self.free = [datum for datum in self.free if datum not in reads] + writes
        self.produced += writes

    def loss(self) -> None:
        draw, b = self.draw, self.builder
        last = self.produced[-1]
        more = draw(st.lists(st.sampled_from(self.produced), max_size=1)) if self.contributions else []
        self.to_loss = list(dict.fromkeys([last, *more]))
        writes = []
        for datum in self.to_loss:
            b.data(f"t.{datum}", draw(sizes), Kind.TANGENT)
            writes.append(f"t.{datum}")
        if draw(st.booleans()):
            b.data("loss", draw(sizes), Kind.OUTPUT)
            writes.append("loss")
        b.loss("L", reads=self.to_loss, writes=writes, time=draw(times), workspace=draw(sizes))

    def differentiate(self) -> None:
        draw, b = self.draw, self.builder
        has_gradient: dict[str, bool] = {}  # forward datum -> whether its gradient datum is declared
        tied = draw(_sometimes)
        parts = 0
        for name, reads, writes in reversed(self.nodes):
            incoming = [f"t.{datum}" for datum in writes if datum in self.to_loss]
            incoming += [f"g.{datum}" for datum in writes if has_gradient.get(datum)]
            if not incoming:
                continue  # no path to the loss: no backward
            saved = [datum for datum in (*reads, *writes) if draw(st.booleans())]
            saved += [self.phantoms[name]] if name in self.phantoms else []
            outgoing = []
            for datum in reads:
                if datum != "x" and not has_gradient.get(datum):
                    b.data(f"g.{datum}", draw(sizes), Kind.GRADIENT)
                    has_gradient[datum] = True
                outgoing += [f"g.{datum}"] if datum != "x" else []
            weights = f"w.{'tied' if tied else name}"
            if not outgoing or draw(st.booleans()):
                if not (tied and parts):
                    b.data(weights, draw(sizes), Kind.PARAM_GRAD)
                parts += 1
                outgoing.append(weights)
            self._backward(name, incoming, saved, outgoing)

    def _backward(self, forward: str, incoming: list[str], saved: list[str], outgoing: list[str]) -> None:
        """One backward node, or two of the same twin."""
        draw = self.draw
        halves = [outgoing[:1], outgoing[1:]] if len(outgoing) > 1 and draw(_seldom) else [outgoing]
        for k, writes in enumerate(halves):
            reads = dict.fromkeys((*incoming, *saved))
            attributes = {"time": draw(times), "workspace": draw(sizes), "twin": forward}
            self.builder.backward(f"B{forward[1:]}" + ("" if k == 0 else "w"), reads=reads, writes=writes, **attributes)


# -- any legal graph ---------------------------------------------------------------------------------------------------


@st.composite
def legal_graphs(draw: Draw, *, max_nodes: int = 7, layers: bool = True, options: bool = True) -> Graph:
    """Graphs from all that the rules allow, as `remat.testing.legal` draws them."""
    return legal_graph(
        lambda low, high: draw(st.integers(low, high)), max_nodes=max_nodes, layers=layers, options=options
    )


# -- graphs of layers --------------------------------------------------------------------------------------------------


@st.composite
def layered_graphs(draw: Draw, *, min_layers: int = 1, max_layers: int = 3, max_options: int = 3) -> Graph:
    """Condensed graphs: a chain with a skip, most of its nodes paired in layers with options and a phantom."""
    b = GraphBuilder("layered")
    length = draw(st.integers(min_layers, max_layers))
    b.data("x", 0, Kind.INPUT)
    b.data("t", draw(sizes), Kind.TANGENT)
    skips = [draw(_seldom) for _ in range(length)]
    for i in range(length):
        b.data(f"a{i}", draw(sizes))
        b.data(f"g{i}", draw(sizes), Kind.GRADIENT if i else Kind.INPUT_GRAD)
        reads = ["x" if i == 0 else f"a{i - 1}"] + ([f"a{i - 2}"] if skips[i] and i > 1 else [])
        b.forward(f"F{i}", reads=reads, writes=[f"a{i}"], time=draw(times), workspace=draw(sizes))
    b.loss("L", reads=[f"a{length - 1}"], writes=["t"], time=draw(times), workspace=draw(sizes))
    for i in reversed(range(length)):
        reads = ["t" if i == length - 1 else f"g{i + 1}"]
        b.backward(f"B{i}", reads=reads, writes=[f"g{i}"], time=draw(times), workspace=draw(sizes), twin=f"F{i}")
    for i in range(length):
        if i and draw(_seldom):
            continue  # a plain pair of nodes
        readable = ["x" if i == 0 else f"a{i - 1}", f"a{i}"]
        options = [_option(draw, readable) for _ in range(draw(st.integers(1, max_options)))]
        no_save = Option(time=draw(times), workspace=draw(sizes)) if draw(st.booleans()) else None
        b.layer(f"F{i}", f"B{i}", options, no_save=no_save)
    return b.build()


def _option(draw: Draw, readable: list[str]) -> LayerOption:
    return LayerOption(
        forward=draw(times),
        backward=draw(times),
        phantom=draw(sizes),
        forward_workspace=draw(sizes),
        backward_workspace=draw(sizes),
        backward_reads=tuple(draw(st.lists(st.sampled_from(readable), max_size=2, unique=True))),
    )


def graphs(**more: Any) -> st.SearchStrategy[Graph]:
    """Flat graphs, chains and graphs of layers."""
    return st.one_of(training_graphs(**more), chain_graphs(), layered_graphs())


def tiny_graphs() -> st.SearchStrategy[Graph]:
    """Graphs that an exhaustive search can finish."""
    return st.one_of(
        training_graphs(min_forward=3, max_forward=3),
        training_graphs(min_forward=3, max_forward=3, random=False),
        chain_graphs(min_length=2, max_length=3),
        layered_graphs(max_layers=2),
    )


@frozen(kw_only=True)
class Clustered:
    """A flat graph, clusters of it that can be condensed, and options for some of them, by name."""

    graph: Graph
    clusters: tuple[Cluster, ...]
    options: dict[str, tuple[LayerOption, ...]]


@st.composite
def clustered_graphs(draw: Draw, *, max_forward: int = 5) -> Clustered:
    """Flat graphs with one level of clusters, segments of the forward order or convex sets, and random options."""
    graph = draw(training_graphs(min_forward=2, max_forward=max_forward))
    forward = [node.name for node in graph.computes if node.phase is Phase.FORWARD]
    cuts = sorted(draw(st.sets(st.integers(1, len(forward) - 1), max_size=2)))
    segments = [forward[low:high] for low, high in zip([0, *cuts], [*cuts, len(forward)], strict=True)]
    groups: dict[str, list[str]] = {}
    for k, segment in enumerate(segments):
        group = [name for name in segment if not draw(_seldom)]
        if group and is_convex(graph, group):
            groups[f"c{k}"] = group
    while True:  # clusters that cannot be condensed together are removed, one at a time
        try:
            level = clusters(graph, groups)
            condense(graph, level)
            break
        except IllFormed:
            groups.popitem()
    options = {}
    for cluster in level:
        if cluster.backward and draw(st.booleans()):
            walks = [draw(valid_schedules(part(graph, cluster))) for _ in range(draw(st.integers(1, 2)))]
            options[cluster.name] = tuple(dict.fromkeys(layer_option(graph, cluster, walk.runs) for walk in walks))
    return Clustered(graph=graph, clusters=level, options=options)


# -- problems and links ------------------------------------------------------------------------------------------------


@st.composite
def links(draw: Draw) -> Link:
    """Links: one way faster than the other, latencies, sometimes unbounded. Times are a few nanoseconds per byte."""
    speeds = st.one_of(st.none(), st.integers(1, 4).map(lambda value: value * 10**9 // 2))
    return Link(
        to_host=draw(speeds),
        to_device=draw(speeds),
        to_host_latency=draw(st.integers(0, 2)),
        to_device_latency=draw(st.integers(0, 2)),
    )


@st.composite
def problems(draw: Draw, graph: st.SearchStrategy[Graph] | None = None, *, linked: bool = False) -> Problem:
    """Problems: a graph and a budget between just below the need of a single node and just above that of the captured order."""
    drawn = draw(training_graphs() if graph is None else graph)
    peak = validate(drawn, Schedule.from_runs(drawn, captured(drawn))).peak
    low = max(0, min(least_need(drawn), peak) - 1)
    fit = st.integers(low, peak + 1) if peak < 2 else st.one_of(st.integers(peak - 2, peak), st.integers(low, peak + 1))
    budget = draw(fit)
    return Problem(graph=drawn, budget=budget, link=draw(links()) if linked else None)


def least_need(graph: Graph) -> int:
    """A lower bound of the peak [bytes]: the largest reads, outputs and workspace of a node, and all kept data."""
    sizes = {datum.name: 0 if datum.outside else datum.size for datum in graph.data}
    runs = [
        sum(sizes[name] for name in (*node.reads, *node.writes)) + min(option.workspace for option in node.options)
        for node in graph.computes
    ]
    return max(*runs, sum(datum.size for datum in graph.data if datum.keep))


def captured(graph: Graph) -> list[Any]:
    """The runs of the captured order: every node once, a layer by its first option."""
    return [node.name for node in graph.computes]


# -- schedules ---------------------------------------------------------------------------------------------------------


@st.composite
def valid_schedules(draw: Draw, graph: Graph, *, copies: bool = False) -> Schedule:
    """Valid schedules of a graph: any order of first runs, drops anywhere, missing data recomputed or copied back.

    One draw seeds the walk: a hundred draws per schedule would take longer than the tests that use it.
    """
    return Walk(graph, Random(draw(st.integers(0, 2**32 - 1))).randint, copies=copies).schedule()


@frozen(kw_only=True)
class Scheduled:
    """A graph, a schedule that is valid with the link, and the link (None: the schedule has no copies)."""

    graph: Graph
    schedule: Schedule
    link: Link | None = None


@st.composite
def scheduled(draw: Draw, graph: st.SearchStrategy[Graph] | None = None, *, copies: bool = False) -> Scheduled:
    """A graph with a valid schedule, and a link if there are copies."""
    drawn = draw(graphs() if graph is None else graph)
    schedule = draw(valid_schedules(drawn, copies=copies))
    return Scheduled(graph=drawn, schedule=schedule, link=draw(links()) if copies else None)
