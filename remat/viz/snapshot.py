"""The step as a memory snapshot of torch: the structure that `torch.cuda.memory._snapshot` returns, for the same viewers.

Every stay is an allocation and, where it ends, a free. Addresses are those of a first-fit allocator that does not round: the
sizes and the times are the plan's, the fragmentation is not that of a device. Stack frames hold what a plan knows instead of
lines of Python: the datum, the node that makes it, and its module. The form is that of torch 2.1 and later; entries have no
`category`, because the viewer stops at a list of categories without its own word for what has none.
"""

from __future__ import annotations

import pickle
from bisect import insort
from typing import Any

from remat.settings import takes
from remat.units import Bytes
from remat.viz.escape import plain
from remat.viz.residency import A_MEMORY, Residency, Stay

BASE = 1 << 32
"""The address of the segment: that of no allocation is zero."""


@takes(memory=A_MEMORY)
def memory_snapshot(memory: Residency) -> dict[str, Any]:
    """The snapshot after the step, with the history of its allocations.

    Args:
        memory: from `residency`.

    Returns:
        A dictionary with `segments` and `device_traces`, as of `torch.cuda.memory._snapshot`; times in microseconds.
    """
    heap = _Heap()
    trace: list[dict[str, Any]] = []
    for (when, _, _), change, stay in memory.changes:
        if change > 0:
            trace.append(_entry("alloc", heap.allocate(stay), stay, when // 1000))
        elif stay.until < len(memory.schedule):  # what nothing frees is what the snapshot finds
            address = heap.free(stay)
            trace += [_entry(action, address, stay, when // 1000) for action in ("free_requested", "free_completed")]
    opened = {"action": "segment_alloc", "addr": BASE, "size": heap.size, "stream": 0, "time_us": 0, "frames": []}
    return {
        "segments": [_segment(heap)] if heap.size else [],
        "device_traces": [[opened, *trace] if heap.size else []],
        "allocator_settings": {},
        "external_annotations": [],
    }


@takes(memory=A_MEMORY)
def pickle_snapshot(memory: Residency) -> bytes:
    """The snapshot as a pickle: what `torch.cuda.memory._dump_snapshot` writes."""
    return pickle.dumps(memory_snapshot(memory), protocol=4)


class _Heap:
    """The lowest address that fits.

    Attributes:
        size: the highest end of any allocation so far [bytes].
    """

    def __init__(self) -> None:
        self.live: list[tuple[int, Bytes, int]] = []  # address, size, identity of the stay
        self.address: dict[int, int] = {}
        self.stays: dict[int, Stay] = {}
        self.size: Bytes = 0

    def allocate(self, stay: Stay) -> int:
        """The address of a stay."""
        place = 0
        for address, size, _ in self.live:
            if address - place >= stay.size:
                break
            place = address + size
        insort(self.live, (place, stay.size, id(stay)))
        self.address[id(stay)] = place
        self.stays[id(stay)] = stay
        self.size = max(self.size, place + stay.size)
        return BASE + place

    def free(self, stay: Stay) -> int:
        """Give the bytes of a stay back; the address it had."""
        place = self.address.pop(id(stay))
        self.live.remove((place, stay.size, id(stay)))
        return BASE + place


def _frames(stay: Stay) -> list[dict[str, Any]]:
    """The datum, by whom it is made, and its modules from the inside out."""
    frames = [{"filename": plain(stay.made_by), "line": stay.step, "name": plain(f"{stay.name} ({stay.kind})")}]
    path = stay.scope.split(".") if stay.scope else []
    for depth in range(len(path), 0, -1):
        frames.append({"filename": "module", "line": 0, "name": plain(".".join(path[:depth]))})
    return frames


def _entry(action: str, address: int, stay: Stay, time_us: int) -> dict[str, Any]:
    return {
        "action": action, "addr": address, "size": stay.size, "stream": 0, "time_us": time_us, "frames": _frames(stay),
    }  # fmt: skip


def _segment(heap: _Heap) -> dict[str, Any]:
    """The one segment, its blocks without a gap between them."""
    blocks: list[dict[str, Any]] = []
    end = 0
    for address, size, key in heap.live:
        if address > end:
            blocks.append(_inactive(end, address))
        frames = _frames(heap.stays[key])
        blocks.append({
            "address": BASE + address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames,
        })  # fmt: skip
        end = address + size
    if heap.size > end:
        blocks.append(_inactive(end, heap.size))
    active = sum(size for _, size, _ in heap.live)
    return {
        "device": 0, "address": BASE, "total_size": heap.size, "allocated_size": active, "active_size": active,
        "requested_size": active, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": [], "blocks": blocks,
    }  # fmt: skip


def _inactive(start: int, end: int) -> dict[str, Any]:
    return {"address": BASE + start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}


__all__ = ["memory_snapshot", "pickle_snapshot"]
