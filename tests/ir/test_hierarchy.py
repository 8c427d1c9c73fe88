"""Hierarchies by example: what a random graph hits too seldom."""

import pytest

from remat.errors import IllFormed, RunTwice
from remat.ir import (
    Cluster,
    GraphBuilder,
    Kind,
    Run,
    Schedule,
    clusters,
    condense,
    expand,
    layer_option,
    parse_text,
    part,
    validate,
)


def line(length=2, **keep):
    b = GraphBuilder("line")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(length):
        b.data(f"a{i}", 4)
        b.data(f"g{i}", 2, Kind.GRADIENT if i else Kind.INPUT_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=1, workspace=3)
    b.loss("L", reads=[f"a{length - 1}"], writes=["t"], time=1)
    return b


def tied():
    """Two nodes whose backwards both add to one kept gradient."""
    b = line()
    b.data("w", 8, Kind.PARAM_GRAD)
    b.backward("B1", reads=["t", "a0"], writes=["g1", "w"], time=1, twin="F1")
    b.backward("B0", reads=["g1", "x"], writes=["g0", "w"], time=1, twin="F0")
    return b.build()


def test_the_only_contribution_from_a_part_to_a_shared_sum_is_made_once():
    graph = tied()
    high = clusters(graph, {"high": ["F1"]})[0]
    assert part(graph, high).node("B1").run_once
    with pytest.raises(RunTwice):
        layer_option(graph, high, ["F1", "high.rest", "B1", "B1"])


def test_a_half_that_completes_a_kept_sum_runs_once():
    graph = tied()
    both = clusters(graph, {"both": ["F0", "F1"]})
    assert condense(graph, both).graph.node("both.backward").run_once
    plain = line()
    plain.backward("B1", reads=["t"], writes=["g1"], time=1, twin="F1")
    plain.backward("B0", reads=["g1"], writes=["g0"], time=1, twin="F0")
    free = plain.build()
    assert not condense(free, clusters(free, {"both": ["F0", "F1"]})).graph.node("both.backward").run_once


def test_a_backward_that_reads_a_phantom_runs_once():
    b = line()
    b.backward("B1", reads=["t", "a0"], writes=["g1"], time=1, twin="F1")
    b.backward("B0", reads=["g1"], writes=["g0"], time=1, twin="F0")
    graph = b.build()
    level = condense(graph, clusters(graph, {"both": ["F0", "F1"]}))
    assert level.graph.layers[0].options[0].phantom == 4
    assert level.graph.node("both.backward").run_once


def test_contributions_that_alternate_between_clusters_are_refused():
    b = GraphBuilder("alternate")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    b.data("w", 1, Kind.PARAM_GRAD)
    for i in range(3):
        b.data(f"a{i}", 1)
        b.forward(f"F{i}", reads=["x"], writes=[f"a{i}"])
    b.loss("L", reads=["a0", "a1", "a2"], writes=["t"])
    for i in range(3):
        b.backward(f"B{i}", reads=["t"], writes=["w"], twin=f"F{i}")
    graph = b.build()
    with pytest.raises(IllFormed, match="alternate"):
        condense(graph, clusters(graph, {"ends": ["F0", "F2"], "middle": ["F1"]}))
    assert len(condense(graph, clusters(graph, {"first": ["F0", "F1"], "last": ["F2"]})).graph) == 5


def test_a_schedule_of_layers_expands_by_the_option_that_ran():
    b = line()
    b.backward("B1", reads=["t", "a0"], writes=["g1"], time=1, twin="F1")
    b.backward("B0", reads=["g1"], writes=["g0"], time=1, twin="F0")
    graph = b.build()
    level = condense(graph, clusters(graph, {"c": ["F0", "F1"]}))
    runs = [Run("c", 2), Run("L"), Run("c", 1), Run("c.backward", 1)]
    flat = level.expand(Schedule.from_runs(level.graph, runs))
    names = [run.node for run in flat.runs]
    assert names == ["F0", "F1", "L", "F0", "F1", "F0", "F1", "B1", "B0"]
    assert validate(graph, flat).reruns == 4


def test_an_option_without_a_sub_schedule_cannot_be_expanded():
    from attrs import evolve

    from remat.ir import plain_options

    b = line()
    b.backward("B1", reads=["t"], writes=["g1"], time=1, twin="F1")
    b.backward("B0", reads=["g1"], writes=["g0"], time=1, twin="F0")
    graph = b.build()
    found = clusters(graph, {"c": ["F1"]})
    bare = [evolve(one, forward_steps=(), backward_steps=()) for one in plain_options(graph, found[0])]
    level = condense(graph, found, {"c": bare})
    with pytest.raises(IllFormed, match="no sub-schedule"):
        level.expand(Schedule.from_runs(level.graph, range(len(level.graph))))


def test_an_option_that_leaves_out_a_draw_is_not_taken_as_later_draws_wait_for_it():
    graph = parse_text("""\
remat graph 1
graph draws
data d 5
data r 1 gradient
data w 0 param_grad
forward F0 : -> d ; time 1
forward F1 : -> ; time 1
loss L : -> ; time 4
backward B2 : -> ; time 5 twin F0 draws
backward B1 : d -> r ; time 3 twin F0
backward B0 : r -> w ; time 3 twin F1 draws
""")
    first, second = (
        Cluster(name="c0", forward=("F0",), backward=("B2", "B1")),
        Cluster(name="c1", forward=("F1",), backward=("B0",)),
    )
    without = layer_option(graph, first, ["F0", "c0.rest", "B1"])
    level = condense(graph, [first, second], {"c0": [without]})
    flat = expand(level, Schedule.from_runs(level.graph, range(len(level.graph))))
    assert validate(graph, flat).time == graph.time
