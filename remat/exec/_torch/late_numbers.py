"""Numbers that Python reads of tensors whose values differ in every step: what may be done with them, and how it is guarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from remat.errors import Uncapturable


class LateNumber(Uncapturable):
    """Python reads a number that depends on trained parameters or on random numbers."""


_INTEGERS: ContextVar[bool] = ContextVar("whether integers may be read late", default=False)


def integers_may_be_late() -> bool:
    """Whether Python asks for an integer itself, not for how it compares: the trace then stands for this integer alone."""
    return _INTEGERS.get()


class LateValue:
    """What `tensor.item()` gives of such a tensor.

    A comparison is made on the tensor and becomes a guard of one bit. Where Python makes an integer of it or counts with an
    integer, the value becomes the guard. A float that is used itself is refused: the next step has another.

    Args:
        tensor: holds one number.
        refused: what is raised where the number cannot be used.
    """

    __slots__ = ("_refused", "_tensor")

    def __init__(self, tensor: torch.Tensor, refused: LateNumber) -> None:
        self._tensor = tensor.detach()
        self._refused = refused

    def _compared(self, other: Any, compare: Callable[[torch.Tensor, Any], torch.Tensor]) -> bool:
        tensor = self._tensor
        if isinstance(other, LateValue):
            return bool(compare(tensor.double(), other._tensor.double()))
        if tensor.is_floating_point() and isinstance(other, (int, float)):
            # Python compares in double precision, torch in the type of the tensor.
            return bool(compare(tensor.double(), other))
        if not isinstance(other, int) or tensor.is_complex():
            raise self._refused
        return bool(compare(tensor, other))

    def __lt__(self, other: Any) -> bool:
        return self._compared(other, torch.lt)

    def __le__(self, other: Any) -> bool:
        return self._compared(other, torch.le)

    def __gt__(self, other: Any) -> bool:
        return self._compared(other, torch.gt)

    def __ge__(self, other: Any) -> bool:
        return self._compared(other, torch.ge)

    def __eq__(self, other: object) -> bool:
        return self._compared(other, torch.eq)

    def __ne__(self, other: object) -> bool:
        return self._compared(other, torch.ne)

    def __bool__(self) -> bool:
        return self != 0

    def _integer(self, rounded: Callable[[torch.Tensor], torch.Tensor]) -> int:
        tensor = self._tensor
        if tensor.is_complex():
            raise self._refused
        if tensor.is_floating_point():
            tensor = rounded(tensor.double()).to(torch.int64)
        token = _INTEGERS.set(True)
        try:
            number = int(FunctionalTensor.item(tensor))
        finally:
            _INTEGERS.reset(token)
        if abs(number) >= 2**62:  # what torch makes of infinity or NaN, for which Python raises
            raise self._refused
        return number

    def __int__(self) -> int:
        return self._integer(torch.trunc)

    __trunc__ = __int__

    def __floor__(self) -> int:
        return self._integer(torch.floor)

    def __ceil__(self) -> int:
        return self._integer(torch.ceil)

    def __round__(self, digits: int | None = None) -> int:
        if digits is not None:
            raise self._refused
        return self._integer(torch.round)

    def __index__(self) -> int:
        self._whole()
        return int(self)

    __hash__ = __index__  # of an integer

    def _whole(self) -> None:
        if self._tensor.is_floating_point() or self._tensor.is_complex():
            raise self._refused

    def __getattr__(self, name: str) -> Any:
        self._whole()
        return getattr(int(self), name)


def _of_the_integer(name: str) -> Callable[..., Any]:
    def method(self: LateValue, *args: Any) -> Any:
        return getattr(self.__index__(), name)(*args)

    return method


_OPERATIONS = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "divmod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
)
_OTHERS = (
    "neg", "pos", "abs", "invert", "float", "complex", "str", "repr", "format", "reduce", "reduce_ex", "copy", "deepcopy",
    *_OPERATIONS, *(f"r{name}" for name in _OPERATIONS),
)  # fmt: skip
for _name in _OTHERS:
    # special methods are looked up on the type, so `__getattr__` does not see them
    setattr(LateValue, f"__{_name}__", _of_the_integer(f"__{_name}__"))


@contextmanager
def compared_late() -> Iterator[None]:
    """Have `item` of a traced tensor give a `LateValue` where the value is not known before the step."""
    item = FunctionalTensor.item
    refusals: list[LateNumber] = []

    def item_or_late(tensor: torch.Tensor) -> Any:
        try:
            return item(tensor)
        except LateNumber as refused:
            refusals.append(refused)
            return LateValue(tensor, refused)

    FunctionalTensor.item = item_or_late  # type: ignore[method-assign, assignment]
    try:
        yield
    except TypeError as error:
        if LateValue.__name__ in str(error):  # it was given to an operation, which takes numbers alone
            raise refusals[-1] from error
        raise
    finally:
        del FunctionalTensor.item
