"""Whether numba's cache has all kernels of the default planner.

A file in the cache folder records this, with the sources, versions and processor for which it holds. If the file is missing or
wrong, nothing breaks: the kernels are looked up in the cache again.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import llvmlite.binding
import numba

from remat.algorithms._arrays.kernel_sources import MARK, sources_digest
from remat.algorithms._arrays.liveness import memory_profile


def cache_folder() -> Path | None:
    """Where numba caches these kernels; None if it does not cache them."""
    if numba.config.DISABLE_JIT:
        return None
    path = memory_profile.stats.cache_path  # type: ignore[attr-defined]
    return None if path is None else Path(path)


def is_incomplete() -> bool:
    """Whether kernels may be missing in the cache; False if there is no cache."""
    folder = cache_folder()
    if folder is None:
        return False
    try:
        return (folder / MARK).read_text() != _state()
    except OSError:
        return True


def mark_full() -> None:
    """Record that the cache has all kernels."""
    folder = cache_folder()
    if folder is None:
        return
    with suppress(OSError):  # a read-only cache: the next process looks again
        temporary = folder / f"{MARK}.{os.getpid()}"
        temporary.write_text(_state())
        temporary.replace(folder / MARK)


def _state() -> str:
    """Everything that the cache depends on: sources, versions, processor."""
    processor = os.environ.get("NUMBA_CPU_NAME") or llvmlite.binding.get_host_cpu_name()
    return "\n".join((sources_digest(), numba.__version__, sys.version, processor))
