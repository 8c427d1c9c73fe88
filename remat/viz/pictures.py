"""Memory over time, and a Gantt chart of runs and copies. matplotlib is imported when a picture is drawn."""

from __future__ import annotations

import os

from remat.ir import Cost, Lane
from remat.units import Bytes, MiB, format_bytes
from remat.viz.canvas import new_figure

_SIZE = (9.0, 3.2)  # inches

_LANES = {Lane.COMPUTE: "#6baed6", Lane.TO_HOST: "#fd8d3c", Lane.TO_DEVICE: "#74c476"}


def draw_memory(cost: Cost, path: str | os.PathLike[str], *, budget: Bytes | None = None) -> None:
    """Draw bytes on the device, and on the host where there are copies, over the steps.

    Raises:
        BackendMissing: when matplotlib is not installed.
    """
    figure = new_figure(*_SIZE)
    axes = figure.add_subplot()
    axes.fill_between(range(len(cost.timeline)), [size / MiB for size in cost.timeline], step="post", color="#9ecae1")
    axes.plot(cost.peak_step, cost.peak / MiB, "v", color="#08519c", label=f"peak {format_bytes(cost.peak)}")
    if cost.host_peak:
        axes.step(
            range(len(cost.timeline)),
            [size / MiB for size in cost.host_timeline],
            where="post",
            color="#fd8d3c",
            label="host",
        )
    if budget is not None:
        axes.axhline(budget / MiB, color="#cb181d", linestyle="--", label=f"budget {format_bytes(budget)}")
    axes.set(xlabel="step", ylabel="MiB", ylim=(0, None))
    axes.legend(loc="upper right")
    figure.savefig(path)


def draw_gantt(cost: Cost, path: str | os.PathLike[str]) -> None:
    """Draw the runs and the copies each way over time; gaps in the first row are waiting.

    Raises:
        BackendMissing: when matplotlib is not installed.
    """
    figure = new_figure(*_SIZE)
    axes = figure.add_subplot()
    lanes = [lane for lane in Lane if lane is Lane.COMPUTE or any(interval.lane is lane for interval in cost.copies)]
    for row, lane in enumerate(lanes):
        spans = [
            (interval.start, interval.end - interval.start) for interval in cost.intervals if interval.lane is lane
        ]
        axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=_LANES[lane], edgecolor="white", linewidth=0.3)
    axes.set(xlabel="ns", yticks=range(len(lanes)), yticklabels=[lane.value for lane in lanes])
    axes.invert_yaxis()
    figure.savefig(path)
