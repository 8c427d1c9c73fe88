"""Solvers over the IR and the algebra that composes them. Names load lazily: cvxpy and numba only where they are used."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "protocol": ("IMPOSSIBLE", "NOTHING", "ClassBound", "Outcome", "Plan", "Problem", "Solver", "Status"),
    "clock": ("Clock", "Progress"),
    "combine": (
        "Best",
        "First",
        "Warm",
        "WarmStarted",
        "When",
        "Within",
        "best",
        "first",
        "is_flat",
        "nodes_at_most",
        "warm",
    ),
    "options": ("OptionSource", "Pool", "Sweep", "pool", "undominated"),
    "transforms": ("Applied", "Through", "Transform"),
    "baselines": ("PerLayerCheckpoint", "StoreAll", "least_time", "store_all_peak"),
    "default": ("auto", "quick"),
    "exhaustive": ("Exhaustive",),
    "linearise": ("Linearise",),
    "quantise": ("Quantise", "UnitCost"),
    "periodic": ("Periodic",),
    "revolve": ("Revolve",),
    "dp": ("Pofo", "RkRotor", "Rotor"),
    "offload": ("Autocapper", "OffloadOnly", "Opportunist"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE)


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'remat.algorithms' has no attribute {name!r}")
    return getattr(importlib.import_module(f"remat.algorithms.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
