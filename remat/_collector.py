"""What Python's garbage collector need not look at while remat imports and plans.

A full collection looks at everything that torch and the program hold: a quarter of a second for half a million objects, several
times a plan.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_apart = False
"""Whether a block of `old_objects_apart` runs. Python would have to count what is frozen, 40 ms for a million objects."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """In the block nothing is collected. For imports and captures: what they make stays, or lives nearly as long."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def old_objects_apart() -> Iterator[None]:
    """In the block the collector looks only at objects made in it; what was garbage before is collected after the block.

    Nothing changes for a program that has frozen objects itself (`gc.freeze`): they would be unfrozen with the others.
    """
    global _apart
    if _apart or gc.get_freeze_count():
        yield
        return
    gc.freeze()
    _apart = True
    try:
        yield
    finally:
        _apart = False
        gc.unfreeze()


def all_objects() -> list[object]:
    """The objects that the collector knows, also those that `old_objects_apart` has set apart."""
    if not _apart:
        return gc.get_objects()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()
