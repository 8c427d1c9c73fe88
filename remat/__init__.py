"""Train a network under a hard memory budget: a formal model of rematerialization, its solvers, validator and execution.

About 25 names; all else is reached as `remat.ir.X`, `remat.algorithms.X`, `remat.exec.X`. Names load lazily, so that
`import remat` brings in neither torch nor cvxpy nor numba.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "remat.exec": ("wrap",),
    "remat.ir": ("Graph", "GraphBuilder", "Schedule", "dump", "load", "validate"),
    "remat.algorithms": ("Outcome", "Problem", "Solver", "Transform", "auto", "best", "first", "pool", "warm"),
    "remat.errors": ("RematError",),
    "remat.units": ("GiB", "MiB"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}
_SUBMODULES = {
    **{name: f"remat.{name}" for name in ("algorithms", "errors", "exec", "ir", "testing", "units", "viz", "zoo")},
    "named": "remat.algorithms.named",
}

__all__ = sorted({*_MODULE, "named"})


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(_SUBMODULES[name])
    if name not in _MODULE:
        raise AttributeError(f"module 'remat' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
