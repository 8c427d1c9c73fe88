"""Memory over time, by what holds it. matplotlib is imported when a picture is drawn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from remat.ir.arguments import A_TEXT
from remat.settings import optional, takes, whole
from remat.units import Bytes, Ns, format_bytes, format_ns
from remat.viz.canvas import (
    A_FILE,
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    finished,
    new_figure,
    refuse_nothing,
    unit_of,
)
from remat.viz.escape import short
from remat.viz.residency import A_MEMORY, Group, Residency, names_of, unit_of_time

COLORS = {
    Group.RESULT: YELLOW,
    Group.KEPT_GRADIENT: GREEN,
    Group.ACTIVATION: BLUE,
    Group.PHANTOM: SKY,
    Group.RECOMPUTED: VERMILION,
    Group.GRADIENT: ORANGE,
    Group.WORKSPACE: GREY,
}
"""Of the groups of bytes, in every picture."""

LARGEST = 6
"""Residents that are named at the peak."""


@takes(memory=A_MEMORY, path=A_FILE, budget=optional(whole(0, "bytes")), title=A_TEXT)
def draw_memory(
    memory: Residency, path: str | os.PathLike[str] | None = None, *, budget: Bytes | None = None, title: str = ""
) -> Any:
    """Draw the bytes on the device over the time of the step, by kind, with the largest residents at the peak by name.

    Args:
        memory: from `residency`. A step whose nodes all take no time is drawn over its changes instead.
        path: file to write, in the format of its extension; None: write nothing.
        budget: drawn as a line [bytes].
        title: above the picture.

    Returns:
        The matplotlib `Figure`; it belongs to no window.

    Raises:
        BackendMissing: V-MATPLOTLIB, without matplotlib.
        BadArgument: V-EMPTY, when nothing takes bytes; V-ENDING, for a path that does not end like a picture.
    """
    refuse_nothing(memory.levels, "give a schedule whose data take bytes.")
    figure = new_figure(10.0, 4.8)
    axes, strip = figure.subplots(2, 1, sharex=True, height_ratios=(12, 1))
    scale = _Scale(memory)
    _draw_stack(axes, memory, scale)
    _draw_marks(axes, memory, scale, budget)
    _draw_reruns(strip, memory, scale)
    axes.text(
        1.02, 0.0, "\n".join(_residents(memory)), transform=axes.transAxes, va="bottom", fontsize="small",
        family="monospace", parse_math=False,
    )  # fmt: skip
    strip.set_xlabel(f"time of the step [{scale.name}]" if scale.timed else "changes of the memory")
    return finished(figure, path, title)


class _Scale:
    """Both axes: times in a readable unit, or the number of the change where nothing takes time; bytes likewise.

    Attributes:
        kept: the changes that are drawn: of several at one time the last, and always the highest.
        places: where they are. peak, loss: where these are. end: of the axis.
    """

    def __init__(self, memory: Residency) -> None:
        self.timed = memory.cost.time > 0
        self.name, self.time = unit_of_time(memory.cost.time) if self.timed else ("", 1)
        self.bytes_name, self.bytes = unit_of(memory.cost.peak)
        times = [when for (when, _, _), _, _ in memory.changes] if self.timed else list(range(len(memory.levels)))
        highest = memory.levels.index(memory.cost.peak)
        self.kept = [i for i, at in enumerate(times) if i == highest or i + 1 == len(times) or times[i + 1] > at]
        self.places = [times[i] / self.time for i in self.kept]
        self.peak = times[highest] / self.time
        self.loss = memory.loss_time / self.time if self.timed else _changes_until_the_loss(memory)
        self.end = memory.cost.time / self.time if self.timed else len(times)


def _changes_until_the_loss(memory: Residency) -> int:
    """How many changes of the memory come with the loss or before it."""
    loss = memory.graph.computes[memory.graph.loss].name
    step = next(run.step for run in memory.runs if run.node == loss)
    return sum((stay.step if change > 0 else stay.until) <= step for _, change, stay in memory.changes)


def _draw_stack(axes: Any, memory: Residency, scale: _Scale) -> None:
    """One area for each group; the bytes after a change hold until the next."""
    floor = [0.0] * len(scale.kept)
    for group, sizes in memory.by_group.items():
        tops = [low + sizes[i] / scale.bytes for low, i in zip(floor, scale.kept, strict=True)]
        axes.fill_between(
            scale.places, floor, tops, step="post", color=COLORS[group], linewidth=0, label=group.value,
            hatch="///" if group is Group.WORKSPACE else None, edgecolor="white",
        )  # fmt: skip
        floor = tops
    axes.set(ylabel=f"on the device [{scale.bytes_name}]", ylim=(0, None), xlim=(0, scale.end))


def _draw_marks(axes: Any, memory: Residency, scale: _Scale, budget: Bytes | None) -> None:
    """The peak, the loss, the host and the budget."""
    peak = memory.cost.peak
    axes.plot(
        scale.peak, peak / scale.bytes, "v", color=BLACK, label=f"peak {format_bytes(peak)}", clip_on=False,
    )  # fmt: skip
    axes.axvline(scale.loss, color=BLACK, linewidth=0.9, linestyle=":", label="loss")
    if memory.cost.host_peak and scale.timed:
        times, sizes = _host(memory)
        axes.step(
            [time / scale.time for time in times], [size / scale.bytes for size in sizes], where="post", color=PURPLE,
            label=f"host, at most {format_bytes(memory.cost.host_peak)}",
        )  # fmt: skip
    if budget is not None:
        axes.axhline(budget / scale.bytes, color=BLACK, linestyle="--", label=f"budget {format_bytes(budget)}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")


def _host(memory: Residency) -> tuple[Sequence[Ns], Sequence[Bytes]]:
    """Bytes on the host after each run, in time."""
    host = memory.cost.host_timeline
    return [run.end for run in memory.runs], [host[run.step] for run in memory.runs]


def _draw_reruns(strip: Any, memory: Residency, scale: _Scale) -> None:
    """When something is recomputed."""
    if scale.timed:
        spans = [(run.start / scale.time, (run.end - run.start) / scale.time) for run in memory.runs if run.again]
        strip.broken_barh(merged(spans), (0, 1), facecolors=VERMILION, linewidth=0)
    cost = memory.cost
    share = f", {cost.recomputation / cost.time:.1%} of the step" if cost.time else ""
    words = f"{cost.reruns} reruns, {format_ns(cost.recomputation)}{share}"
    strip.set(yticks=[0.5], yticklabels=["reruns"], ylim=(0, 1))
    strip.text(1.02, 0.5, words, transform=strip.transAxes, va="center", fontsize="small")


def merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans (start, length) with those that touch made one."""
    joined: list[tuple[float, float]] = []
    for start, length in spans:
        if joined and start <= sum(joined[-1]):
            joined[-1] = (joined[-1][0], start + length - joined[-1][0])
        else:
            joined.append((start, length))
    return joined


def _residents(memory: Residency) -> list[str]:
    """The largest residents at the peak, a line each."""
    shown = list(names_of(memory.at_peak, LARGEST))
    lines = [f"{format_bytes(stay.size):>11}  {short(stay.name, 24)}" for stay in shown]
    rest = sum(stay.size for stay in memory.at_peak) - sum(stay.size for stay in shown)
    more = len(memory.at_peak) - len(shown)
    return ["at the peak:", *lines, *([f"{format_bytes(rest):>11}  in {more} others"] if more else [])]


__all__ = ["COLORS", "LARGEST", "draw_memory", "merged"]
