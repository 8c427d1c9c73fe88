"""The lanes of a step: forward, backward, what is recomputed, and copies each way, with names and milliseconds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from remat.ir import Lane, Phase
from remat.ir.arguments import A_TEXT
from remat.settings import takes
from remat.units import Ns
from remat.viz.canvas import A_FILE, BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION, finished, new_figure, refuse_nothing
from remat.viz.escape import short
from remat.viz.residency import A_MEMORY, Execution, Residency, scope_of, unit_of_time

LANES = {
    "forward": BLUE,
    "backward": ORANGE,
    "recomputed": VERMILION,
    Lane.TO_HOST.value: PURPLE,
    Lane.TO_DEVICE.value: GREEN,
}
"""The lanes from top to bottom, and their colors."""

BLOCKS = 40
"""Most named blocks of a lane: runs of one module in a row are drawn as one block where there are more."""
NARROW = 0.012
"""Share of the step below which a block has no room for a name."""
LONGEST = 8
"""Runs that are listed beside the lanes."""


class Bar(NamedTuple):
    """A block of a lane: one run or copy, or several of one module in a row [ns]."""

    lane: str
    name: str
    start: Ns
    end: Ns
    runs: int


def lane_of(memory: Residency, run: Execution) -> str:
    """The lane of a run; the loss ends the forward."""
    if run.again:
        return "recomputed"
    return "backward" if memory.graph.node(run.node).phase is Phase.BACKWARD else "forward"


def bars(memory: Residency) -> list[Bar]:
    """Every run and copy, by beginning."""
    runs = [Bar(lane_of(memory, run), run.node, run.start, run.end, 1) for run in memory.runs]
    copies = [Bar(copy.lane.value, copy.what, copy.start, copy.end, 1) for copy in memory.cost.copies]
    return sorted((*runs, *copies), key=lambda bar: (bar.start, bar.end))


def blocks(memory: Residency, most: int = BLOCKS) -> list[Bar]:
    """The bars; in a lane with more than `most`, those of one module without a gap between them are one.

    How deep a module is looked at: as deep as leaves no more than `most` different modules.
    """
    merged: list[Bar] = []
    for lane in LANES:
        row = [bar for bar in bars(memory) if bar.lane == lane]
        if len(row) <= most:
            merged += row
            continue
        scopes = [_scope(memory, bar).split(".") for bar in row]
        deepest = max(len(scope) for scope in scopes)
        depths = (depth for depth in range(deepest, 1, -1) if len({tuple(scope[:depth]) for scope in scopes}) <= most)
        depth = next(depths, 1)
        merged += _by_module(row, [".".join(scope[:depth]) for scope in scopes])
    return merged


def _scope(memory: Residency, bar: Bar) -> str:
    """The module of a run; a copy has none."""
    return scope_of(memory.graph, bar.name) if bar.name in memory.graph.node_index else ""


def _by_module(row: Sequence[Bar], modules: Sequence[str]) -> list[Bar]:
    """Bars of one module without a gap between them are one."""
    merged: list[Bar] = []
    last = ""
    for bar, module in zip(row, modules, strict=True):
        if merged and module == last and merged[-1].end == bar.start:
            before = merged.pop()
            count = before.runs + 1
            merged.append(Bar(bar.lane, module or f"{count} runs", before.start, bar.end, count))
        else:
            merged.append(bar)
        last = module
    return merged


@takes(memory=A_MEMORY, path=A_FILE, title=A_TEXT)
def draw_lanes(memory: Residency, path: str | os.PathLike[str] | None = None, *, title: str = "") -> Any:
    """Draw the runs of the step in lanes, and copies each way where there are any; the loss is dotted.

    Gaps are waiting, or another lane at work. In a lane with many runs, those of one module in a row are one block.

    Args:
        memory: from `residency`.
        path: file to write, in the format of its extension; None: write nothing.
        title: above the picture.

    Returns:
        The matplotlib `Figure`; it belongs to no window.

    Raises:
        BackendMissing: V-MATPLOTLIB, without matplotlib.
        BadArgument: V-EMPTY, when nothing takes time; V-ENDING, for a path that does not end like a picture.
    """
    shown = [bar for bar in blocks(memory) if bar.end > bar.start]
    refuse_nothing(shown, "give a graph whose nodes take time.")
    name, unit = unit_of_time(memory.cost.time)
    lanes = [lane for lane in LANES if any(bar.lane == lane for bar in shown)]
    figure = new_figure(11.0, 1.3 + 0.95 * len(lanes))
    axes = figure.add_subplot()
    for row, lane in enumerate(lanes):
        members = [bar for bar in shown if bar.lane == lane]
        spans = [(bar.start / unit, (bar.end - bar.start) / unit) for bar in members]
        axes.broken_barh(spans, (row - 0.42, 0.84), facecolors=LANES[lane], edgecolor="white", linewidth=0.15)
        for bar in members:
            _write_name(axes, bar, row, (name, unit, memory.cost.time))
    axes.axvline(memory.loss_time / unit, color=BLACK, linewidth=0.9, linestyle=":")
    totals = {lane: sum(bar.end - bar.start for bar in bars(memory) if bar.lane == lane) for lane in lanes}
    labels = [f"{lane}\n{totals[lane] / unit:.4g} {name}" for lane in lanes]
    axes.set(xlabel=f"time of the step [{name}]", yticks=range(len(lanes)), yticklabels=labels)
    axes.set(xlim=(0, memory.cost.time / unit), ylim=(len(lanes) - 0.5, -0.5))
    axes.text(
        1.01, 1.0, "\n".join(_longest(memory)), transform=axes.transAxes, va="top", fontsize="x-small",
        family="monospace", parse_math=False,
    )  # fmt: skip
    return finished(figure, path, title)


def _write_name(axes: Any, bar: Bar, row: int, scale: tuple[str, int, Ns]) -> None:
    """The name and the milliseconds of a block that has room for them, upright where it is narrow."""
    name, unit, total = scale
    share = (bar.end - bar.start) / total
    if share < NARROW:
        return
    wide = share > 0.009 * len(bar.name)
    line = "\n" if share > 2.2 * NARROW else "  "
    words = f"{short(bar.name, 40 if wide else 13)}{line}{(bar.end - bar.start) / unit:.3g} {name}"
    middle = (bar.start + bar.end) / 2 / unit
    color = "white" if bar.lane in ("forward", "recomputed") else "black"
    axes.text(
        middle, row, words, ha="center", va="center", rotation=0 if wide else 90, fontsize="xx-small", color=color,
        clip_on=True, parse_math=False,
    )  # fmt: skip


def _longest(memory: Residency) -> list[str]:
    """The longest runs and copies, a line each."""
    longest = sorted(bars(memory), key=lambda bar: bar.start - bar.end)[:LONGEST]
    return ["longest:", *(f"{(bar.end - bar.start) / 1e6:9.3f} ms  {short(bar.name, 24)}" for bar in longest)]


__all__ = ["LANES", "Bar", "bars", "blocks", "draw_lanes", "lane_of"]
