"""Train a network under a hard memory budget: a formal model of rematerialization, its solvers, validator and execution.

About 25 names; all else is reached as `remat.ir.X`, `remat.algorithms.X`, `remat.exec.X`. Names load lazily, so that
`import remat` brings in neither torch nor cvxpy nor numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat._lazy import lazy

if TYPE_CHECKING:
    from remat import algorithms as algorithms
    from remat import errors as errors
    from remat import exec as exec
    from remat import ir as ir
    from remat import testing as testing
    from remat import units as units
    from remat import viz as viz
    from remat import zoo as zoo
    from remat.algorithms import Outcome, Problem, Solver, Transform, auto, best, first, named, pool, warm
    from remat.errors import RematError
    from remat.exec.estimating import estimate
    from remat.exec.wrapping import wrap
    from remat.ir import Graph, GraphBuilder, Schedule, dump, load
    from remat.ir.validation import validate
    from remat.units import GiB, MiB

__version__ = "0.1.0"

__all__ = [
    "GiB",
    "Graph",
    "GraphBuilder",
    "MiB",
    "Outcome",
    "Problem",
    "RematError",
    "Schedule",
    "Solver",
    "Transform",
    "auto",
    "best",
    "dump",
    "estimate",
    "first",
    "load",
    "named",
    "pool",
    "validate",
    "warm",
    "wrap",
]

_NAMES = {
    "remat.exec": ("wrap",),
    "remat.exec.estimating": ("estimate",),
    "remat.ir": ("Graph", "GraphBuilder", "Schedule", "dump", "load", "validate"),
    "remat.algorithms": ("Outcome", "Problem", "Solver", "Transform", "auto", "best", "first", "pool", "warm"),
    "remat.errors": ("RematError",),
    "remat.units": ("GiB", "MiB"),
}
_PACKAGES = ("algorithms", "errors", "exec", "ir", "testing", "units", "viz", "zoo")

if not TYPE_CHECKING:
    _WHERE = {name: f"{module}:{name}" for module, names in _NAMES.items() for name in names}
    _WHERE |= {name: f"remat.{name}" for name in _PACKAGES} | {"named": "remat.algorithms.named"}
    __getattr__, __dir__ = lazy(__name__, _WHERE)
