"""Solvers over the IR and the algebra that composes them. Names load lazily: cvxpy and numba only where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from remat.algorithms._plugins.registry import OWN, WORDS

_HOME = {
    "_core.protocol": ("IMPOSSIBLE", "NOTHING", "ClassBound", "Outcome", "Plan", "Problem", "Solver", "Status"),
    "_core.clock": ("Clock", "Progress"),
    "_core.combine": ("Best", "First", "Warm", "WarmStarted", "When", "Within"),
    "_core.options": ("OptionSource", "Pool", "Sweep", "undominated"),
    "_core.transforms": ("Applied", "Through", "Transform"),
    "_hierarchy.partition": ("Partitioner",),
    "_whole.baselines": ("least_time", "store_all_peak"),
}
_WHERE = {name: f"remat.algorithms.{module}:{name}" for module, names in _HOME.items() for name in names}
for _table in (*OWN.values(), WORDS):
    # The published systems stay in `named`: some have the name of a module here.
    _WHERE.update((name, where) for name, where in _table.items() if ".named:" not in where)

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'remat.algorithms' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
