"""The tables of a graph: what every schedule runs, what a run reads and makes; none of them can be changed."""

import copy
import pickle

import pytest
from attrs import evolve
from hypothesis import assume, given

from remat.errors import IllFormed, InvalidSchedule
from remat.ir import Graph, GraphBuilder, Kind, LayerOption, Option, Run, Schedule, validate
from remat.testing.strategies import legal_graphs


def layered():
    """One layer with two options, the second of which reads `a` again in its backward."""
    builder = GraphBuilder("layered")
    for name, size, kind in (("x", 7, Kind.INPUT), ("a", 3, Kind.ACTIVATION), ("y", 2, Kind.ACTIVATION)):
        builder.data(name, size, kind)
    builder.data("dy", 2, Kind.TANGENT)
    builder.data("g", 4, Kind.PARAM_GRAD)
    builder.forward("F0", reads=["x"], writes=["a"], time=1)
    builder.forward("F1", reads=["a"], writes=["y"])
    builder.loss("L", reads=["y"], writes=["dy"], time=1)
    builder.backward("B1", reads=["dy"], writes=["g"])
    options = (
        LayerOption(forward=2, backward=2, phantom=5),
        LayerOption(forward=2, backward=3, phantom=1, backward_reads=("a",)),
    )
    builder.layer("F1", "B1", options=options, phantom="p")
    return builder.build()


def draws_and_sums(*, kept):
    """Two backward nodes, P before Q; only what Q makes is kept. `kept`: "sum": both contribute to s; "draw": both draw."""
    builder = GraphBuilder(kept)
    builder.data("x", 0, Kind.INPUT)
    builder.data("a", 1)
    builder.data("t", 1, Kind.TANGENT)
    builder.data("s", 1)
    builder.data("g", 1, Kind.PARAM_GRAD)
    builder.forward("F", reads=["x"], writes=["a"], time=1)
    builder.loss("L", reads=["a"], writes=["t"], time=1)
    both = kept == "sum"
    builder.backward("P", reads=["t"], writes=["s"], time=10, draws=not both)
    builder.backward("Q", reads=["t"], writes=["s", "g"] if both else ["g"], time=100, draws=not both)
    return builder.build()


@pytest.mark.parametrize("kept", ["sum", "draw"])
def test_earlier_contributors_and_earlier_draws_are_required(kept):
    graph = draws_and_sums(kept=kept)
    assert graph.required == {0, 1, 2, 3}
    with pytest.raises(InvalidSchedule):
        validate(graph, Schedule.from_runs(graph, ["F", "L", "Q"]))


@given(legal_graphs(layers=False))
def test_the_required_nodes_are_a_schedule_and_none_of_them_can_be_left_out(graph):
    runs = [graph.computes[i].name for i in sorted(graph.required)]
    validate(graph, Schedule.from_runs(graph, runs))
    for name in runs:
        with pytest.raises(InvalidSchedule):
            validate(graph, Schedule.from_runs(graph, [other for other in runs if other != name]))


def test_what_a_run_reads_and_makes_is_that_of_its_option():
    graph = layered()
    touched = {
        (node.name, k): graph.touched(Run(node.name, k)) for node in graph.computes for k in range(len(node.options))
    }
    assert touched == {
        ("F0", 0): ({"x": 0}, {"a": 3}),
        ("F1", 0): ({"a": 3}, {"y": 2, "p": 5}),
        ("F1", 1): ({"a": 3}, {"y": 2, "p": 1}),
        ("F1", 2): ({"a": 3}, {"y": 2}),
        ("L", 0): ({"y": 2}, {"dy": 2}),
        ("B1", 0): ({"dy": 2, "p": 5}, {"g": 4}),
        ("B1", 1): ({"dy": 2, "p": 1, "a": 3}, {"g": 4}),
    }


def test_no_table_of_a_graph_can_be_changed():
    graph = layered()
    touched = graph.touched(Run("F1"))
    for table in (graph.node_index, graph.data_index, graph.layer_by_node, touched.reads, touched.makes):
        with pytest.raises(TypeError):
            table["F0"] = 1
    rows = (graph.reads_by_node, graph.writes_by_node, graph.writers_by_data, graph.readers_by_data)
    for row in (*rows, graph.before_first_run, graph.phantoms):
        assert type(row) is tuple and all(type(item) is tuple for item in row if row is not graph.phantoms)
    assert type(graph.required) is frozenset


def test_a_graph_with_its_tables_is_copied_and_pickled():
    graph = layered()
    graph.touched(Run("F1"))
    for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert other == graph and other.touched(Run("F1")) == graph.touched(Run("F1"))


def costs_of(graph, factor=1):
    """Arguments of `Graph.with_costs`, other than the graph's own where the factor is not 1."""
    options = [
        tuple(Option(time=factor * option.time, workspace=factor * option.workspace) for option in node.options)
        for node in graph.computes
    ]
    return [factor * datum.size for datum in graph.data], options, [f"{node.name}*{factor}" for node in graph.computes]


@given(legal_graphs())
def test_a_graph_with_other_costs_is_the_one_that_would_be_built(graph):
    assume(not graph.layers and 3 * (2 * sum(d.size for d in graph.data) + graph.time) < 2**53)
    known = graph.required, graph.time  # worked out before: the first is handed on, the second is not
    sizes, options, signatures = costs_of(graph, 3)
    given_costs = graph.with_costs(sizes, options, signatures)
    computes = [
        evolve(node, options=offered, signature=signature)
        for node, offered, signature in zip(graph.computes, options, signatures, strict=True)
    ]
    data = [evolve(datum, size=size) for datum, size in zip(graph.data, sizes, strict=True)]
    built = Graph(name=graph.name, computes=tuple(computes), data=tuple(data))
    assert given_costs == built and known == (given_costs.required, graph.time)
    for name in TABLES:
        assert getattr(given_costs, name) == getattr(built, name), name
    assert given_costs.with_costs(*costs_of(graph)).time == known[1]


TABLES = (
    "node_index", "data_index", "names", "loss", "reads_by_node", "writes_by_node", "writers_by_data", "readers_by_data",
    "phantoms", "layer_by_node", "required", "before_first_run", "_touched_by_run", "first_runs", "drops", "time",
)  # fmt: skip


def test_costs_that_no_graph_has_are_refused():
    graph = draws_and_sums(kept="sum")
    sizes, options, signatures = costs_of(graph)
    for wrong, rule in (((2**63, *sizes[1:]), "G-RANGE"), ((-1, *sizes[1:]), "G-RANGE"), ((1.0, *sizes[1:]), "G-INT")):
        with pytest.raises(IllFormed) as raised:
            graph.with_costs(wrong, options, signatures)
        assert raised.value.rule == rule
    with pytest.raises(IllFormed) as raised:
        graph.with_costs([2**61] * len(sizes), options, signatures)
    assert raised.value.rule == "G-RANGE" and "add up" in str(raised.value)
    with pytest.raises(IllFormed) as raised:
        graph.with_costs(sizes, [options[0] * 2, *options[1:]], signatures)
    assert raised.value.rule == "G-OPT"
    with pytest.raises(ValueError, match="zip"):
        graph.with_costs(sizes[1:], options, signatures)
    with pytest.raises(IllFormed) as raised:
        layered().with_costs([], [], [])
    assert raised.value.rule == "G-LAYER"
