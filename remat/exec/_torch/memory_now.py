"""How much memory a device of this machine has free now."""

from __future__ import annotations

from pathlib import Path

import torch

from remat.errors import RematError
from remat.units import Bytes

_MEMINFO = Path("/proc/meminfo")
_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Limit and use of the control group that this process is in, versions 2 and 1."""


def free_memory(device: torch.device) -> Bytes:
    """Bytes that a process can still take.

    On CUDA what the driver has free and what the allocator of this process holds without using it; on the CPU what the system
    says is available, and what the process's control group leaves.

    Raises:
        RematError: X-MEMORY, where the system does not say.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "cpu":
        available = _available()
        if available is not None:
            return min([available, *_left_by_groups()])
    raise RematError(
        "X-MEMORY", f"this system does not say how much memory {device} has free.", fix="give it in bytes."
    )


def _available() -> Bytes | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(sizes[0]) * 1024 if sizes and sizes[0].isdigit() else None


def _left_by_groups() -> list[Bytes]:
    left = []
    for limit, usage in _GROUPS:
        try:
            most, now = limit.read_text().strip(), usage.read_text().strip()
        except OSError:
            continue
        if most.isdigit() and now.isdigit():
            left.append(max(0, int(most) - int(now)))
    return left


__all__ = ["free_memory"]
