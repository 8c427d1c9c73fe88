"""`auto`: what plans when nobody names a solver. One expression; see docs/explanation/planner.md."""

from __future__ import annotations

from remat.algorithms.bounds.single import SingleInstant
from remat.algorithms.protocol import Solver
from remat.algorithms.runs.moves import MultiStart, RuinAndRecreate
from remat.algorithms.runs.polish import Polish

GAP = 0.002
"""Plan over proved bound, less one, that is good enough to stop."""

auto: Solver = Polish((MultiStart(starts=20), SingleInstant(gap=GAP), RuinAndRecreate(iterations=200)), gap=GAP)
"""The default planner."""
