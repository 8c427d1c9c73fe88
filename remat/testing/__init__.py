"""Tests for authors of parts: laws of solvers, bounds, transforms, partitioners, sources, back ends, scores; races of copies.

The rest of the library does not import this package. Hypothesis is imported when a check runs, torch with `TracingDevice` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat._lazy import lazy

if TYPE_CHECKING:
    from remat.algorithms._milp.linear import Builder, Linear
    from remat.testing.backend_laws import BACKEND_LAWS, check_backend
    from remat.testing.bound_laws import BOUND_LAWS, check_bound
    from remat.testing.clock import Ticks, memory_clock
    from remat.testing.composition_laws import COMPOSITION_LAWS, check_composition
    from remat.testing.corruptions import CORRUPTIONS
    from remat.testing.partitioner_laws import PARTITIONER_LAWS, check_partitioner
    from remat.testing.relaxation import Formulation, Relaxation
    from remat.testing.report import LawBroken, Report
    from remat.testing.score_laws import SCORE_LAWS, check_score
    from remat.testing.solver_laws import SOLVER_LAWS, check_solver
    from remat.testing.source_laws import SOURCE_LAWS, check_source
    from remat.testing.tracing_device import TracingDevice
    from remat.testing.transform_laws import TRANSFORM_LAWS, check_transform

__all__ = [
    "BACKEND_LAWS",
    "BOUND_LAWS",
    "COMPOSITION_LAWS",
    "CORRUPTIONS",
    "PARTITIONER_LAWS",
    "SCORE_LAWS",
    "SOLVER_LAWS",
    "SOURCE_LAWS",
    "TRANSFORM_LAWS",
    "Builder",
    "Formulation",
    "LawBroken",
    "Linear",
    "Relaxation",
    "Report",
    "Ticks",
    "TracingDevice",
    "check_backend",
    "check_bound",
    "check_composition",
    "check_partitioner",
    "check_score",
    "check_solver",
    "check_source",
    "check_transform",
    "memory_clock",
]

_NAMES = {
    "backend_laws": ("BACKEND_LAWS", "check_backend"),
    "bound_laws": ("BOUND_LAWS", "check_bound"),
    "clock": ("Ticks", "memory_clock"),
    "composition_laws": ("COMPOSITION_LAWS", "check_composition"),
    "corruptions": ("CORRUPTIONS",),
    "partitioner_laws": ("PARTITIONER_LAWS", "check_partitioner"),
    "relaxation": ("Formulation", "Relaxation"),
    "report": ("LawBroken", "Report"),
    "score_laws": ("SCORE_LAWS", "check_score"),
    "solver_laws": ("SOLVER_LAWS", "check_solver"),
    "source_laws": ("SOURCE_LAWS", "check_source"),
    "tracing_device": ("TracingDevice",),
    "transform_laws": ("TRANSFORM_LAWS", "check_transform"),
}

if not TYPE_CHECKING:
    _WHERE = {name: f"remat.testing.{module}:{name}" for module, names in _NAMES.items() for name in names}
    _WHERE |= {name: f"remat.algorithms._milp.linear:{name}" for name in ("Builder", "Linear")}
    __getattr__, __dir__ = lazy(__name__, _WHERE)
