"""Text first; Graphviz as plain text; pictures drawn by matplotlib, which is imported only then."""

import subprocess
import sys

import pytest

from remat.errors import BackendMissing
from remat.ir import GraphBuilder, Kind, LayerOption, Link, Offload, Prefetch, Run, Schedule, clusters, validate
from remat.viz.dot import graph_dot, hierarchy_dot
from remat.viz.text import bars, cost_lines, summary


def graph(layer=True):
    b = GraphBuilder("tiny")
    b.data("x", 0, Kind.INPUT)
    b.data('a"', 4)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 4, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=['a"'], time=2)
    b.loss("L", reads=['a"'], writes=["t"], time=1)
    b.backward("B", reads=["t"], writes=["g"], time=3, twin="F")
    if layer:
        b.layer("F", "B", [LayerOption(forward=2, backward=3, phantom=7, backward_reads=('a"',))], phantom="P")
    return b.build()


STEPS = (Run("F"), Offload("P"), Run("L"), Prefetch("P"), Run("B"))


def test_a_graph_is_drawn_with_its_colours_phantoms_and_options():
    text = graph_dot(graph())
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "digraph {" and lines[-1] == "}"
    node = {name: next(line for line in lines if line.startswith(f'"{name}" [')) for name in "FLBP"}
    assert (
        "#9ecae1" in node["F"]
        and "no-save forward: 2 ns" in node["F"]
        and "#cab2e6" in node["B"]
        and "dashed" in node["P"]
    )
    assert r'"a\""' in text and '"F" -> "P" [style=dashed]' in text
    assert text.count("{") == text.count("}")


def test_a_hierarchy_is_drawn_as_boxes_within_boxes():
    flat = graph(layer=False)
    found = clusters(flat, {"c": ["F"]})
    text = hierarchy_dot(flat, found)
    assert 'subgraph "cluster c forward"' in text and 'subgraph "cluster c backward"' in text
    assert text.count("{") == text.count("}")


def test_bars_reach_the_top_at_the_peak_and_nowhere_else():
    assert bars([0, 4, 8, 4]) == " ▄█▄"
    assert bars([]) == "" and bars([0, 0]) == "  "
    assert len(bars(range(1000), width=50)) == 50 and bars(range(1000), width=50)[-1] == "█"


def test_lines_say_what_a_cost_is():
    cost = validate(graph(), Schedule(STEPS), None, Link.symmetric(gb_per_s=1))
    text = "\n".join(cost_lines(graph(), cost))
    assert "idle       13 ns waiting for copies" in text and "host       7 B" in text
    assert any("1 nodes" in line for line in summary(graph()))
    assert "offload    1" in list(summary(Schedule(STEPS)))


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures_are_written(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    from remat.viz.pictures import draw_gantt, draw_memory

    cost = validate(graph(), Schedule(STEPS), None, Link.symmetric(gb_per_s=1))
    draw_memory(cost, tmp_path / f"m.{suffix}", budget=20)
    draw_gantt(cost, tmp_path / f"g.{suffix}")
    assert all((tmp_path / f"{name}.{suffix}").stat().st_size > 500 for name in "mg")


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch, tmp_path):
    from remat.viz.pictures import draw_memory

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    cost = validate(graph(), Schedule(STEPS), None, Link())
    with pytest.raises(BackendMissing, match="pip install"):
        draw_memory(cost, tmp_path / "m.png")


def test_nothing_heavy_is_imported_before_a_picture_is_drawn():
    code = "import sys, remat.viz.text, remat.viz.dot, remat.viz.pictures, remat.testing, remat.ir\n"
    code += "import remat.algorithms._plugins.registry\n"
    code += "assert not {'matplotlib', 'torch', 'hypothesis', 'cvxpy', 'numba'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
