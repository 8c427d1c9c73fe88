"""Whether numba's cache has all kernels of the default planner.

A file in the cache folder says so, and for which sources, versions and processor. Where it is missing or wrong nothing
breaks: the kernels are looked for in the cache once more.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path

import llvmlite.binding
import numba

from remat.algorithms._arrays.liveness import sweep

MARK = "remat-kernels.full"
"""Name of the file that says that a cache folder is full."""


def cache_folder() -> Path | None:
    """Where numba caches these kernels; None where it does not."""
    if numba.config.DISABLE_JIT:
        return None
    place = sweep.stats.cache_path  # type: ignore[attr-defined]
    return None if place is None else Path(place)


def wanting() -> bool:
    """Whether kernels may be missing in the cache; False where there is no cache."""
    folder = cache_folder()
    if folder is None:
        return False
    try:
        return (folder / MARK).read_text() != _state()
    except OSError:
        return True


def mark_full() -> None:
    """Note that the cache has all kernels."""
    folder = cache_folder()
    if folder is None:
        return
    with suppress(OSError):  # a read-only cache: it is looked at again
        temporary = folder / f"{MARK}.{os.getpid()}"
        temporary.write_text(_state())
        temporary.replace(folder / MARK)


def _state() -> str:
    """All that the cache depends on: sources, versions, processor."""
    sources, rooms = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted((*rooms.glob("_arrays/*.py"), *rooms.glob("_search/*.py"))):
        sources.update(path.name.encode() + path.read_bytes())
    processor = os.environ.get("NUMBA_CPU_NAME") or llvmlite.binding.get_host_cpu_name()
    return "\n".join((sources.hexdigest(), numba.__version__, sys.version, processor))
