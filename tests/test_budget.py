"""One reading of a budget's text, wherever it is given."""

import numpy as np
import pytest
from torch import nn

import remat
from remat.algorithms import StoreAll, choices
from remat.budget import Share, budget_bytes, parse_budget
from remat.cli.arguments import read_budget
from remat.errors import BadArgument
from remat.exec._plan.settings import Settings
from tests.algorithms.test_runs_liveness import chain

GOOD = {4096: 4096, "4096": 4096, "1.5 KiB": 1536, "40%": 400, " 0.05 % ": 0, "150%": 1500, "14%": 140, "28.7%": 287}
WRONG = (
    "",
    "some",
    "40 percent",
    "-3%",
    "x%",
    "0%",
    "%",
    "4%0",
    "1/2%",
    "1e2%",
    "nan%",
    "-1",
    "0.6",
    "1.5",
    -1,
    0.4,
    True,
    None,
    b"40%",
    [],
)


@pytest.mark.parametrize(("text", "meant"), GOOD.items())
def test_a_budget_is_read(text, meant):
    assert budget_bytes(text, 1000) == meant
    assert isinstance(parse_budget(text), Share) == (isinstance(text, str) and "%" in text)


@pytest.mark.parametrize("wrong", ["0.6", 0.6, " .60 "])
def test_a_fraction_without_a_unit_is_told_how_a_share_and_a_size_are_written(wrong):
    with pytest.raises(BadArgument, match=r'U-SIZE.*has no unit.*write "60%" for a share of the peak, or "0?.60?GB"'):
        parse_budget(wrong)


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_every_place_refuses_the_same_texts_with_the_same_error(wrong):
    graph = chain(3)
    places = [
        lambda: parse_budget(wrong),
        lambda: budget_bytes(wrong, 1000),
        lambda: read_budget(wrong, graph),
        lambda: choices(graph, [wrong], solver=StoreAll()),
    ]
    if wrong is not None:  # no budget: nothing is planned
        places.append(lambda: remat.exec.wrap(nn.Linear(1, 1), None, wrong))
    for place in places:
        with pytest.raises(BadArgument) as refusal:
            place()
        assert refusal.value.rule == "U-SIZE"


def test_the_command_line_and_the_curve_mean_the_same_bytes():
    """As a product of floats, 29 % of 1,900 B were 550 B; they are 551."""
    graph = chain(3, size=475)
    peak = choices(graph, ["100%"], solver=StoreAll()).store_all_peak
    for percent in range(1, 100):
        (choice,) = choices(graph, [f"{percent}%"], solver=StoreAll()).choices
        assert read_budget(f"{percent}%", graph) == choice.budget == peak * percent // 100


@pytest.mark.parametrize(
    "wrong",
    [{"cost": "guess"}, {"seconds": -1}, {"seconds": float("nan")}, {"seconds": True}, {"seed": 1.5}, {"solver": "auto"},
     {"loss_reserve": -1}, {"on_infeasible": "give up"}, {"differentiable": None}, {"progress": 3}, {"step": 3}, {"budget": "1"}],
    ids=str,
)  # fmt: skip
def test_settings_of_wrap_are_refused_at_birth(wrong):
    with pytest.raises(BadArgument, match="X-ARG: Settings: ") as refusal:
        Settings(**({"budget": None} | wrong))
    assert next(iter(wrong)) in refusal.value.what


@pytest.mark.parametrize("kind", [np.int64, np.uint32])
def test_whole_numbers_of_numpy_are_budgets(kind):
    budget = parse_budget(kind(4096))
    assert (type(budget), budget) == (int, 4096)


@pytest.mark.parametrize("budget", [2**80, "99999999999 TiB"])
def test_a_budget_that_no_number_of_a_graph_holds_is_named(budget):
    with pytest.raises(BadArgument, match=r"U-SIZE: \d+ B is more than 2\^63 - 1 bytes"):
        remat.wrap(nn.Linear(3, 4), None, budget)
