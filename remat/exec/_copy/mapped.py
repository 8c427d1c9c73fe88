"""Files as memory that hold no file descriptor.

Python's `mmap` keeps one for each map, of which a process has a thousand; torch's `from_file` keeps none, but its profiler counts
such memory as the device's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from functools import cache
from typing import Any

from remat.units import Bytes

_FAILED = ctypes.c_void_p(-1).value


def mapped_file(size: Bytes) -> Any:
    """The buffer of a file without a name; its blocks are there, so that no write can fail, and go with the last reference.

    Raises:
        OSError: there is no room, or no descriptor to open the file with.
    """
    libc = _libc()
    with tempfile.TemporaryFile(prefix="remat-") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file.fileno(), 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    buffer = (ctypes.c_ubyte * size).from_address(address)
    # A worker may still write into it when Python ends.
    weakref.finalize(buffer, libc.munmap, address, size).atexit = False
    return buffer


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    word, size = ctypes.c_int, ctypes.c_size_t
    libc.mmap.argtypes, libc.mmap.restype = (ctypes.c_void_p, size, word, word, word, ctypes.c_long), ctypes.c_void_p
    libc.munmap.argtypes = (ctypes.c_void_p, size)
    return libc


__all__ = ["mapped_file"]
