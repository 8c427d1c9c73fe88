"""What `make fuzz` and other generators found, each as a minimal graph by name."""

import re

import pytest

from remat.algorithms import (
    Continuation,
    Exhaustive,
    HIlp,
    HPartition,
    Intervals,
    Linearise,
    Problem,
    Revolve,
    RkRotor,
    Segments,
    UnitCost,
    hierarchical,
)
from remat.ir import parse_text
from remat.testing.oracle import frontier, optimum
from tests.soundness.judging import changes, fault


def right(solver, text, budget=None):
    """Nothing is wrong with a solver at a budget of a graph, or at every budget where something changes."""
    graph = parse_text(f"remat graph 1\ngraph minimal\n{text}")
    points = frontier(graph)
    for bytes_ in changes(points) if budget is None else [budget]:
        assert fault(solver, Problem(graph=graph, budget=bytes_), optimum(points, bytes_)) is None, bytes_
    return True


def test_a_hint_that_contradicts_the_order_is_none():
    loop = (
        "data a 2\ndata t 1 tangent\nforward F0 : -> a ; time 1 after F1\nforward F1 : a -> ; time 1\n"
        "loss L : a -> t ; time 1\n"
    )
    solver = hierarchical(
        HPartition(top=1, lower=2), lower=Exhaustive().sweep(peaks=2, saves=1), top=HIlp(warm_start=False)
    )
    assert right(solver, loop)


@pytest.mark.parametrize("form", ["events", "published"])
def test_a_bound_of_a_formulation_is_none_where_times_are_too_far_apart(form):
    # 1 ns beside 2^50 ns: less than the solver can tell
    options = (
        "data d 9 output\nforward F0 : -> d ; time 1 time 0\n"
        "forward F1 : d -> ; time 1125899906842625 time 1 time 1\nloss L : d -> ; time 1125899906842625 time 0\n"
    )
    assert right(HIlp(form=form), options)


def test_a_cluster_whose_backward_leads_to_nothing_kept_takes_no_plan_without_it():
    dead = (
        "data a 4\ndata b 6\ndata t 2 tangent\nforward F0 : -> a ; time 1\nforward F1 : a -> b ; time 1\n"
        "loss L : b -> t ; time 1\nbackward B1 : a t -> ; time 1 twin F1\n"
    )
    assert right(Linearise(blocks=Exhaustive().sweep(peaks=2, saves=1)) >> RkRotor(), dead)


def test_a_sum_that_a_cluster_begins_forward_and_ends_backward_is_no_output_of_its_forward():
    crossing = (
        "data a 8\ndata b 5\ndata t 1 tangent\ndata g 1 gradient\ndata s 5 keep\nforward F0 : -> a ; time 3\n"
        "forward F1 : a -> b s ; time 2 run_once\nloss L : b -> t ; time 3\nbackward B1 : t -> g s ; time 1 twin F1\n"
        "backward B0 : a g s -> ; time 1 twin F0\n"
    )
    block = HIlp(warm_start=False).sweep(peaks=2, saves=2, workers=1)
    assert right(Linearise(blocks=block) >> RkRotor(), crossing)


TAKEN = (
    "stage.0",
    "stage.0.saved",
    "stage.1.backward",
    "stage.0.rest",
    "segment.0",
    "segment.1.rest",
    "group.0",
    "group.0.phantom",
    "unit.loss",
    "unit.input",
)


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("place", ["a", "F0", "B1"])
def test_names_that_the_library_gives_may_be_taken(name, place):
    plain = (
        "data a 4\ndata b 3\ndata c 3\ndata t 1 tangent\ndata g 1 gradient\ndata h 1 gradient\ndata w 1 param_grad\n"
        "forward F0 : -> a ; time 1\nforward F1 : a -> b ; time 1\nforward F2 : b -> c ; time 1\nloss L : c -> t ; time 1\n"
        "backward B2 : b t -> h ; time 1 twin F2\nbackward B1 : a h -> g ; time 1 twin F1\n"
        "backward B0 : g -> w ; time 1 twin F0\n"
    )
    graph = re.sub(rf"\b{place}\b", name, plain)
    block = Exhaustive().sweep(peaks=2, saves=1)
    top = HIlp(warm_start=False)
    for solver in (
        Linearise(blocks=block) >> RkRotor(),
        Linearise() >> UnitCost() >> Revolve(),
        hierarchical(Segments(2), lower=block, top=top),
        hierarchical(Intervals(2), lower=block, top=top),
        hierarchical(HPartition(top=1, lower=2), lower=block, top=top),
    ):
        assert right(solver, graph)


def test_times_whose_reruns_add_up_to_more_than_an_int64_holds():
    step = (2**63 - 1) // 7
    chain = "data t 1 tangent\n" + "".join(f"data a{i} 4\n" for i in range(3)) + "data g0 1 input_grad\n"
    chain += "data g1 1 gradient\ndata g2 1 gradient\n"
    chain += "".join(f"forward F{i} : {f'a{i - 1}' if i else ''} -> a{i} ; time {step - i}\n" for i in range(3))
    chain += f"loss L : a2 -> t ; time {step}\n"
    chain += "".join(
        f"backward B{i} : a{i} {'t' if i == 2 else f'g{i + 1}'} -> g{i} ; time {step} twin F{i}\n" for i in (2, 1, 0)
    )
    assert right(Continuation(), chain, budget=10)
