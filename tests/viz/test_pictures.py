"""Text first; Graphviz as plain text; pictures drawn by matplotlib, which is imported only then."""

import subprocess
import sys
from math import dist

import pytest

from remat.errors import BackendMissing, BadArgument
from remat.ir import (
    Cluster,
    GraphBuilder,
    Kind,
    LayerOption,
    Link,
    Offload,
    Prefetch,
    Run,
    Schedule,
    clusters,
    validate,
)
from remat.viz.dot import graph_dot, hierarchy_dot
from remat.viz.residency import residency
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


@pytest.fixture
def memory():
    link = Link.symmetric(gb_per_s=1)
    schedule = Schedule((*STEPS[:3], Run("F", 1), *STEPS[3:]))
    return residency(graph(), schedule, validate(graph(), schedule, None, link))


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_ending_of_the_name_says_the_form_of_a_picture(memory, tmp_path, suffix, begins):
    from remat.viz.lanes import draw_lanes

    draw_lanes(memory, tmp_path / f"lanes.{suffix}", title="a model")
    assert (tmp_path / f"lanes.{suffix}").read_bytes().startswith(begins)


@pytest.mark.parametrize("name", ["m.txt", "m", "m.jpg", "m.svg.gz"])
def test_another_ending_is_refused_with_those_that_work(memory, tmp_path, name):
    from remat.viz.canvas import PICTURES
    from remat.viz.pictures import draw_memory

    with pytest.raises(BadArgument, match=r"V-ENDING.*\.png, \.svg, \.pdf"):
        draw_memory(memory, tmp_path / name)
    assert not list(tmp_path.iterdir())
    for ending in PICTURES:
        draw_memory(memory, tmp_path / f"m{ending}", title="a model")
        assert (tmp_path / f"m{ending}").stat().st_size > 1000


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_that_cannot_be_written_leaves_the_old_one(memory, tmp_path, suffix, full_disk):
    from remat.viz.lanes import draw_lanes

    (tmp_path / f"m.{suffix}").write_text("what was there")
    with full_disk(), pytest.raises(OSError, match="too large"):
        draw_lanes(memory, tmp_path / f"m.{suffix}")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["what was there"]


def test_the_same_plan_makes_the_same_file(memory, tmp_path):
    from remat.viz.pictures import draw_memory

    files = [tmp_path / f"{i}.svg" for i in range(2)]
    for file in files:
        draw_memory(memory, file, title="a model")
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_memory_of_a_step_has_its_budget_loss_reruns_kinds_and_largest_residents(memory, tmp_path):
    from remat.viz.pictures import draw_memory

    figure = draw_memory(memory, budget=20, title="100 % of $x^2$")
    axes, strip = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"activations", "saved for the backward alone", "budget 20 B", "loss", f"peak {memory.cost.peak} B"} <= set(
        labels
    )
    assert any(label.startswith("host, at most 7 B") for label in labels)
    assert figure.get_suptitle() == "100 % of $x^2$"
    (words,) = (text.get_text() for text in axes.texts)
    assert [line.split()[-1] for line in words.splitlines()[1:3]] == [stay.name for stay in memory.at_peak[:2]]
    assert strip.texts[0].get_text().startswith("1 reruns, 2 ns")
    draw_memory(memory, tmp_path / "m.svg", title="a<b")  # its words are text in the file, for readers and for searches
    assert "a&lt;b" in (tmp_path / "m.svg").read_text() and "budget" not in (tmp_path / "m.svg").read_text()


def test_the_areas_of_the_kinds_reach_the_peak(memory):
    from remat.viz.pictures import draw_memory

    axes = draw_memory(memory).axes[0]
    tops = [collection.get_paths()[0].vertices[:, 1].max() for collection in axes.collections]
    assert max(tops) == memory.cost.peak


def test_a_step_without_times_is_drawn_over_its_changes():
    from remat.viz.pictures import draw_memory

    b = GraphBuilder("no-times")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 3, Kind.TANGENT)
    b.forward("F", reads=["x"], writes=[])
    b.loss("L", reads=["x"], writes=["t"])
    untimed = b.build()
    schedule = Schedule.from_runs(untimed, ["F", "L"])
    figure = draw_memory(residency(untimed, schedule, validate(untimed, schedule)))
    assert figure.axes[1].get_xlabel() == "changes of the memory"


def test_lanes_hold_every_run_and_copy_once_with_its_name(memory):
    from remat.viz.lanes import bars, draw_lanes

    lanes = {bar.lane: [] for bar in bars(memory)}
    for bar in bars(memory):
        lanes[bar.lane].append(bar.name)
    assert lanes == {
        "forward": ["F", "L"], "recomputed": ["F"], "backward": ["B"], "to host": ["P"], "to device": ["P"],
    }  # fmt: skip
    axes = draw_lanes(memory).axes[0]
    assert [label.get_text().split("\n")[0] for label in axes.get_yticklabels()] == [
        "forward", "backward", "recomputed", "to host", "to device",
    ]  # fmt: skip
    assert any(text.get_text().startswith("longest:") for text in axes.texts)
    assert any(text.get_text().split() == ["P", "7", "ns"] for text in axes.texts)


def test_in_a_lane_with_many_runs_those_of_one_module_are_one_block():
    from remat.viz.lanes import BLOCKS, blocks

    b = GraphBuilder("long")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(3 * BLOCKS):
        b.data(f"a{i}", 1)
        scope = f"layers.{i // BLOCKS}.part.{i % 20}"
        b.forward(f"F{i}", reads=["x"], writes=[f"a{i}"], time=2, scope=scope)
    b.loss("L", reads=["a0"], writes=["t"], time=1)
    long = b.build()
    schedule = Schedule.from_runs(long, range(len(long)))
    shown = blocks(residency(long, schedule, validate(long, schedule)))
    assert [(bar.name, bar.runs) for bar in shown] == [
        *((f"layers.{i}.part", BLOCKS) for i in range(3)), ("L", 1),
    ]  # fmt: skip
    assert shown[0].end == 2 * BLOCKS == shown[1].start


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch, tmp_path, memory):
    from remat.viz.pictures import draw_memory

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "remat.viz.shown", raising=False)
    with pytest.raises(BackendMissing, match="pip install"):
        draw_memory(memory, tmp_path / "m.png")


OPTIONS = [
    LayerOption(forward=10, backward=20, phantom=30, forward_workspace=4),
    LayerOption(forward=15, backward=20, phantom=10),
    LayerOption(
        forward=20, backward=20, phantom=20, backward_workspace=9
    ),  # slower than the one before, and saves more
    LayerOption(forward=12, backward=48, phantom=0),
]


def hierarchy(kinds=2):
    """Layers in pairs, each pair with options of its own; the flat graph has two nodes for each layer."""
    b = GraphBuilder("level")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(2 * kinds):
        b.data(f"a{i}", 1)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=1)
    b.loss("L", reads=[f"a{2 * kinds - 1}"], writes=["t"], time=1)
    for i in reversed(range(2 * kinds)):
        b.data(f"g{i}", 1, Kind.INPUT_GRAD)
        b.backward(f"B{i}", reads=["t"], writes=[f"g{i}"], time=1, twin=f"F{i}")
        more = [LayerOption(forward=1000 + i // 2, backward=1, phantom=90)]
        b.layer(f"F{i}", f"B{i}", OPTIONS + more * (i > 1), phantom=f"P{i}")
    return b.build()


def test_layers_with_the_same_options_share_a_front_and_a_front_is_what_nothing_betters():
    from remat.viz.fronts import PANELS, alike, draw_fronts, front

    level = hierarchy()
    assert front(OPTIONS) == [(0, 60), (10, 35), (30, 30)]
    assert [[layer.forward for layer in kind] for kind in alike(level)] == [["F2", "F3"], ["F0", "F1"]]
    figure = draw_fronts(level, title="options")
    titles = [axes.get_title() for axes in figure.axes]
    assert "F2 × 2" in titles and "F0 × 2" in titles
    panel = figure.axes[titles.index("F0 × 2")]
    assert [tuple(map(float, xy)) for xy in panel.lines[0].get_xydata()] == [(0, 60), (10, 35), (30, 30)]
    assert panel.lines[0].get_drawstyle() == "steps-post" and len(panel.collections[0].get_offsets()) == 4
    many = draw_fronts(hierarchy(PANELS + 2), title="options")
    assert many.get_suptitle() == f"options; {PANELS} of {PANELS + 2} kinds of layers"


def test_a_hierarchy_is_drawn_above_its_fronts_as_boxes_within_boxes(tmp_path):
    from remat.viz.fronts import draw_fronts

    flat = graph(layer=False)
    (inner,) = clusters(flat, {"inner": ["F"]})
    outer = Cluster(name="outer", forward=("F",), backward=("B",), children=(inner,))
    figure = draw_fronts(graph(), tmp_path / "f.svg", flat=flat, clusters=[outer])
    assert [text.get_text() for text in figure.axes[0].texts] == ["outer", "inner"]
    assert "forward nodes, in their order" in (tmp_path / "f.svg").read_text()


def test_a_graph_without_layers_has_no_fronts():
    from remat.viz.fronts import draw_fronts

    with pytest.raises(BadArgument, match=r"V-EMPTY.*remat apply"):
        draw_fronts(graph(layer=False))


def colors_of_the_pictures():
    from remat.viz.lanes import LANES
    from remat.viz.pictures import COLORS

    return [set(COLORS.values()), set(LANES.values())]


def test_colors_differ_for_eyes_that_lack_a_kind_of_cone():
    """By the matrices of Machado, Oliveira and Fernandes (2009) for no long, no middle and no short cones, on linear light."""
    lacking = [
        ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
        ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
        ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
    ]

    def linear(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]

    def seen(color, matrix):
        light = linear(color)
        mixed = [min(1, max(0, sum(m * part for m, part in zip(row, light, strict=True)))) for row in matrix]
        return [255 * (12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055) for part in mixed]

    for colors in colors_of_the_pictures():
        for matrix in lacking:
            views = [seen(color, matrix) for color in sorted(colors)]
            near = min(dist(a, b) for i, a in enumerate(views) for b in views[:i])
            assert near > 25, (sorted(colors), matrix)
    red, green = (seen(color, lacking[1]) for color in ("#c0504d", "#6f8f3f"))
    assert dist(red, green) < 40  # what is told apart by red and green alone would fail


def test_nothing_heavy_is_imported_before_a_picture_is_drawn():
    code = "import sys, remat.testing, remat.ir, remat.algorithms._plugins.registry\n"
    names = ("text", "dot", "pictures", "lanes", "fronts", "page", "trace", "snapshot")
    code += "".join(f"import remat.viz.{name}\n" for name in names)
    code += "assert not {'matplotlib', 'torch', 'hypothesis', 'cvxpy', 'numba'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
