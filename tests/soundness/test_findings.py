"""What `make fuzz` and other generators found, each as a minimal graph by name."""

import re

import pytest

from remat.algorithms import (
    IMPOSSIBLE,
    Autocapper,
    Continuation,
    Exhaustive,
    From,
    FullRelaxation,
    HIlp,
    HPartition,
    Intervals,
    Linearise,
    Problem,
    Revolve,
    RkRotor,
    Segments,
    Status,
    StoreAll,
    UnitCost,
    auto,
    hierarchical,
)
from remat.algorithms.named import hiremate
from remat.ir import parse_text
from remat.testing.oracle import frontier, optimum
from tests.soundness.judging import LINK, changes, fault


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


@pytest.mark.parametrize("plans", [Exhaustive(), HIlp()], ids=["search", "formulation"])
def test_a_cluster_whose_backward_leads_to_nothing_kept_takes_no_plan_without_it(plans):
    dead = (
        "data a 4\ndata b 6\ndata t 2 tangent\nforward F0 : -> a ; time 1\nforward F1 : a -> b ; time 1\n"
        "loss L : b -> t ; time 1\nbackward B1 : a t -> ; time 1 twin F1\n"
    )
    assert right(Linearise(blocks=plans.sweep(peaks=2, saves=1)) >> RkRotor(), dead)


def test_a_sum_that_a_cluster_begins_forward_and_ends_backward_is_no_output_of_its_forward():
    crossing = (
        "data a 8\ndata b 5\ndata t 1 tangent\ndata g 1 gradient\ndata s 5 keep\nforward F0 : -> a ; time 3\n"
        "forward F1 : a -> b s ; time 2 run_once\nloss L : b -> t ; time 3\nbackward B1 : t -> g s ; time 1 twin F1\n"
        "backward B0 : a g s -> ; time 1 twin F0\n"
    )
    block = HIlp(warm_start=False).sweep(peaks=2, saves=2, workers=1)
    assert right(Linearise(blocks=block) >> RkRotor(), crossing)


def test_a_plan_that_runs_what_leads_to_nothing_is_a_start_without_it():
    # B1 is not required, and so what it reads keeps nothing: d0 could come later, but for B1
    dead = (
        "data d0 3377699720527871 activation keep\ndata d1 3377699720527872 rng_state keep\n"
        "data r0 3377699720527873 rng_state\ndata r1 3377699720527871 rng_state\ndata r2 3377699720527873 rng_state\n"
        "data x0 1125899906842624 buffer\nloss L : x0 -> r2 ; time 1000000005\n"
        "backward B3 : -> d0 ; time 3000000006 draws\nbackward B2 : r2 -> r1 ; time 0 run_once after B0\n"
        "backward B1 : d0 r2 -> ; time 0 draws\nbackward B0 : -> d1 r0 ; time 0 after L\n"
    )
    assert right(From(StoreAll()), dead, budget=8444249301319680)


def test_a_relaxation_that_proves_less_than_nothing_bounds_the_time_by_zero():
    # times of 2^51 and of 0 ns under options: rounded multipliers prove -4 ns
    far = (
        "data a0 4000000001\ndata a1 5999999990\ndata a2 5000000007\ndata a3 5000000005\ndata g4 3000000000 tangent\n"
        "data g5 0 gradient\ndata w6 0 param_grad\ndata d0 1000000003 gradient\n"
        "forward F0 : -> a0 ; time 2251799813685248 workspace 1000000006 time 0 workspace 2999999997 time 3377699720527871\n"
        "forward F1 : a0 -> a1 ; time 2251799813685249 workspace 999999999 time 0 workspace 2999999993 time 3377699720527873\n"
        "forward F2 : a1 -> a2 d0 ; time 2251799813685248 time 0\n"
        "forward F3 : a2 d0 -> a3 ; time 0 workspace 1999999999 time 2251799813685247 workspace 2999999998\n"
        "loss L : a1 a2 a3 -> g4 ; time 0\nbackward B1 : a0 a2 g4 d0 -> g5 ; time 0 twin F1\n"
        "backward B0 : a0 g5 -> w6 ; time 3377699720527871 time 0 workspace 3000000002\n"
    )
    assert right(FullRelaxation(), far, budget=19000000002)


def test_a_backward_node_without_its_twin_names_none():
    folded = (
        "data d0 0 gradient keep\nforward F0 : -> ; time 0\nforward F1 : -> ; time 1 run_once\nforward F2 : -> ; time 1\n"
        "loss L : -> ; time 2\nbackward B1 : -> d0 ; time 0 twin F1 run_once\nbackward B0 : -> ; time 3 workspace 3 run_once\n"
    )
    assert right(hiremate, folded)


def test_a_sum_whose_last_contribution_need_not_come_is_resident_between_the_others():
    begun = (
        "data a 1\ndata t 1 tangent\ndata s 4 gradient\ndata v 0 param_grad\ndata w 0 param_grad\ndata u 0 param_grad\n"
        "forward F : -> a ; time 1\nloss L : a -> t ; time 1\nbackward B3 : t -> s v ; time 1\n"
        "backward B2 : t -> u ; time 1 workspace 6\nbackward B1 : t -> s w ; time 1\nbackward B0 : t -> s ; time 1\n"
    )
    graph = parse_text(f"remat graph 1\ngraph minimal\n{begun}")
    # in the captured order B2 finds s begun, and needs 11 bytes
    assert auto.solve(Problem(graph=graph, budget=9)).status is Status.OPTIMAL
    impossible = auto.solve(Problem(graph=graph, budget=8))
    assert impossible.lower == IMPOSSIBLE and impossible.proof.check(graph).bound is None


def test_a_sum_that_grows_after_the_loss_is_not_offloaded_across_it():
    growing = (
        "data a 3\ndata b 6\ndata c 7\ndata t 0 tangent\ndata g 0 gradient\ndata w 2 param_grad\ndata h 3 gradient\n"
        "data s 3 gradient\ndata o 3 output\ndata x 3 input\nforward F0 : -> a o ; time 1\n"
        "forward F1 : a -> b ; time 0 workspace 2\nforward F2 : b -> c ; time 3 workspace 1\n"
        "loss L : c -> t s o ; time 3 workspace 3\nbackward B2 : b t x -> g w ; time 2 workspace 3 twin F2\n"
        "backward B1 : a b g -> h ; time 3 twin F1\nbackward B0 : a h o -> s ; time 4 twin F0\n"
    )
    graph = parse_text(f"remat graph 1\ngraph minimal\n{growing}")
    for budget in range(15, 40):
        (Linearise() >> Autocapper()).solve(
            Problem(graph=graph, budget=budget, link=LINK)
        )  # a plan that breaks a rule raises


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
