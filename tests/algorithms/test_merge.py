"""`Merge`: which nodes come into one group, that lifted schedules cost what they did, and the search through it."""

import pytest
from attrs import evolve

from remat.algorithms import (
    CoarseToFine,
    Merge,
    Oscillation,
    PeakShaving,
    Problem,
    StoreAll,
    parse,
    quick,
    store_all_peak,
)
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import Status
from remat.algorithms._search.state import Search
from remat.ir import GraphBuilder, Kind, read_joint_graph, validate
from tests.algorithms.test_fold_run_once import training
from tests.algorithms.test_runs_liveness import chain
from tests.benchmarks.bench_plan import CAPTURED


def diamond(**times):
    """A node, two that read from it, and one that reads from both; then the loss and the backward of the last."""
    b = GraphBuilder("diamond")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 8, Kind.TANGENT)
    for name in "abcd":
        b.data(name, 8)
    b.data("g", 0, Kind.INPUT_GRAD)
    for name, reads in {"a": "x", "b": "a", "c": "a", "d": "bc"}.items():
        b.forward(name.upper(), reads=list(reads), writes=[name], time=times.get(name, 1), workspace=2)
    b.loss("L", reads=["d"], writes=["t"], time=1)
    b.backward("Z", reads=["t", "d", "a"], writes=["g"], time=1, twin="D")
    return b.build()


def groups(graph, share, outputs=1.0):
    """The merged graph, and the names of the nodes of each group by the name of the first."""
    merge = Merge(share=share, outputs=outputs).apply(Problem(graph=graph, budget=int(store_all_peak(graph))))
    merged = merge.problem.graph
    once = merge.lift(StoreAll().solve(merge.problem).schedule)
    names = [run.node for run in once.runs]
    starts = [names.index(node.name) for node in merged.computes]
    return merged, ["".join(names[i:j]) for i, j in zip(starts, [*starts[1:], len(names)], strict=True)]


def test_a_group_takes_no_more_than_its_share_of_the_time():
    graph = diamond()
    assert groups(graph, 4.5 / graph.time)[1] == ["ABCD", "L", "Z"]
    assert groups(graph, 2.5 / graph.time)[1] == ["AB", "CD", "L", "Z"]
    assert groups(graph, 1.5 / graph.time)[1] == [*"ABCDLZ"]


def test_a_node_is_left_out_of_a_group_that_a_path_leads_around():
    graph = diamond(c=9)  # D reads from C, which the group of A and B cannot contain
    merged, names = groups(graph, 4.5 / graph.time)
    assert names == ["AB", "C", "D", "L", "Z"]
    assert [node.name for node in merged.computes] == ["A", "C", "D", "L", "Z"]


def test_what_only_a_group_reads_is_part_of_its_workspace():
    merged, _ = groups(diamond(), 0.9)
    node = merged.computes[0]
    assert set(node.writes) == {"a", "d"} and node.option.time == 4
    # a, b, c and d with a workspace of 2; a and d are counted as outputs
    assert node.option.workspace == 4 * 8 + 2 - 2 * 8


def test_outputs_of_a_group_take_no_more_than_their_share_of_the_budget():
    graph = diamond()
    peak = int(store_all_peak(graph))
    assert groups(graph, 0.9, outputs=16 / peak)[1] == ["AB", "CD", "L", "Z"]


def test_nodes_that_draw_run_once_or_add_to_a_sum_stay_alone():
    graph = training()
    merged = Merge(share=1.0, outputs=1.0).apply(Problem(graph=graph, budget=10**6)).problem.graph
    names = {node.name for node in merged.computes}
    assert {node.name for node in graph.computes if node.draws or node.run_once} | {"L"} <= names
    assert len(merged) < len(graph)


@pytest.mark.parametrize("share", [1.0, 0.6, 0.4])
def test_a_lifted_plan_takes_the_time_of_the_merged_one_and_no_more_memory(share):
    graph = read_joint_graph(CAPTURED / "unet.json.gz")
    problem = Problem(graph=graph, budget=int(store_all_peak(graph) * share))
    merge = Merge(share=0.01).apply(problem)
    assert len(merge.problem.graph) < 0.8 * len(graph) and "nodes as" in merge.note
    outcome = quick.solve(merge.problem)
    assert outcome.status in (Status.OPTIMAL, Status.FEASIBLE)
    cost = validate(graph, merge.lift(outcome.schedule), problem.budget)
    assert cost.time == outcome.cost.time and cost.peak <= outcome.cost.peak


def test_the_search_through_it_offers_what_it_reaches_and_counts_its_work():
    graph = read_joint_graph(CAPTURED / "unet.json.gz")
    problem = Problem(graph=graph, budget=int(store_all_peak(graph) * 0.4))
    brief = Oscillation(seconds=0.3)
    move = CoarseToFine(merge=Merge(share=0.01), coarse=brief, fine=brief, last=evolve(brief, restart=False))
    search = Search(problem, Clock(), 0, move)
    move.improve(search)
    assert search.best is not None and 0.9 <= search.worked.seconds < 3
    first, last = search.trail[0], search.trail[-1]
    assert first.startswith("the coarse plan of CoarseToFine: time")
    assert last != first  # the search on the graph itself has improved it
    assert "0.3 s of work on merged nodes" in move.outline(graph)[0]
    assert parse(repr(move)) == move


def test_a_graph_in_which_nothing_is_merged_is_left_to_other_searches():
    problem = Problem(graph=chain(8), budget=21)
    brief = Oscillation(seconds=0.02)
    move = CoarseToFine(coarse=brief, fine=brief, last=evolve(brief, restart=False))
    begun = Search(problem, Clock(), 0, move)
    PeakShaving().improve(begun)
    trail, work = list(begun.trail), begun.worked.seconds
    move.improve(begun)
    assert trail and begun.trail == trail and begun.worked.seconds == work
    alone = move.solve(problem)  # without one there is none to leave it to
    assert alone.schedule is not None and alone.cost.peak <= 21
