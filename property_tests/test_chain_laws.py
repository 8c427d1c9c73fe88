"""The chain solvers under the laws of solvers, and laws of chains: budgets, options, links, sizes of 10^15."""

from hypothesis import given
from hypothesis import strategies as st

from remat.algorithms._chain.linearise import Linearise, linearised
from remat.algorithms._chain.periodic import Periodic
from remat.algorithms._chain.quantise import Quantise
from remat.algorithms._chain.rotor import RkRotor, Rotor, rotor_values
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.ir import Schedule, validate
from remat.ir.chain import Chain, why_no_chain
from remat.testing.strategies import graphs, training_graphs
from tests.algorithms.chain.chains import chains


@given(chains(max_stages=6, options=2), st.data())
def test_one_table_serves_every_smaller_budget(chain, data):
    large = data.draw(st.integers(0, 80))
    small = data.draw(st.integers(0, large))
    assert rotor_values(chain, large).value(small) == rotor_values(chain, small).value(small)


@given(chains(max_stages=5, options=2, size=10**15, time=10**9), st.integers(0, 10**16), st.integers(10, 200))
def test_sizes_of_a_petabyte_are_planned_in_slots(chain, budget, slots):
    problem = Problem(graph=chain.graph, budget=budget)
    found = (Quantise(slots) >> RkRotor()).solve(problem)
    assert not any("over the budget" in line for line in found.trail)
    plain = RkRotor(table_limit=10**6).solve(problem)
    assert plain.schedule is not None or plain.class_bounds or any("Quantise" in line for line in plain.trail)


@given(chains(max_stages=6, options=3))
def test_a_floor_is_a_floor(chain):
    table = rotor_values(chain, 200)
    if table.floor is not None:
        solver = RkRotor()
        assert solver.solve(Problem(graph=chain.graph, budget=table.floor)).schedule is not None
        if table.floor:
            below = solver.solve(Problem(graph=chain.graph, budget=table.floor - 1))
            assert below.schedule is None and below.class_bounds[0].value == IMPOSSIBLE and below.lower == 0


@given(graphs())
def test_a_graph_is_a_chain_or_says_why_not(graph):
    reason = why_no_chain(graph)
    if reason is None:
        chain = Chain(graph)
        assert chain.time > 0 or all(stage.no_save.time == 0 for stage in chain.stages) or chain.loss_time == 0
        assert Rotor().refuses(graph) is None and Periodic().refuses(graph) is None
    else:
        assert reason in Rotor().refuses(graph) and "Linearise" in Rotor().refuses(graph)


@given(training_graphs())
def test_a_linearised_graph_stays_linearised(graph):
    if Linearise().refuses(graph) is None:
        chain = linearised(graph).graph
        problem = Problem(graph=chain, budget=10**9)
        assert Linearise().apply(problem).problem is problem


@given(chains(max_stages=6, options=2))
def test_the_numbers_of_a_chain_are_those_of_the_replay(chain):
    """Saving everything by the first options: what a stage needs, holds and leaves, summed up, is the replayed peak."""
    stages = chain.stages
    names = [*(one.forward for one in stages), chain.loss, *(one.backward for one in reversed(stages))]
    cost = validate(chain.graph, Schedule.from_runs(chain.graph, names))
    held, peak = 0, 0
    for i, stage in enumerate(stages):
        peak = max(peak, held + chain.kept_before[i] + stage.forward_needs(0))
        held += stage.saves(0) - stage.freed(0)
    peak = max(peak, held + chain.kept_before[-1] + chain.loss_needs)
    for i in reversed(range(len(stages))):
        held -= stages[i].saves(0) - stages[i].freed(0)
        peak = max(peak, held - stages[i].freed(0) + stages[i].backward_needs(0) + chain.after[i])
    assert cost.peak == peak
