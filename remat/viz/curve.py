"""The picture of step time over memory: the plans that were found, and below them what no plan can beat."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from attrs import field, frozen

from remat.ir.arguments import A_TEXT
from remat.settings import MANY, each_of, instance, takes, whole
from remat.units import Bytes, Ns, ratio
from remat.viz.canvas import A_FILE, BLUE, VERMILION, finished, refuse_nothing, time_axes, unit_of


@frozen(kw_only=True)
class Mark:
    """The plan and the bound at one budget.

    Attributes:
        budget: [bytes].
        time: of the best plan; None: none was found [ns].
        lower: bound on the time of every plan; infinite: there is none [ns].
    """

    budget: Bytes
    time: Ns | None = field(default=None)
    lower: Ns | float = field(default=0)


A_MARK = instance(Mark, "Mark(budget=2**30, time=10**9)")


@takes(marks=MANY, path=A_FILE, peak=whole(0, "bytes"), time=whole(0, "ns"), title=A_TEXT)
def draw_curve(
    marks: Sequence[Mark], path: str | os.PathLike[str] | None = None, *, peak: Bytes, time: Ns, title: str = ""
) -> Any:
    """Draw plans over budgets, the bound below them, the span between, and where no plan exists.

    Args:
        marks: by budget, in any order; at least one.
        path: file to write, in the format of its extension; None: write nothing.
        peak: of the step that keeps everything: what the upper axis is a share of [bytes].
        time: of that step: what the left axis is in units of [ns].
        title: above the picture.

    Returns:
        The matplotlib `Figure`; it belongs to no window.

    Raises:
        BackendMissing: V-MATPLOTLIB, without matplotlib.
        BadArgument: V-EMPTY, without marks; V-ENDING, for a path that does not end like a picture.
    """
    marks = each_of(marks, A_MARK, "draw_curve: marks")
    refuse_nothing(marks, "give the curve at least one budget.")
    marks = sorted(marks, key=lambda mark: mark.budget)
    figure, axes = time_axes()
    name, unit = unit_of(peak)
    _draw_impossible(axes, marks, unit)
    _draw_bound_and_plans(axes, marks, unit, time)
    axes.set_xlabel(f"memory of the step [{name}]")

    whole = max(1, peak)  # a step may hold nothing

    def share_of(memory: Any) -> Any:
        return memory * unit / whole * 100

    def memory_of(share: Any) -> Any:
        return share / 100 * whole / unit

    above = axes.secondary_xaxis("top", functions=(share_of, memory_of))
    above.set_xlabel("share of the memory of keeping everything [%]")
    axes.legend(loc="upper right", frameon=False)
    return finished(figure, path, title)


def _draw_impossible(axes: Any, marks: Sequence[Mark], unit: Bytes) -> None:
    """Shade up to the largest budget for which no plan exists by its bound."""
    impossible = [mark.budget / unit for mark in marks if math.isinf(mark.lower)]
    if impossible:
        left = max(0.0, min(impossible) - 0.02 * (marks[-1].budget - marks[0].budget) / unit)
        axes.axvspan(left, max(impossible), color="0.85", linewidth=0, label="no plan exists")
        axes.set_xlim(left, 1.03 * marks[-1].budget / unit)


def _draw_bound_and_plans(axes: Any, marks: Sequence[Mark], unit: Bytes, time: Ns) -> None:
    bound = [(mark.budget / unit, ratio(mark.lower, time)) for mark in marks if 0 < mark.lower < math.inf]
    plans = [(mark.budget / unit, ratio(mark.time, time)) for mark in marks if mark.time is not None]
    if bound:
        # a bound holds for every smaller budget too: it is as high to the left as at the mark
        axes.step(
            *zip(*bound, strict=True), where="pre", color=VERMILION, linewidth=1.2, marker=".",
            label="no plan is faster",
        )  # fmt: skip
    if plans:
        # a plan serves every larger budget too
        axes.step(
            *zip(*plans, strict=True), where="post", color=BLUE, linewidth=1.6, marker="o", markersize=4,
            label="plan found",
        )  # fmt: skip
        axes.annotate(f"{plans[0][0]:.3g}", plans[0], textcoords="offset points", xytext=(6, 6), color=BLUE)
    low = dict(bound)
    gaps = [(budget, low[budget], time) for budget, time in plans if budget in low]
    if gaps:
        axes.vlines(*zip(*gaps, strict=True), color=BLUE, linewidth=4, alpha=0.25)


__all__ = ["Mark", "draw_curve"]
