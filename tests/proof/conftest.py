"""Right proofs of captured graphs, written once for all tests of this folder."""

from pathlib import Path

import pytest

from remat.algorithms import store_all_peak
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._bounds.floor import floor_of
from remat.algorithms._proving.certificate import Claim, grow, step_of
from remat.algorithms._proving.evidence import Needs
from remat.ir import read_joint_graph

CAPTURED = Path(__file__).parents[1] / "data" / "captured"


def captured(name):
    """A captured graph."""
    return read_joint_graph(CAPTURED / f"{name}.json.gz")


@pytest.fixture(scope="session")
def fno():
    """The Fourier operator: few nodes, sums, side branches, a floor of several sets."""
    return captured("fno")


@pytest.fixture(scope="session")
def proofs(fno):
    """Documents by what they show off: a tree with cuts, several orders, the captured order, infeasibility, a floor."""
    step, half = step_of(fno), int(store_all_peak(fno) * 0.5)
    wanted = int(1.12 * fno.time)
    floor, node = floor_of(flatten(fno))
    return {
        "tree": grow(step, Claim(half, [88, 110], wanted), leaves=8).proof.document,
        "orders": grow(step, Claim(half, [88, 110, 133, 150], wanted), leaves=3).proof.document,
        "captured": grow(step, Claim(half, [88, 110, 133, 150], wanted, captured=True), leaves=3).proof.document,
        "nothing": grow(step, Claim(int(store_all_peak(fno) * 0.3), [150], float("inf")), leaves=4).proof.document,
        "floor": Needs(fno, floor - 1, flatten(fno), node).proof().document,
    }
