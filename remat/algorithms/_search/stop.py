"""Conditions of a search as values: when a pass is run (`pass.if_(no_plan)`), when a search ends (`stop=gap(0.001)`).

A condition depends on the best plan and the bound, certified or claimed. Its repr rebuilds it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

from attrs import field, frozen

from remat.algorithms._arrays.work import Worked
from remat.settings import Setting, instance, number, whole
from remat.units import Ns

C = TypeVar("C", bound="Condition")


class Standing(Protocol):
    """The input of a condition: the time of the best plan, infinite without a plan, and the bound [ns]; nodes and work."""

    @property
    def best_time(self) -> float: ...

    @property
    def lower(self) -> Ns | float: ...

    @property
    def nodes(self) -> int: ...

    @property
    def worked(self) -> Worked: ...


def _is_standing(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("best_time", "lower", "nodes", "worked"))


STANDING = Setting("the state of a search, as a Polish hands it to its conditions", _is_standing)


def _asks(holds: Callable[[C, Standing], bool]) -> Callable[[C, Standing], bool]:
    """Decorate the test of a condition: what is no state of a search is refused. A test that goes well costs nothing more."""

    @wraps(holds)
    def call(self: C, standing: Standing) -> bool:
        try:
            return holds(self, standing)
        except AttributeError:
            STANDING.check(standing, f"{self!r}: standing")
            raise

    return call


class Condition(ABC):
    """A test of the state of a search; `str` gives it in words, for the end of a sentence that begins with "if" or "until"."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, standing: Standing) -> bool:
        """Whether it holds."""


@frozen(repr=False)
class _Gap(Condition):
    """A test of the gap between plan and bound.

    Attributes:
        size: plan over bound, minus one.
    """

    size: float = field(validator=number(0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size!r})"


@frozen(repr=False)
class gap(_Gap):
    """Holds when the plan is within a gap of the bound, or no schedule exists.

    Attributes:
        size: plan over bound, minus one.
    """

    @_asks
    def __call__(self, standing: Standing) -> bool:
        """Whether plan and bound are this close."""
        return standing.best_time <= standing.lower * (1 + self.size)

    def __str__(self) -> str:
        return f"the plan is within {self.size:.2%} of the bound"


@frozen(repr=False)
class gap_above(_Gap):
    """Holds when the plan exceeds the bound by more than a gap, or when no plan is known but one may exist.

    Attributes:
        size: plan over bound, minus one.
    """

    @_asks
    def __call__(self, standing: Standing) -> bool:
        """Whether plan and bound are further apart."""
        return standing.best_time > standing.lower * (1 + self.size)

    def __str__(self) -> str:
        return f"the plan is still more than {self.size:.2%} above the bound"


@frozen
class gaining(Condition):
    """Holds without a plan, and while plans still get faster for the planning work that they take.

    It no longer holds when the work since the last gain of a ten-thousandth exceeds both `seconds` and the work before that gain.
    Bounds are no planning work.

    Attributes:
        seconds: of work, at a stated rate: the same plan on any machine, busy or not.
    """

    seconds: float = field(default=0.5, validator=number(0))

    @_asks
    def __call__(self, standing: Standing) -> bool:
        """Whether it is worth while to go on."""
        worked = standing.worked
        return standing.best_time == float("inf") or worked.idle <= max(self.seconds, worked.gained)

    def __repr__(self) -> str:
        return f"gaining({self.seconds!r})"

    def __str__(self) -> str:
        return f"plans got faster in the last half of the work or its last {self.seconds:g} s"


@frozen
class nodes_up_to(Condition):
    """Holds for graphs of at most so many nodes.

    Attributes:
        count: of nodes that must run.
    """

    count: int = field(validator=whole(1, "nodes"))

    @_asks
    def __call__(self, standing: Standing) -> bool:
        """Whether the graph is small enough."""
        return standing.nodes <= self.count

    def __repr__(self) -> str:
        return f"nodes_up_to({self.count!r})"

    def __str__(self) -> str:
        return f"the graph has at most {self.count} nodes"


@frozen
class worked_up_to(Condition):
    """Holds until the planning work reaches a limit.

    Bounds are no planning work.

    Attributes:
        seconds: of work, at a stated rate: the same plan on any machine, busy or not.
    """

    seconds: float = field(validator=number(0))

    @_asks
    def __call__(self, standing: Standing) -> bool:
        """Whether the work is within the limit."""
        return standing.worked.seconds <= self.seconds

    def __repr__(self) -> str:
        return f"worked_up_to({self.seconds!r})"

    def __str__(self) -> str:
        return f"planning has taken at most {self.seconds:g} s of work"


class _Disputed(Condition):
    """Holds unless another search, from another start, has come to just the time of the best plan and to no better one."""

    __slots__ = ()

    @_asks
    def __call__(self, standing: Standing) -> bool:
        return not standing.worked.agreed

    def __repr__(self) -> str:
        return "disputed"

    def __str__(self) -> str:
        return "no search from another start has ended at the same time"

    def __reduce__(self) -> str:
        return "disputed"


disputed: Condition = _Disputed()
"""Holds unless another search, from another start, has come to just the time of the best plan and to no better one."""


@frozen
class _Planned(Condition):
    expected: bool
    name: str

    @_asks
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
