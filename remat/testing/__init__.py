"""Shipped tests: laws that every solver, transform and partitioner keeps, strategies that try them, an in-memory clock.

Nothing of the library imports this package. Hypothesis is imported when a check runs, torch never.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "clock": ("Ticks", "memory_clock"),
    "corruptions": ("CORRUPTIONS",),
    "partitioner_laws": ("PARTITIONER_LAWS", "check_partitioner"),
    "report": ("LawBroken", "Report"),
    "solver_laws": ("SOLVER_LAWS", "check_solver"),
    "transform_laws": ("TRANSFORM_LAWS", "check_transform"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE)


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'remat.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"remat.testing.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
