"""One self-contained page: the memory of a step, in which each tensor says whose it is, why it stays, and when it comes again.

The page loads nothing: style, program and data stand in it, and its content security policy forbids the rest. The program is in
`page.html` beside this file. Names come from files and models: control and direction characters are written out, and the data
are JSON in which no markup can begin.
"""

from __future__ import annotations

import html
import json
from importlib.resources import files
from typing import Any

from remat.ir import Offload
from remat.settings import optional, takes, whole
from remat.units import Bytes, format_bytes, format_ns
from remat.viz.canvas import refuse_nothing
from remat.viz.escape import plain
from remat.viz.lanes import LANES, lane_of
from remat.viz.pictures import COLORS
from remat.viz.residency import A_MEMORY, Group, Residency, Stay, scope_of

_KEPT = {
    "tangent": "autograd holds it to the end of the backward",
    "param grad": "it is the gradient of a parameter, a result of the step",
    "input grad": "it is the gradient of an input, a result of the step",
    "output": "it is an output, a result of the step",
    "updated buffer": "it is a buffer after the step",
}


@takes(memory=A_MEMORY, budget=optional(whole(0, "bytes")))
def print_page(memory: Residency, *, budget: Bytes | None = None) -> str:
    """The page as text.

    Args:
        memory: from `residency`.
        budget: drawn as a line [bytes].

    Raises:
        BadArgument: V-EMPTY, when nothing takes bytes.
    """
    refuse_nothing(memory.levels, "give a schedule whose data take bytes.")
    data = json.dumps(page_data(memory, budget=budget), separators=(",", ":"))
    for mark in "<>&":
        data = data.replace(mark, f"\\u{ord(mark):04x}")
    template = files("remat.viz").joinpath("page.html").read_text(encoding="utf-8")
    before, between, after = template.split("@@")
    return before + html.escape(plain(memory.graph.name)) + between + data + after


@takes(memory=A_MEMORY, budget=optional(whole(0, "bytes")))
def page_data(memory: Residency, *, budget: Bytes | None = None) -> dict[str, Any]:
    """What the page shows, as JSON: sizes in bytes, times in nanoseconds, places by index.

    Returns:
        `stays`: one row for each stay, of the columns in `columns`; `changes`: for each change of the memory in order its time
        and the stay that begins (its index) or ends (minus its index, less one); `runs` and `copies`: name, lane, start, end,
        step, module.
    """
    cost = memory.cost
    place = {id(stay): index for index, stay in enumerate(memory.stays)}
    return {
        "name": plain(memory.graph.name),
        "summary": _summary(memory, budget),
        "time": cost.time,
        "peak": cost.peak,
        "peak_time": memory.peak_time,
        "loss_time": memory.loss_time,
        "budget": budget,
        "groups": [[group.value, COLORS[group]] for group in Group],
        "lanes": [[lane, color] for lane, color in LANES.items()],
        "columns": ["name", "size", "group", "kind", "module", "made_by", "start", "end", "again", "why", "reads"],
        "stays": [_row(memory, stay) for stay in memory.stays],
        "changes": [
            [when, place[id(stay)] if change > 0 else -1 - place[id(stay)]]
            for (when, _, _), change, stay in memory.changes
        ],
        "runs": [
            [plain(run.node), lane_of(memory, run), run.start, run.end, run.step, plain(scope_of(memory.graph, run.node))]
            for run in memory.runs
        ],
        "copies": [
            [plain(copy.what), copy.lane.value, copy.start, copy.end, copy.step, ""] for copy in cost.copies
        ],
    }  # fmt: skip


def _summary(memory: Residency, budget: Bytes | None) -> list[list[str]]:
    """The figures of the step, in words."""
    cost = memory.cost
    share = f" ({cost.recomputation / cost.time:.1%} of the step)" if cost.time else ""
    rows = [
        ["peak", f"{format_bytes(cost.peak)} at {format_ns(memory.peak_time)}"],
        ["time", format_ns(cost.time)],
        ["recomputed", f"{format_ns(cost.recomputation)} in {cost.reruns} runs{share}"],
    ]
    if budget is not None:
        rows.insert(1, ["budget", f"{format_bytes(budget)}, {'kept' if cost.peak <= budget else 'exceeded'}"])
    if cost.copies:
        rows.append(["waiting for copies", format_ns(cost.idle)])
        rows.append(["host", f"at most {format_bytes(cost.host_peak)}"])
    return rows


def _row(memory: Residency, stay: Stay) -> list[Any]:
    group = list(Group).index(stay.group)
    reads = [step for step in stay.reads if stay.group is not Group.WORKSPACE]
    return [
        plain(stay.name), stay.size, group, plain(stay.kind), plain(stay.scope), plain(stay.made_by), stay.start, stay.end,
        int(stay.again), plain(reason(memory, stay)), reads,
    ]  # fmt: skip


def reason(memory: Residency, stay: Stay) -> str:
    """Why a stay holds its bytes, and what ends it."""
    if stay.group is Group.WORKSPACE:
        what = "its workspace" if stay.kind == "workspace" else f"a {stay.kind}, beside the sum so far,"
        return f"{what} exists while {stay.made_by} runs"
    if stay.keep:
        return f"kept: {_KEPT.get(stay.kind, 'the step leaves it to its caller')}"
    readers = [str(memory.schedule.steps[step]).removeprefix("run ") for step in stay.reads]
    if not readers:
        return f"nothing reads it before it is {_ending(memory, stay)}"
    times = f"{len(readers)} times, the last time" if len(readers) > 1 else "once,"
    return f"read {times} by {readers[-1]}; then it is {_ending(memory, stay)}"


def _ending(memory: Residency, stay: Stay) -> str:
    if stay.until == len(memory.schedule):
        return "left at the end of the step"
    step = memory.schedule.steps[stay.until]
    if isinstance(step, Offload):
        return "copied to the host"
    return "dropped" if str(step).startswith("drop") else "replaced by another run of its node"


__all__ = ["page_data", "print_page", "reason"]
