"""The sources that cached kernels were compiled from; what was compiled from other sources is dropped.

numba compares the file of a kernel only. But a kernel contains the code of the kernels of other files that it calls, and reading
an index of the cache fails where it names a class that has been renamed since.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from pathlib import Path
from typing import Final

STAMP: Final = "remat-kernels.sources"
"""Name of the file, in a cache folder, that holds the digest of the sources."""

MARK: Final = "remat-kernels.full"
"""Name of the file that marks a cache folder as complete."""

IN_TREE: Final = Path(__file__).parent / "__pycache__"
"""Where numba caches the kernels of this package, unless the user chose another folder or this one cannot be written."""

_PACKAGE: Final = Path(__file__).parents[1]
# no kernels: the tuples that all take, and how they are compiled
_SHARED: Final = ("graph_arrays.py", "jit.py", "plain_indices.py")

logger = logging.getLogger(__name__)


@functools.cache
def sources_digest() -> str:
    """A digest of every file with kernels."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.glob("_*/*.py")):
        source = path.read_bytes()
        if b"_arrays.jit import" in source or path.name in _SHARED:
            digest.update(path.name.encode() + source)
    return digest.hexdigest()


def drop_stale(folder: Path) -> bool:
    """Remove kernels of other sources from a cache folder; False if there are some that cannot be removed."""
    stamp = folder / STAMP
    try:
        if stamp.read_text() == sources_digest():
            return True
    except OSError:
        pass  # no kernels yet, or those of a version without stamps
    stale = [*folder.glob("*.nbi")]
    try:
        for index in stale:
            index.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{STAMP}.{os.getpid()}"
        temporary.write_text(sources_digest())
        temporary.replace(stamp)
    except OSError:  # a read-only cache
        return not stale
    if stale:
        logger.info("%d kernels of other sources dropped from %s", len(stale), folder)
    return True
