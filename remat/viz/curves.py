"""The picture of several solvers on one graph: step time over memory, one line per solver, the best lower bound below."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from remat.ir.arguments import A_TABLE, A_TEXT
from remat.settings import each_of, takes, whole
from remat.units import Bytes, Ns, format_bytes, ratio
from remat.viz.canvas import (
    A_FILE,
    BLUE,
    GREEN,
    MARKERS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    finished,
    refuse_nothing,
    time_axes,
)
from remat.viz.curve import A_MARK, Mark


@takes(lines=A_TABLE, path=A_FILE, peak=whole(0, "bytes"), time=whole(0, "ns"), title=A_TEXT)
def draw_curves(
    lines: Mapping[str, Sequence[Mark]],
    path: str | os.PathLike[str] | None = None,
    *,
    peak: Bytes,
    time: Ns,
    title: str = "",
) -> Any:
    """Draw the plans of several solvers over budgets on one axes.

    Args:
        lines: for each solver's name its marks, in any order; at least one mark in all.
        path: file to write, in the format of its extension; None: write nothing.
        peak: memory of the step that keeps everything, the unit of the lower axis [bytes].
        time: time of that step, the unit of the left axis [ns].
        title: above the picture.

    Returns:
        The matplotlib `Figure`; it belongs to no window.

    Raises:
        BackendMissing: V-MATPLOTLIB, without matplotlib.
        BadArgument: V-EMPTY, without marks; V-ENDING, for a path that does not end like a picture.
    """
    every = [mark for marks in lines.values() for mark in each_of(marks, A_MARK, "draw_curves: lines")]
    refuse_nothing(every, "give at least one solver and one budget.")
    figure, axes = time_axes()
    for place, (name, marks) in enumerate(lines.items()):
        _draw_plans(axes, name, _in_units(marks, peak, time), place)
    _draw_bounds(axes, every, peak, time)
    axes.set_xlabel(f"memory of the step [% of keeping everything, {format_bytes(peak)}]")
    axes.legend(loc="upper right", frameon=False)
    return finished(figure, path, title)


def _in_units(marks: Sequence[Mark], peak: Bytes, time: Ns) -> list[tuple[float, float | None]]:
    """Budgets and times of marks in the units of the axes, by budget."""
    ordered = sorted(marks, key=_budget)
    times = (None if mark.time is None else ratio(mark.time, time) for mark in ordered)
    return [(ratio(mark.budget, peak) * 100, slower) for mark, slower in zip(ordered, times, strict=True)]


def _draw_plans(axes: Any, name: str, marks: Sequence[tuple[float, float | None]], place: int) -> None:
    """One solver: a staircase, because a plan serves every larger budget too."""
    plans = [(budget, ratio) for budget, ratio in marks if ratio is not None]
    missing = len(marks) - len(plans)
    label = name if not missing else f"{name} (no plan at {missing} of {len(marks)})"
    axes.plot(
        [budget for budget, _ in plans], [ratio for _, ratio in plans], drawstyle="steps-post", label=label,
        color=_COLORS[place % len(_COLORS)], marker=MARKERS[place % len(MARKERS)], markersize=4,
    )  # fmt: skip


_COLORS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)


def _draw_bounds(axes: Any, marks: Sequence[Mark], peak: Bytes, time: Ns) -> None:
    bounds: dict[Bytes, float] = {}
    for mark in marks:
        bounds[mark.budget] = max(bounds.get(mark.budget, 0), mark.lower)
    ordered = [(budget, low) for budget, low in sorted(bounds.items()) if 0 < low < math.inf]
    bounded = [(ratio(budget, peak) * 100, ratio(low, time)) for budget, low in ordered]
    if bounded:
        # a bound holds for every smaller budget: between two it is the larger budget's
        style = {"color": "0.4", "linestyle": "--", "drawstyle": "steps-pre"}
        axes.plot(*zip(*bounded, strict=True), **style, label="bound: nothing is faster")


def _budget(mark: Mark) -> Bytes:
    return mark.budget
