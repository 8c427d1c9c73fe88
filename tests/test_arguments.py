"""Public functions refuse what is no argument of theirs themselves, in one message: no error comes from the depths."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from attrs import evolve
from hypothesis import strategies as st
from torch import nn

from remat.algorithms import (
    Clock,
    Exhaustive,
    FullRelaxation,
    HIlp,
    Ilp,
    Linearise,
    LowerSets,
    Outcome,
    PerLayerCheckpoint,
    Problem,
    Revolve,
    Rotor,
    StoreAll,
    Undivided,
    any_plan,
    auto,
    choices,
    disputed,
    extra_runs,
    gaining,
    gap,
    gap_above,
    lowest_budget,
    no_plan,
    nodes_up_to,
    proved_floor,
    undominated,
    unit_chain,
    worked_up_to,
)
from remat.algorithms.dynamic import (
    Score,
    attack,
    load_program,
    program_peak,
    read_program,
    score_named,
    simulate,
    unit_chain_log,
    write_instructions,
)
from remat.errors import BadArgument, IllFormed
from remat.exec import BucketCollator, bucket_lengths, build_graph, capture, dtr, lower, measure, resized
from remat.ir import (
    Cluster,
    Data,
    GraphBuilder,
    Kind,
    Layer,
    Link,
    Option,
    Run,
    Schedule,
    cluster_classes,
    clusters,
    condense,
    dump,
    is_convex,
    part,
    plain_options,
    renaming,
    translate,
    translate_steps,
    validate,
)
from remat.settings import takes, whole
from remat.testing import check_solver
from remat.units import format_bytes, format_ns, parse_bytes
from remat.viz.curve import draw_curve
from remat.viz.curves import draw_curves
from remat.viz.fronts import draw_fronts
from remat.viz.lanes import draw_lanes
from remat.viz.page import print_page
from remat.viz.pictures import draw_memory
from remat.viz.residency import residency
from tests.graphs import tiny_step
from tests.viz.examples import recomputed

DOCS = Path(__file__).parent.parent / "docs"

PACKAGES = ("remat.ir", "remat.algorithms", "remat.algorithms.dynamic", "remat.exec", "remat.testing")
PICTURES = re.findall(
    r"^::: (remat\.viz\.\w+)\.([a-z]\w*)$", (DOCS / "reference" / "api" / "viz.md").read_text(), re.MULTILINE
)
"""Modules and names of the functions that draw and export."""
OPEN = {
    "remat.algorithms": {"best", "first", "pool"},
    "remat.exec": {"register"},
}
"""What takes any number of parts."""


def required(function):
    """Names of the arguments that a call must give."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in kinds
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_no_argument_is_refused_by_the_function_that_gets_it(package):
    module, asked = import_module(package), 0
    for name in sorted(set(module.__all__) - OPEN.get(package, set())):
        function = getattr(module, name)
        if inspect.isfunction(function) and required(function):
            asked += 1
            check_refusal(function)
    assert asked >= 5


def check_refusal(function):
    """A call with a complex number for each argument that must be given is refused, with what to give."""
    with pytest.raises(BadArgument) as refusal:
        function(**dict.fromkeys(required(function), 0.5j))
    assert "0.5j" in str(refusal.value) or "complex" in str(refusal.value), function
    assert refusal.value.fix, function


@pytest.mark.parametrize(("module", "name"), PICTURES)
def test_what_cannot_be_drawn_is_refused_by_the_function_that_gets_it(module, name):
    check_refusal(getattr(import_module(module), name))


@pytest.mark.parametrize("wrong", [{"kind": []}, {"kind": "output"}, {"keep": 1}, {"keep": None}])
def test_a_kind_and_a_flag_are_of_their_class(wrong):
    with pytest.raises(IllFormed, match="G-TYPE: Data 'a'"):
        Data(**{"name": "a", "size": 1, "kind": Kind.GRADIENT, "writers": ("F",), **wrong})


def test_places_and_values_of_other_arguments_are_said():
    graph = tiny_step()
    calls = {
        "dump: path": lambda: dump(graph, ""),
        "no node 'no'": lambda: is_convex(graph, ["no"]),
        "Layer: options": lambda: Layer(forward="F", backward="B", phantom="p", options=(graph,)),
        "extra_runs: checkpoint_count is 0": lambda: extra_runs(5, 0),
        "Clock: now is 1": lambda: Clock(now=1),
        "Outcome: cost is 1": lambda: Outcome(cost=1),
    }
    for words, call in calls.items():
        with pytest.raises(BadArgument, match=words):
            call()


def test_one_text_is_no_list_of_names():
    b = GraphBuilder()
    for name in ("a", "b", "c"):
        b.data(name, 1)
    for wrong in ({"reads": "ab"}, {"writes": "c"}, {"after": "ab"}, {"reads": None}, {"options": Option(time=1)}):
        with pytest.raises(BadArgument, match=f"compute: {next(iter(wrong))} is"):
            b.forward("F", **wrong)
    with pytest.raises(BadArgument, match="choices: budgets is '40%'"):
        choices(tiny_step(), "40%")


def test_parts_of_another_graph_are_no_parts_of_this_one():
    graph = tiny_step()
    group = clusters(graph, {"c": ["F"]})
    stranger = Cluster(name="c", forward=("Z",))
    for call in (
        lambda: condense(graph, group, {"d": plain_options(graph, group[0])}),
        lambda: condense(graph, (stranger,)),
        lambda: part(graph, stranger),
        lambda: plain_options(graph, stranger),
    ):
        with pytest.raises(IllFormed, match=r"G-CLUSTER.*'(d|Z)'"):
            call()
    for name, call in {
        "clusters: groups": lambda: clusters(graph, {"c": None}),
        "from_runs: runs": lambda: Schedule.from_runs(graph, None),
        r"1\.5 is not a run": lambda: Schedule.from_runs(graph, [1.5]),
        "solve: clock": lambda: StoreAll().solve(Problem(graph=graph, budget=9), clock=3),
        "merge: other": lambda: Outcome().merge(None),
        "'12' GB/s": lambda: Link.symmetric(gb_per_s="12"),
        "True GB/s": lambda: Link.symmetric(gb_per_s=True),
    }.items():
        with pytest.raises(BadArgument, match=name):
            call()


def test_a_link_is_as_fast_as_the_times_that_numbers_hold():
    b = GraphBuilder("large")
    b.data("a", 2**40)
    b.forward("F", writes=["a"])
    b.loss("L", reads=["a"])
    graph = b.build()
    with pytest.raises(IllFormed, match=r"G-RANGE: Problem: copying the data .* longer"):
        Problem(graph=graph, budget=2**40, link=Link(to_host=100))
    problem = Problem(graph=graph, budget=2**40, link=Link(to_host=125, to_device_latency=5))
    assert auto.solve(problem).cost.time == 0


@pytest.mark.parametrize("answer", [False, True, "", 3])
def test_a_refusal_is_a_text_or_none(answer):
    wrong = type("Wrong", (StoreAll,), {"refuses": lambda self, graph: answer})
    with pytest.raises(BadArgument, match="the answer of refuses is"):
        wrong().solve(Problem(graph=tiny_step(), budget=9))


def test_what_a_captured_step_is_costed_and_lowered_with_is_checked():
    step = capture(nn.Linear(3, 1), (torch.randn(2, 3),)).program
    for words, call in {
        "lower: the schedule does not run the loss": lambda: lower(step, Schedule(())),
        "build_graph: costs": lambda: build_graph(step, {node.name: 3 for node in step.nodes}),
        "resized: costs": lambda: resized(step, {"t": 3}),
        "measure: sampling": lambda: measure(step, sampling=3),
        "measure: cache": lambda: measure(step, cache=3),
        "at most 2": lambda: bucket_lengths([2**70], 1),
        "BucketCollator: lengths": lambda: BucketCollator(lengths=1, pad={}),
    }.items():
        with pytest.raises(BadArgument, match=f"X-ARG: .*{words}"):
            call()


def test_items_of_another_class_are_refused_where_they_are_given():
    graph = tiny_step()
    group = clusters(graph, {"c": ["F"], "d": ["H"]})
    option = plain_options(graph, group[0])[0]
    for words, call in {
        "proved_floor: graph is None": lambda: proved_floor(None),
        "proved_floor: clock is 3": lambda: proved_floor(graph, 3),
        "undominated: options: an item is 3": lambda: undominated([option, 3]),
        "unit_chain: stages: an item is 'F'": lambda: unit_chain(["F"], "L"),
        "cluster_classes: nodes is 'abcd'": lambda: cluster_classes(graph, group, "abcd"),
        "cluster_classes: nodes has 1 classes": lambda: cluster_classes(graph, group, (0,)),
        "translate: names has no 'a'": lambda: translate(
            evolve(option, forward_steps=(Run("F"),), backward_steps=(Run("B"),)), {}
        ),
        "translate_steps: names has no 'F'": lambda: translate_steps((Run("F"),), {}),
        "Layer: no_save_steps is 'F'": lambda: Layer(
            forward="F", backward="B", phantom="p", options=(option,), no_save_steps="F"
        ),
        "LayerOption: forward_steps": lambda: evolve(option, forward_steps=(3,), backward_steps=(3,)),
        "format_bytes: size is 'x'": lambda: format_bytes("x"),
        "format_ns: time is None": lambda: format_ns(None),
        "check_solver: graphs is 3": lambda: check_solver(StoreAll(), graphs=3),
        "graphs: an item is 3": lambda: check_solver(StoreAll(), graphs=st.just(3), examples=1),
    }.items():
        with pytest.raises(BadArgument, match=words) as refusal:
            call()
        assert refusal.value.fix, words
    stranger = Cluster(name="c", forward=("Z",))
    for call in (lambda: cluster_classes(graph, (stranger,)), lambda: renaming(graph, group[0], stranger)):
        with pytest.raises(IllFormed, match=r"G-CLUSTER.*'Z'"):
            call()
    with pytest.raises(IllFormed, match="'c' and 'd' are not equal"):
        renaming(graph, *group)


class Unmeasured(Score):
    """A score by a measure of cost that no runtime keeps."""

    MEASURE = "all"


def test_what_is_no_part_of_a_replay_is_refused():
    program = read_program(write_instructions(unit_chain_log(4)))
    for words, call in {
        "load_program: path is 3": lambda: load_program(3),
        "read_program: lines is 'x'": lambda: read_program("x"),
        "program_peak: program is None": lambda: program_peak(None),
        "simulate: program is 3": lambda: simulate(3, 20),
        "simulate: seed is None": lambda: simulate(program, 10, "random", seed=None),
        "simulate: score is .*MEASURE is one of no, local": lambda: simulate(program, 20, Unmeasured()),
        "dtr: score is .*MEASURE is one of no, local": lambda: dtr(nn.Linear(3, 4), "1GiB", score=Unmeasured()),
        "score_named: name is 3": lambda: score_named(3),
        "attack: score is 3": lambda: attack(3, operators=4, budget=3),
        "attack: budget is 1.*from 3": lambda: attack("lru", operators=10, budget=1),
        "unit_chain_log: length is -1": lambda: unit_chain_log(-1),
        "lowest_budget: solver is 'rotor'": lambda: lowest_budget(tiny_step(), "rotor"),
        "options: executor is 3": lambda: HIlp().sweep().options(tiny_step(), executor=3),
    }.items():
        with pytest.raises(BadArgument, match=words) as refusal:
            call()
        assert refusal.value.fix, words


def test_a_log_is_read_from_a_path_in_words(tmp_path):
    file = tmp_path / "x.log"
    file.write_text("\n".join(write_instructions(unit_chain_log(4))))
    assert load_program(str(file)).calls == load_program(file).calls == 8


def test_what_is_no_part_of_a_picture_is_refused(tmp_path):
    graph = tiny_step()
    schedule = Schedule.from_runs(graph, range(len(graph)))
    cost = validate(graph, schedule)
    memory = residency(graph, schedule, cost)
    longer = Schedule.from_runs(graph, [*range(graph.loss), *range(len(graph))])
    slower = evolve(graph, computes=tuple(evolve(node, options=(Option(time=99),)) for node in graph.computes))
    other = "the cost is not that of a schedule of"
    for words, call in {
        f"{other} {len(longer)} steps": lambda: residency(graph, longer, cost),
        f"{other} {len(schedule)} steps": lambda: residency(slower, schedule, cost),
        f"{other} {len(schedule)} steps on ": lambda: residency(recomputed().graph, schedule, cost),
        "residency: cost is None": lambda: residency(graph, schedule, None),
        "draw_memory: budget is '40%'": lambda: draw_memory(memory, budget="40%"),
        "draw_lanes: memory is": lambda: draw_lanes(schedule),
        "draw_lanes: path is 3": lambda: draw_lanes(memory, 3),
        "draw_fronts: graph is None": lambda: draw_fronts(None),
        "draw_fronts: clusters is 3": lambda: draw_fronts(graph, clusters=3),
        "draw_curve: marks: an item is 3": lambda: draw_curve([3], peak=3, time=4),
        "draw_curves: lines: an item is 3": lambda: draw_curves({"a": [3]}, peak=3, time=4),
        "print_page: budget is -1": lambda: print_page(memory, budget=-1),
    }.items():
        with pytest.raises(BadArgument, match=words) as refusal:
            call()
        assert refusal.value.fix, words


def test_a_text_that_a_message_cuts_is_closed_again():
    with pytest.raises(BadArgument, match=r"U-SIZE: '9{79}…' is not a size"):
        parse_bytes("9" * 200)
    with pytest.raises(BadArgument, match=r"count is 'a{199}…'"):
        whole(1).check("a" * 500, "count")
    with pytest.raises(BadArgument, match=r"'9{77}x' is not a size"):
        parse_bytes("9" * 77 + "x")


CONDITIONS = (any_plan, no_plan, disputed, gap(0.1), gap_above(0.1), gaining(), nodes_up_to(3), worked_up_to(1))


@pytest.mark.parametrize("condition", CONDITIONS, ids=repr)
def test_a_condition_is_asked_about_a_search(condition):
    with pytest.raises(BadArgument, match=r"standing is None.*the state of a search"):
        condition(None)


SOLVERS = (
    StoreAll, PerLayerCheckpoint, Exhaustive, LowerSets, HIlp, Ilp, FullRelaxation, Rotor, Revolve, Linearise, Undivided
)  # fmt: skip


@pytest.mark.parametrize("kind", SOLVERS)
def test_what_is_no_graph_is_not_a_reason_to_refuse(kind):
    with pytest.raises(BadArgument, match="graph is 3"):
        kind().refuses(3)


def test_an_argument_is_checked_by_place_and_by_name_and_only_where_it_is_given():
    @takes(rule="X-ARG", count=whole(1))
    def repeated(word, count=2):
        return word * count

    assert repeated("a") == repeated("a", 2) == repeated(word="a", count=2) == "aa"
    for call in (lambda: repeated("a", 0), lambda: repeated("a", count=0)):
        with pytest.raises(BadArgument, match="X-ARG: repeated: count is 0"):
            call()
    with pytest.raises(TypeError, match="word"):
        repeated(count=1)
