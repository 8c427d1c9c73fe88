import math
import subprocess
import sys

import pytest

from remat.errors import BackendMissing, RematError
from remat.units import GiB, MiB
from remat.viz.curve import Mark, draw_curve

MARKS = [
    Mark(budget=3 * GiB, time=105, lower=103),
    Mark(budget=1 * GiB, lower=math.inf),
    Mark(budget=4 * GiB, time=100, lower=100),
    Mark(budget=2 * GiB, time=130, lower=110),
]


def steps(figure):
    axes = figure.axes[0]
    return {line.get_label(): [tuple(map(float, one)) for one in line.get_xydata()] for line in axes.lines}


def test_plans_and_bounds_are_drawn_in_units_of_keeping_everything():
    figure = draw_curve(MARKS, peak=4 * GiB, time=100, title="a model")
    drawn = steps(figure)
    assert drawn["plan found"] == [(2, 1.3), (3, 1.05), (4, 1.0)]
    assert drawn["no plan is faster"] == [(2, 1.1), (3, 1.03), (4, 1.0)]
    axes = figure.axes[0]
    assert axes.get_xlabel() == "memory of the step [GiB]"
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {
        "plan found", "no plan is faster", "no plan exists",
    }  # fmt: skip


@pytest.mark.parametrize("marks", [MARKS, MARKS[:1] + MARKS[2:]], ids=["with a floor", "without"])
def test_every_mark_is_in_the_picture(marks):
    left, right = draw_curve(marks, peak=4 * GiB, time=100).axes[0].get_xlim()
    assert left < min(one.budget for one in marks) / GiB
    assert right > max(one.budget for one in marks) / GiB


def test_a_plan_holds_to_the_right_and_a_bound_to_the_left():
    lines = {line.get_label(): line.get_drawstyle() for line in draw_curve(MARKS, peak=4 * GiB, time=100).axes[0].lines}
    assert lines["plan found"] == "steps-post"
    assert lines["no plan is faster"] == "steps-pre"


def test_without_plan_or_bound_there_is_no_such_line():
    assert "plan found" not in steps(draw_curve([Mark(budget=MiB, lower=3)], peak=MiB, time=2))
    assert "no plan is faster" not in steps(draw_curve([Mark(budget=MiB, time=3)], peak=MiB, time=2))


def test_the_unit_is_the_largest_that_the_peak_reaches():
    assert draw_curve([Mark(budget=MiB, time=3)], peak=5 * MiB, time=2).axes[0].get_xlabel().endswith("[MiB]")
    assert draw_curve([Mark(budget=100, time=3)], peak=500, time=2).axes[0].get_xlabel().endswith("[B]")


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_ending_of_the_name_says_the_form(tmp_path, ending):
    target = tmp_path / f"curve.{ending}"
    draw_curve(MARKS, target, peak=4 * GiB, time=100)
    assert target.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[ending])


def test_nothing_to_draw_is_refused():
    with pytest.raises(RematError, match="V-EMPTY"):
        draw_curve([], peak=1, time=1)


def test_without_matplotlib_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "remat.viz.shown", raising=False)  # drawn before: it holds the class of figures
    with pytest.raises(BackendMissing, match=r"remat\[viz\]"):
        draw_curve(MARKS, peak=4 * GiB, time=100)


def test_matplotlib_is_loaded_only_to_draw():
    code = "import sys, remat.viz.curve; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
