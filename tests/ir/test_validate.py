"""The validator by example: costs worked out by hand, and the wording of its errors (golden files)."""

import pickle
from pathlib import Path

import pytest

from remat.errors import BudgetExceeded, InvalidSchedule
from remat.ir import (
    Drop,
    GraphBuilder,
    Kind,
    LayerOption,
    Option,
    Run,
    Schedule,
    load,
    parse_text,
    print_text,
    validate,
)

GOLDEN = Path(__file__).parent.parent / "golden"


def tiny():
    b = GraphBuilder("tiny")
    b.data("x", 100, Kind.INPUT)
    b.data("a", 4)
    b.data("h", 3)
    b.data("t", 1, Kind.TANGENT)
    b.data("s", 2, Kind.GRADIENT)
    b.data("g", 4, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=["a"], time=2, workspace=5)
    b.forward("H", reads=["a"], writes=["h"], time=3)
    b.loss("L", reads=["h"], writes=["t"], time=1)
    b.backward("C", reads=["t", "h"], writes=["s"], time=3)
    b.backward("D", reads=["t"], writes=["s"], time=1)
    b.backward("B", reads=["s", "a"], writes=["g"], time=4)
    return b.build()


def test_the_cost_of_a_schedule_by_hand():
    cost = validate(tiny(), Schedule.from_runs(tiny(), ["F", "H", "L", "C", "D", "B"]))
    # F 4+5; H 4+3; L 4+3+1; C 4+3+1+2, drop h 7; D: 7 + the second contribution 2; B 4+1+2+4, drops
    assert cost.timeline == (9, 7, 8, 10, 7, 9, 11, 9, 5)
    assert (cost.time, cost.recomputation, cost.reruns, cost.peak, cost.peak_step) == (14, 0, 0, 11, 6)


def test_a_rerun_charges_the_duplicate_and_counts_as_recomputation():
    steps = Schedule((Run("F"), Run("F"), Run("H"), Run("L"), Run("C"), Run("D"), Run("B")))
    cost = validate(tiny(), steps)
    assert cost.timeline[:3] == (9, 13, 7) and (cost.recomputation, cost.reruns) == (2, 1)


def test_drops_are_placed_at_the_last_read_before_the_next_production():
    steps = Schedule.from_runs(tiny(), ["F", "H", "L", "C", "D", "F", "B"]).steps
    assert steps[:4] == (Run("F"), Run("H"), Drop("a"), Run("L"))
    assert steps[-3:] == (Run("B"), Drop("s"), Drop("a"))


def test_a_layer_runs_by_option_without_saving_and_by_option_again():
    b = GraphBuilder("layer")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 3)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 2, Kind.INPUT_GRAD)
    b.forward("F", reads=["x"], writes=["a"])
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B", reads=["t"], writes=["g"])
    keep = LayerOption(forward=2, backward=3, phantom=8, backward_workspace=1)
    lean = LayerOption(forward=2, backward=5, phantom=4, backward_reads=("a",))
    b.layer("F", "B", [keep, lean], no_save=Option(time=2, workspace=6), phantom="P")
    graph = b.build()
    cost = validate(graph, Schedule((Run("F", 2), Run("L"), Run("F", 1), Run("B", 1), Drop("P"))))
    # no-save 3+6; L 3+1; F#1: a twice, t, P 4: 3+1+3+4; B 3+1+4+2; after it 3+1+2
    assert cost.timeline == (9, 4, 11, 10, 6) and (cost.time, cost.reruns) == (2 + 1 + 2 + 5, 1)
    with pytest.raises(InvalidSchedule, match="that of option 1"):
        validate(graph, Schedule((Run("F", 1), Run("L"), Run("B", 0))))


def test_a_run_by_another_option_replaces_the_phantom():
    b = GraphBuilder("layer")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 3)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 2, Kind.INPUT_GRAD)
    b.forward("F", reads=["x"], writes=["a"])
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B", reads=["t"], writes=["g"])
    b.layer(
        "F",
        "B",
        [LayerOption(forward=1, backward=1, phantom=8), LayerOption(forward=1, backward=1, phantom=5)],
        phantom="P",
    )
    cost = validate(b.build(), Schedule((Run("F", 0), Run("F", 1), Drop("a"), Run("F", 2), Run("L"), Run("B", 1))))
    # 3+8; both phantoms and a twice for a moment; 5; no-save on top of the phantom with its own 8 as workspace; a, P, t; and g
    assert cost.timeline == (11, 11 + 8, 5, 5 + 3 + 5, 9, 11)


ERRORS = {
    "S-NAME": "run nobody",
    "S-READ": "run F\ndrop a\nrun H",
    "S-READ of a sum": "run F\nrun H\nrun L\nrun C\nrun B",
    "S-PHASE": "run F\nrun H\nrun L\nrun L",
    "S-ONCE": "run F\nrun H\nrun L\nrun D",
    "S-KEEP": "run F\nrun H\nrun L\ndrop t",
    "S-DROP": "run F\ndrop h",
    "S-END": "run F\nrun H\nrun L",
    "S-MEM": "run F\nrun H\nrun L\nrun C\nrun D\nrun B",
    "S-LINK": "run F\noffload a",
}


def test_the_wording_of_errors():
    said = []
    for name, text in ERRORS.items():
        schedule = parse_text(f"remat schedule 1\n{text}\n")
        with pytest.raises(InvalidSchedule) as caught:
            validate(tiny(), schedule, 10)
        assert caught.value.rule == name.split()[0]
        said.append(str(caught.value))
    assert "\n".join(said) + "\n" == (GOLDEN / "errors.txt").read_text()


def test_the_text_form_of_a_graph():
    assert print_text(tiny()) == (GOLDEN / "tiny.remat").read_text()
    assert load(GOLDEN / "tiny.remat") == tiny()


def test_a_run_over_the_budget_beside_nothing_is_not_told_to_drop_anything():
    with pytest.raises(BudgetExceeded) as caught:
        validate(tiny(), Schedule.from_runs(tiny(), range(len(tiny()))), 0)
    assert caught.value.residents == () and caught.value.fix == f"give {caught.value.live} B."


def test_errors_cross_process_borders():
    with pytest.raises(BudgetExceeded) as caught:
        validate(tiny(), Schedule.from_runs(tiny(), range(6)), 10)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.live, again.budget, again.step) == (str(caught.value), 11, 10, 6)


def test_costs_and_graphs_pickle():
    graph = tiny()
    cost = validate(graph, Schedule.from_runs(graph, range(6)))
    again = pickle.loads(pickle.dumps((graph, cost)))
    assert again == (graph, cost) and again[1].computations == cost.computations
