"""Conditions of a search as values: when a pass is worth its time (`pass.if_(no_plan)`), when a search ends (`stop=gap(0.001)`).

A condition looks at the best plan and the bound, certified or claimed, and at nothing else. Their repr rebuilds them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from attrs import field, frozen

from remat.settings import instance, number
from remat.units import Ns


class Standing(Protocol):
    """What a condition looks at: the time of the best plan, infinite without one, and the bound [ns]."""

    @property
    def best_time(self) -> float: ...

    @property
    def lower(self) -> Ns | float: ...


class Condition(ABC):
    """A test of how far a search is; `str` says it in words, as the end of a sentence that begins with "if" or "until"."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, standing: Standing) -> bool:
        """Whether it holds."""


@frozen
class gap(Condition):
    """Holds when the plan is within a gap of the bound, or no schedule exists.

    Attributes:
        size: plan over bound, less one.
    """

    size: float = field(validator=number(0))

    def __call__(self, standing: Standing) -> bool:
        """Whether plan and bound are this close."""
        return standing.best_time <= standing.lower * (1 + self.size)

    def __repr__(self) -> str:
        return f"gap({self.size!r})"

    def __str__(self) -> str:
        return f"the plan is within {self.size:.2%} of the bound"


@frozen
class gap_above(Condition):
    """Holds when the plan is further than a gap above the bound, or there is none and there may be one.

    Attributes:
        size: plan over bound, less one.
    """

    size: float = field(validator=number(0))

    def __call__(self, standing: Standing) -> bool:
        """Whether plan and bound are further apart."""
        return standing.best_time > standing.lower * (1 + self.size)

    def __repr__(self) -> str:
        return f"gap_above({self.size!r})"

    def __str__(self) -> str:
        return f"the plan is still more than {self.size:.2%} above the bound"


@frozen
class _Planned(Condition):
    expected: bool
    name: str

    def __call__(self, standing: Standing) -> bool:
        return (standing.best_time < float("inf")) == self.expected

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return "a plan is known" if self.expected else "no plan is known"

    def __reduce__(self) -> str:
        return self.name


any_plan: Condition = _Planned(True, "any_plan")
"""Holds when a plan is known, however far from the bound."""

no_plan: Condition = _Planned(False, "no_plan")
"""Holds while no plan is known."""

CONDITION = instance(Condition, "gap(0.001)")
"""A setting that is a condition."""
