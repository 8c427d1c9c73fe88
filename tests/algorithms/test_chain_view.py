"""The chain view: what it reads off a graph, and graphs that are no chains."""

import pytest
from attrs import evolve

from remat.algorithms._chain.offload import Autocapper, OffloadOnly, Opportunist
from remat.algorithms._chain.periodic import Periodic
from remat.algorithms._chain.pofo import Pofo
from remat.algorithms._chain.quantise import Quantise, UnitCost
from remat.algorithms._chain.revolve import Revolve
from remat.algorithms._chain.rotor import RkRotor, Rotor
from remat.algorithms._core.problem import Problem
from remat.errors import IllFormed
from remat.ir import Data, Graph, GraphBuilder, Kind, LayerOption, Option
from remat.ir.chain import Block, Chain, chain_graph, is_chain, why_no_chain

SOLVERS = [Rotor(), RkRotor(), Pofo(), OffloadOnly(), Autocapper(), Opportunist(), Periodic(), Revolve()]


def made(count=3) -> Graph:
    option = LayerOption(forward=3, backward=5, phantom=7, forward_workspace=1, backward_workspace=2)
    blocks = [
        Block(output=10 + i, gradient=20 + i, options=(option,), no_save=Option(time=2), param_grad=i, kept=i)
        for i in range(count)
    ]
    return chain_graph(blocks, loss=Option(time=4, workspace=6), loss_gradient=9, tangent=1)


def test_the_numbers_are_those_of_the_blocks():
    chain = Chain(made())
    stage = chain.stages[1]
    assert (stage.forward, stage.backward, stage.phantom, stage.output) == ("F1", "B1", "p1", "a2")
    assert (stage.output_size, stage.kept_size, stage.input_size) == (11, 1, 10)
    assert (stage.forward_needs(0), stage.forward_needs(1)) == (11 + 1 + 7 + 1, 11 + 1)
    assert stage.backward_needs(0) == 7 + 21 + 1 + 2
    assert chain.kept_before == (0, 0, 1, 3)
    # behind the loss: the tangent, the gradient on its way, gradients of parameters, and what the forward kept
    assert chain.after == (1 + 21 + (2 + 1) + 3, 1 + 22 + 2 + 3, 1 + 9 + 3)
    assert (chain.loss, chain.loss_time, chain.loss_needs, chain.time) == ("L", 4, 9 + 1 + 6, 4 + 3 * 8)


def changed(graph: Graph, name: str, **fields: object) -> Graph:
    computes = tuple(evolve(node, **fields) if node.name == name else node for node in graph.computes)
    return evolve(graph, computes=computes)


def flat() -> Graph:
    b = GraphBuilder()
    b.data("x", 0, Kind.INPUT)
    b.data("t", 0, Kind.TANGENT)
    b.data("a", 1)
    b.forward("F", reads=["x"], writes=["a"])
    b.loss("L", reads=["a"], writes=["t"])
    return b.build()


def extra_node() -> Graph:
    graph = made()
    node = evolve(graph.computes[0], name="extra", reads=(), writes=("e",), options=(Option(time=1),))
    return evolve(
        graph, computes=(node, *graph.computes), data=(*graph.data, Data(name="e", size=1, writers=("extra",)))
    )


def with_side() -> Graph:
    graph = made()
    computes = tuple(evolve(n, writes=(*n.writes, "side")) if n.name == "F1" else n for n in graph.computes)
    return evolve(graph, computes=computes, data=(*graph.data, Data(name="side", size=1, writers=("F1",))))


NO_CHAINS = {
    "no layers": (flat, "no layers"),
    "a node without a layer": (extra_node, "must belong to a layer"),
    "a skip in the forward": (lambda: changed(made(), "F2", reads=("a2", "a1")), "not the output of the stage before"),
    "a skip into the backward": (lambda: changed(made(), "B0", reads=("g1", "a0", "a3")), "another stage's forward"),
    "nothing passed on": (lambda: changed(made(), "F2", reads=()), "passes 0 data"),
    "a second output": (with_side, "neither its output nor merely kept"),
    "a stage that runs once": (lambda: changed(made(), "F1", run_once=True), "only once"),
}


@pytest.mark.parametrize("case", NO_CHAINS)
def test_what_is_no_chain_is_refused_with_the_place(case):
    make, words = NO_CHAINS[case]
    graph = make()
    assert words in why_no_chain(graph) and not is_chain(graph)
    with pytest.raises(IllFormed, match="G-CHAIN"):
        Chain(graph)
    for solver in SOLVERS:
        assert words in solver.refuses(graph)
        found = solver.solve(Problem(graph=graph, budget=100))
        assert found.schedule is None and words in found.trail[0]
    for transform in (Quantise(), UnitCost()):
        assert words in transform.refuses(graph)


def test_a_chain_of_no_stages_is_refused():
    with pytest.raises(IllFormed, match="G-CHAIN"):
        chain_graph([], loss=Option(time=1), loss_gradient=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_budget_of_zero_is_answered(solver):
    graph = made()
    if solver.refuses(graph) is None:
        found = solver.solve(Problem(graph=graph, budget=0))
        assert found.schedule is None and found.lower == 0
