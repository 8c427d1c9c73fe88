"""The step as a trace that chrome://tracing and Perfetto open: lanes with names, and counters of the memory by kind.

Form: the JSON of the Trace Event Format: complete events (`X`) in microseconds, counters (`C`), instants (`i`), metadata (`M`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from remat.ir.arguments import A_TEXT
from remat.settings import takes
from remat.units import Ns
from remat.viz.escape import plain
from remat.viz.lanes import LANES, lane_of
from remat.viz.residency import A_MEMORY, Execution, Residency, scope_of

STEP = 1
"""The process that the lanes are threads of."""


@takes(memory=A_MEMORY, title=A_TEXT)
def trace_events(memory: Residency, title: str = "") -> dict[str, Any]:
    """The document of a trace.

    Args:
        memory: from `residency`.
        title: name of the process in the trace.

    Returns:
        What `json.dump` writes: times in microseconds, sizes in bytes. Each run is one event with its step, node, option,
        module, reads, writes and workspace as arguments; each copy one with its datum.
    """
    events = [
        *_names(title or memory.graph.name),
        *_runs(memory),
        *_copies(memory),
        *_levels(memory),
        *_instants(memory),
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": _about(memory)}


@takes(memory=A_MEMORY, title=A_TEXT)
def print_trace(memory: Residency, title: str = "") -> str:
    """The trace as JSON text."""
    return json.dumps(trace_events(memory, title), separators=(",", ":"))


def _us(time: Ns) -> float:
    """Microseconds; exact to the nanosecond for any step shorter than weeks."""
    return time / 1000


def _names(title: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": STEP, "args": {"name": plain(title)}}
    for place, lane in enumerate(LANES):
        yield {"ph": "M", "name": "thread_name", "pid": STEP, "tid": place, "args": {"name": lane}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": STEP, "tid": place, "args": {"sort_index": place}}


def _event(lane: str, name: str, start: Ns, end: Ns) -> dict[str, Any]:
    place = list(LANES).index(lane)
    return {
        "ph": "X", "name": plain(name), "cat": lane, "pid": STEP, "tid": place, "ts": _us(start), "dur": _us(end - start),
    }  # fmt: skip


def _runs(memory: Residency) -> Iterator[dict[str, Any]]:
    for run in memory.runs:
        yield {**_event(lane_of(memory, run), run.node, run.start, run.end), "args": _details(memory, run)}


def _details(memory: Residency, run: Execution) -> dict[str, Any]:
    node = memory.graph.node(run.node)
    return {
        "step": run.step,
        "module": plain(scope_of(memory.graph, run.node)),
        "option": run.option,
        "reads": [plain(name) for name in node.reads],
        "writes": [plain(name) for name in node.writes],
        "workspace": node.options[run.option].workspace,
    }


def _copies(memory: Residency) -> Iterator[dict[str, Any]]:
    for copy in memory.cost.copies:
        yield {**_event(copy.lane.value, copy.what, copy.start, copy.end), "args": {"step": copy.step}}


def _levels(memory: Residency) -> Iterator[dict[str, Any]]:
    """A counter event for each time at which the memory changes; of several changes at one time the last holds."""
    times = [when for (when, _, _), _, _ in memory.changes]
    groups = memory.by_group
    for i, when in enumerate(times):
        if i + 1 == len(times) or times[i + 1] > when:
            sizes = {group.value: row[i] for group, row in groups.items()}
            yield {"ph": "C", "name": "device bytes", "pid": STEP, "ts": _us(when), "args": sizes}
    host = memory.cost.host_timeline
    if memory.cost.host_peak:
        for run in memory.runs:
            yield {
                "ph": "C", "name": "host bytes", "pid": STEP, "ts": _us(run.end), "args": {"held": host[run.step]},
            }  # fmt: skip


def _instants(memory: Residency) -> Iterator[dict[str, Any]]:
    for name, when in (("loss", memory.loss_time), ("peak", memory.peak_time)):
        yield {"ph": "i", "name": name, "pid": STEP, "tid": 0, "s": "p", "ts": _us(when)}


def _about(memory: Residency) -> dict[str, Any]:
    cost = memory.cost
    return {
        "time_ns": cost.time, "recomputation_ns": cost.recomputation, "reruns": cost.reruns, "idle_ns": cost.idle,
        "peak_bytes": cost.peak, "host_peak_bytes": cost.host_peak,
    }  # fmt: skip


__all__ = ["print_trace", "trace_events"]
