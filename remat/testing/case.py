"""What the laws of a solver are tried on."""

from __future__ import annotations

from attrs import field, frozen

from remat.algorithms._core.problem import Problem
from remat.ir import Schedule, print_text


@frozen(kw_only=True)
class Case:
    """One example: a problem, schedules known to fit it, and how often the clock may be looked at before it is over."""

    problem: Problem
    witnesses: tuple[Schedule, ...]
    linked: Problem
    linked_witnesses: tuple[Schedule, ...]
    looks: int
    seed: int = field(default=0)

    @property
    def text(self) -> str:
        """For people: budget and graph."""
        return f"# budget {self.problem.budget}\n{print_text(self.problem.graph)}"
