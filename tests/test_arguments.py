"""Public functions refuse what is no argument of theirs themselves, in one message: no error comes from the depths."""

import inspect
from importlib import import_module

import pytest
import torch
from torch import nn

from remat.algorithms import Clock, Outcome, Problem, StoreAll, auto, choices, extra_runs
from remat.errors import BadArgument, IllFormed
from remat.exec import BucketCollator, bucket_lengths, build_graph, capture, lower, measure, resized
from remat.ir import (
    Cluster,
    Data,
    GraphBuilder,
    Kind,
    Layer,
    Link,
    Option,
    Schedule,
    clusters,
    condense,
    dump,
    is_convex,
    part,
    plain_options,
)
from remat.settings import takes, whole
from tests.graphs import tiny_step

PACKAGES = ("remat.ir", "remat.algorithms", "remat.exec", "remat.testing")
OPEN = {
    "remat.algorithms": {"any_plan", "no_plan", "proved_floor", "best", "first", "pool"},
    "remat.exec": {"register"},
}
"""What a search calls on its own state, and what takes any number of parts."""


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
            with pytest.raises(BadArgument) as refusal:
                function(**dict.fromkeys(required(function), 0.5j))
            assert "0.5j" in str(refusal.value) or "complex" in str(refusal.value), name
            assert refusal.value.fix, name
    assert asked >= 5


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
