"""The steps of a schedule, which name nodes and data by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import field, frozen

from remat.errors import IllFormed
from remat.ir.checks import a_name, at_least

if TYPE_CHECKING:
    from attrs import Attribute


@frozen
class Run:
    """Run a compute node by one of its options."""

    node: str = field(validator=a_name)
    option: int = field(default=0, validator=at_least(0, "(index of an option)"))

    @property
    def label(self) -> str:
        """The node, with the option unless it is the first: `F1#2`."""
        return f"{self.node}#{self.option}" if self.option else self.node

    def __str__(self) -> str:
        return f"run {self.label}"


@frozen
class Drop:
    """Free a resident datum or phantom."""

    datum: str = field(validator=a_name)

    def __str__(self) -> str:
        return f"drop {self.datum}"


@frozen
class Offload:
    """Start to copy a resident datum to the host; its device bytes are free when the copy has ended."""

    datum: str = field(validator=a_name)

    def __str__(self) -> str:
        return f"offload {self.datum}"


@frozen
class Prefetch:
    """Start to copy an offloaded datum back; it takes its bytes when the copy starts and is readable when it ends."""

    datum: str = field(validator=a_name)

    def __str__(self) -> str:
        return f"prefetch {self.datum}"


Step: TypeAlias = Run | Drop | Offload | Prefetch


def some_steps(instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """Check for a tuple of steps."""
    if type(value) is not tuple or not all(isinstance(step, (Run, Drop, Offload, Prefetch)) for step in value):
        fix = "give Run, Drop, Offload and Prefetch steps."
        what = f"{type(instance).__name__}: {attribute.name} is {value!r:.80}, not a tuple of steps."
        raise IllFormed("G-TUPLE", what, fix=fix)
