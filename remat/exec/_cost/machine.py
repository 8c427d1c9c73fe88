"""What measured costs hold for: the processor or accelerator, its threads, and the version of torch."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch


def machine_of(device: torch.device) -> str:
    """A device in words: equal for two processes whose measured costs may stand for each other."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.multi_processor_count} multiprocessors"
    if device.type != "cpu":
        return device.type
    threads = torch.get_num_threads()
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{_processor()}, {capability}, {threads} {'thread' if threads == 1 else 'threads'}"


@functools.cache
def _processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def minor_version(version: str) -> str:
    """`2.13` of `2.13.0+cpu`."""
    return ".".join(version.split("+")[0].split(".")[:2])


__all__ = ["machine_of", "minor_version"]
