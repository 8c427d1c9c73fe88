"""Right proofs of captured graphs, written once for all tests of this folder."""

from pathlib import Path

import pytest

from remat.algorithms import IMPOSSIBLE, Problem, store_all_peak
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.floor import floor_of
from remat.algorithms._copies.copy_arrays import lanes_of
from remat.algorithms._copies.link_bound import Reach, link_formulation
from remat.algorithms._milp.direct import solve_relaxed
from remat.algorithms._proving.certificate import Claim, grow, step_of
from remat.algorithms._proving.evidence import AtInstant, Needs
from remat.ir import Link, read_joint_graph

LINK = Link(to_host=16 * 10**9, to_device=8 * 10**9, to_host_latency=1000, to_device_latency=2000)
CAPTURED = Path(__file__).parents[1] / "data" / "captured"


def captured(name):
    """A captured graph."""
    return read_joint_graph(CAPTURED / f"{name}.json.gz")


def linked(problem, at):
    """The proof of a problem with a link at one instant."""
    flat = flatten(problem.graph)
    lanes = lanes_of(flat, problem.link, problem.budget, None)
    formulation = link_formulation(flat, lanes, Reach(flat), at, 4 * problem.graph.time + 1)
    answer = solve_relaxed(formulation.linear)
    bound = IMPOSSIBLE if answer.infeasible else int(flat.time.sum()) + answer.bound
    return AtInstant(problem, bound, at=at, facts=formulation.facts, multipliers=answer.duals).proof()


@pytest.fixture(scope="session")
def fno():
    """The Fourier operator: few nodes, sums, side branches, a floor of several sets."""
    return captured("fno")


@pytest.fixture(scope="session")
def proofs(fno):
    """Documents by what they show off: a tree with cuts, several orders, the captured order, infeasibility, a floor, a link."""
    step, half = step_of(fno), int(store_all_peak(fno) * 0.5)
    wanted = int(1.12 * fno.time)
    floor, node = floor_of(flatten(fno))
    return {
        "tree": grow(step, Claim(half, [88, 110], wanted), leaves=8).proof.document,
        "orders": grow(step, Claim(half, [88, 110, 133, 150], wanted), leaves=3).proof.document,
        "captured": grow(step, Claim(half, [88, 110, 133, 150], wanted, captured=True), leaves=3).proof.document,
        "nothing": grow(step, Claim(int(store_all_peak(fno) * 0.3), [150], float("inf")), leaves=4).proof.document,
        "floor": Needs(fno, floor - 1, flatten(fno), node).proof().document,
        "link": linked(Problem(graph=fno, budget=half, link=LINK), 110).document,
    }
