"""Numbers that Python reads of tensors whose values differ in every step: they may be compared, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from remat.errors import Uncapturable


class LateNumber(Uncapturable):
    """Python reads a number that depends on trained parameters or on random numbers."""


class LateValue:
    """What `tensor.item()` gives of such a tensor: each comparison is made on the tensor and becomes a guard.

    Args:
        tensor: holds one number.
        refused: what is raised where the number itself is used.
    """

    __slots__ = ("_refused", "_tensor")

    def __init__(self, tensor: torch.Tensor, refused: LateNumber) -> None:
        self._tensor = tensor.detach()
        self._refused = refused

    def _compared(self, other: Any, compare: Callable[[torch.Tensor, Any], torch.Tensor]) -> bool:
        tensor = self._tensor
        if isinstance(other, float) and tensor.is_floating_point():
            # Python compares in double precision, torch in the type of the tensor.
            tensor = tensor.double()
        elif not isinstance(other, int) or tensor.is_complex():
            raise self._refused
        return bool(compare(tensor.double() if tensor.is_floating_point() else tensor, other))

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

    def _used(self, *_: Any) -> NoReturn:
        raise self._refused

    __hash__ = _used
    __float__ = __int__ = __index__ = __complex__ = __trunc__ = __floor__ = __ceil__ = __round__ = _used
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _used
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = __pow__ = __rpow__ = _used
    __neg__ = __pos__ = __abs__ = __invert__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _used
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _used
    __str__ = __repr__ = __format__ = __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = _used

    def __getattr__(self, name: str) -> NoReturn:
        raise self._refused


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
