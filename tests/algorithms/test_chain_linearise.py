"""Linearise: stages of flat graphs, and the way back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.algorithms import named
from remat.algorithms._chain.linearise import Linearise, Quantise, UnitCost, linearised
from remat.algorithms._chain.periodic import Periodic
from remat.algorithms._chain.revolve import Revolve
from remat.algorithms._chain.rotor import RkRotor, Rotor
from remat.algorithms._chain.transfers import place, trace
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.transforms import RefusedTransform
from remat.algorithms._whole.baselines import StoreAll
from remat.algorithms._whole.exhaustive import Exhaustive
from remat.errors import BadArgument, RematError
from remat.ir import Graph, GraphBuilder, Kind, LayerOption, Link, Option, Run, Schedule, validate
from remat.ir.chain import Block, Chain, chain_graph
from remat.testing.strategies import links, training_graphs


def residual(blocks: int, *, dropout: bool = False, table: bool = False) -> Graph:
    """Blocks x + g(f(x)), with a saved mask or a shared small table."""
    b = GraphBuilder("residual")
    b.data("in", 0, Kind.INPUT)
    b.data("x0", 100)
    b.forward("embed", reads=["in"], writes=["x0"], time=5)
    if table:
        b.data("table", 1)
        b.forward("make_table", reads=["in"], writes=["table"], time=1)
    for i in range(blocks):
        for name, size in (("f", 300), ("g", 100), ("x", 100)):
            b.data(f"{name}{i + 1}", size)
        own = ["table"] if table else []
        if dropout:
            b.data(f"state{i}", 8, Kind.RNG_STATE)
            b.forward(f"save{i}", reads=["in"], writes=[f"state{i}"], run_once=True)
            own.append(f"state{i}")
        b.forward(f"lin{i}", reads=[f"x{i}", *own], writes=[f"f{i + 1}"], time=10, draws=dropout)
        b.forward(f"h{i}", reads=[f"f{i + 1}"], writes=[f"g{i + 1}"], time=20, workspace=50)
        b.forward(f"add{i}", reads=[f"x{i}", f"g{i + 1}"], writes=[f"x{i + 1}"], time=2)
    b.data("t", 0, Kind.TANGENT)
    b.data(f"dx{blocks}", 100, Kind.GRADIENT)
    b.loss("loss", reads=[f"x{blocks}"], writes=["t", f"dx{blocks}"], time=3)
    for i in reversed(range(blocks)):
        b.data(f"df{i}", 300, Kind.GRADIENT)
        b.data(f"dx{i}", 100, Kind.GRADIENT)
        b.data(f"wh{i}", 7, Kind.PARAM_GRAD)
        b.data(f"wf{i}", 5, Kind.PARAM_GRAD)
        # the gradient of x_i has two contributions: through the block, and past it
        b.backward(f"dh{i}", reads=[f"dx{i + 1}", f"f{i + 1}"], writes=[f"df{i}", f"wh{i}"], time=40)
        b.backward(f"dlin{i}", reads=[f"df{i}", f"x{i}"], writes=[f"dx{i}", f"wf{i}"], time=20)
        b.backward(f"past{i}", reads=[f"dx{i + 1}"], writes=[f"dx{i}"], time=2)
    return b.build()


@pytest.mark.parametrize("more", [{}, {"dropout": True}, {"table": True}, {"dropout": True, "table": True}])
def test_residual_blocks_become_stages(more):
    graph = residual(6, **more)
    found = linearised(graph)
    # the stem, then one stage per block
    assert len(Chain(found.graph)) == 7
    assert {name for i in found.pinned for name in [graph.data[i].name]} == (
        {f"state{i}" for i in range(6)} if "dropout" in more else set()
    ) | ({"table"} if "table" in more else set())
    base = validate(graph, Schedule.from_runs(graph, range(len(graph))))
    all_saved = [*(Run(s.forward) for s in Chain(found.graph).stages), Run("loss")]
    all_saved += [Run(s.backward) for s in reversed(Chain(found.graph).stages)]
    same = validate(graph, found.lift(Schedule.from_runs(found.graph, all_saved)))
    assert (same.time, same.recomputation) == (base.time, 0) and same.peak <= base.peak + 100
    for part in (70, 50):
        outcome = (Linearise() >> Quantise() >> Rotor()).solve(Problem(graph=graph, budget=base.peak * part // 100))
        assert outcome.cost is not None and outcome.cost.time < 1.5 * base.time
        assert any("7 stages" in line for line in outcome.trail)


def test_what_cannot_be_cut_stays_in_a_stage():
    b = GraphBuilder("ladder")
    b.data("in", 0, Kind.INPUT)
    for i in range(6):
        b.data(f"a{i}", 10)
        reads = ["in"] if i == 0 else [f"a{i - 1}"] if i < 4 else [f"a{i - 1}", f"a{5 - i}"]
        b.forward(f"n{i}", reads=reads, writes=[f"a{i}"], time=1)
    b.data("t", 0, Kind.TANGENT)
    b.data("w", 1, Kind.PARAM_GRAD)
    b.loss("loss", reads=["a5"], writes=["t"])
    b.backward("d", reads=["t", "a5"], writes=["w"])
    found = linearised(b.build())
    # a0 and a1 are read again at the end: only the first and the last place can be cut
    assert [len(part.forward) for part in found.parts] == [1, 5]
    assert "of 8 nodes" in found.note


def test_what_cannot_be_linearised_is_refused_with_its_reason():
    graph = residual(2)
    with pytest.raises(RefusedTransform, match="linearised refused: the graph has layers"):
        linearised(linearised(graph).graph)
    alone = GraphBuilder("alone")
    alone.data("in", 1, Kind.INPUT)
    alone.data("t", 0, Kind.TANGENT)
    alone.loss("loss", reads=["in"], writes=["t"])
    with pytest.raises(RefusedTransform, match="linearised refused: the loss reads nothing"):
        linearised(alone.build())
    with pytest.raises(BadArgument, match="linearised: pin is -1"):
        linearised(graph, -1)


@given(training_graphs(), st.integers(0, 100), st.sampled_from((0, 1 / 64, 1)))
def test_every_flat_graph_is_linearised_and_lifted(graph, percent, pin):
    transform = Linearise(pin)
    if transform.refuses(graph):
        return
    found = linearised(graph, pin)
    chain = Chain(found.graph)
    nodes = sorted([k for part in found.parts for k in (*part.forward, *part.backward)] + [graph.loss])
    assert nodes == list(range(len(graph)))
    for every in (1, 2, len(chain)):
        planned = Periodic(every).solve(Problem(graph=found.graph, budget=10**9))
        lifted = validate(graph, found.lift(planned.schedule))
        assert lifted.time <= planned.cost.time
        assert lifted.peak <= planned.cost.peak
        stepped = validate(graph, Schedule(tuple(found._steps(planned.schedule))))
        assert stepped.time <= planned.cost.time and stepped.peak <= planned.cost.peak
    base = validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
    for solver in (Quantise(50) >> Rotor(), UnitCost() >> Revolve()):
        outcome = (transform >> solver).solve(Problem(graph=graph, budget=base * percent // 100))
        assert not any("over the budget" in line for line in outcome.trail)
        assert outcome.lower == 0


def test_a_chain_stays_as_it_is():
    block = Block(output=1, gradient=1, options=(LayerOption(forward=1, backward=1, phantom=1),))
    problem = Problem(graph=chain_graph([block], loss=Option(time=1), loss_gradient=1), budget=10)
    assert Linearise().apply(problem).problem is problem


def test_a_loss_that_reads_nothing_is_refused():
    b = GraphBuilder()
    b.data("in", 0, Kind.INPUT)
    b.data("a", 1)
    b.data("t", 0, Kind.TANGENT)
    b.forward("f", reads=["in"], writes=["a"])
    b.loss("loss", reads=["in"], writes=["t"])
    assert "reads nothing" in Linearise().refuses(b.build())


@pytest.mark.parametrize("pin", [-1, 2, "x"])
def test_pin_is_a_fraction(pin):
    with pytest.raises(RematError, match=r"pin is .* give a number from 0 to 1\."):
        Linearise(pin)
    assert eval(repr(Linearise(0.5))) == Linearise(0.5)


COPYING = [named.pofo, named.offload_only, named.autocapper, named.opportunist]


@given(training_graphs(), st.integers(20, 100), links())
def test_copies_of_stages_are_lifted(graph, percent, link):
    base = validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
    for solver in COPYING:
        outcome = solver.solve(Problem(graph=graph, budget=base * percent // 100, link=link))
        assert not any("over the budget" in line for line in outcome.trail)


@pytest.mark.parametrize("solver", COPYING)
def test_a_link_helps_residual_blocks(solver):
    graph = residual(8, dropout=True, table=True)
    base = validate(graph, Schedule.from_runs(graph, range(len(graph))))
    link = Link(to_host=10**11, to_device=10**11)
    outcome = solver.solve(Problem(graph=graph, budget=base.peak // 2, link=link))
    assert outcome.cost is not None and outcome.cost.time < 1.25 * base.time
    assert outcome.cost.peak <= base.peak // 2


@pytest.mark.parametrize(
    "name", ["chen", "revolve", "rotor", "rk_rotor", "pofo", "offload_only", "autocapper", "opportunist"]
)
def test_named_expressions_rebuild(name):
    import remat.algorithms as algorithms
    from remat.algorithms._chain import linearise, offload, periodic, pofo, revolve, rotor

    solver = getattr(named, name)
    modules = (linearise, offload, periodic, pofo, revolve, rotor)
    words = {name: value for module in modules for name, value in vars(module).items()} | {"best": algorithms.best}
    assert eval(repr(solver), words) == solver
    graph = residual(5)
    assert solver.solve(Problem(graph=graph, budget=10**6, link=Link(to_host=1, to_device=1))).cost is not None


BLOCKS = Exhaustive(max_nodes=16).sweep(peaks=3, saves=3)


@pytest.mark.parametrize("more", [{}, {"dropout": True}, {"table": True}])
def test_options_of_blocks_are_never_worse_and_equal_stages_are_asked_once(more):
    graph = residual(6, **more)
    base = validate(graph, Schedule.from_runs(graph, range(len(graph))))
    chain = Chain(linearised(graph, blocks=BLOCKS).graph)
    assert {len(stage.options) for stage in chain.stages[2:]} == {len(chain.stages[2].options)}
    assert len(chain.stages[2].options) > 1
    plain = linearised(graph).graph
    for percent in (80, 60, 45, 40):
        budget = base.peak * percent // 100
        # on the chain; lifting may leave out more reruns of one plan than of the other
        one = Rotor().solve(Problem(graph=plain, budget=budget))
        assert RkRotor().solve(Problem(graph=chain.graph, budget=budget)).upper <= one.upper
        many = (Linearise(blocks=BLOCKS) >> RkRotor()).solve(Problem(graph=graph, budget=budget))
        assert not any("over the budget" in line for line in many.trail)
    assert eval(repr(Linearise(blocks=StoreAll().sweep(peaks=2, saves=1)))) == Linearise(
        blocks=StoreAll().sweep(peaks=2, saves=1)
    )


@given(training_graphs(max_forward=4), st.integers(20, 100), links())
def test_every_option_of_a_block_is_lifted(graph, percent, link):
    if Linearise().refuses(graph):
        return
    found = linearised(graph, blocks=StoreAll().sweep(peaks=2, saves=2))
    chain = Chain(found.graph)
    for o in range(max(len(stage.options) for stage in chain.stages)):
        pick = [min(o, len(stage.options) - 1) for stage in chain.stages]
        runs = [Run(stage.forward, k) for stage, k in zip(chain.stages, pick, strict=True)]
        back = [Run(stage.backward, k) for stage, k in zip(chain.stages, pick, strict=True)]
        schedule = Schedule.from_runs(chain.graph, [*runs, Run(chain.loss), *reversed(back)])
        planned = validate(chain.graph, schedule)
        lifted = validate(graph, found.lift(schedule))
        assert lifted.time <= planned.time and lifted.peak <= planned.peak
        traced = trace(chain.graph, schedule.runs)
        budget = max(traced.charges)
        copied = place(traced, [stay.cell for stay in traced.stays], budget, link)
        validate(graph, found.lift(copied), budget, link)
