"""What Python asks of a parameter, a buffer or an argument besides its values, shape and type, while a stand-in is in its place.

Stand-ins are no leaves, have no gradients and begin their storage. Where the user's code asks, the real tensor answers if its
answer is the same in every call that a plan is for; else the step is refused. Code of torch sees the stand-ins as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from attrs import frozen
from torch._subclasses.functional_tensor import FunctionalTensor

from remat.errors import Uncapturable
from remat.exec._torch.places import is_user_file, user_place

_OF_AUTOGRAD = ("is_leaf", "grad_fn", "grad")
"""Properties that tell how autograd sees a tensor: they may change from call to call where it requires a gradient."""

_OF_MEMORY = ("storage_offset", "untyped_storage", "_is_view")
"""Methods that tell where a tensor lies, which no guard compares for arguments."""


@frozen
class StandIn:
    """What a tensor of the trace stands for.

    Attributes:
        words: for people.
        real: the tensor of the sample.
        stays: whether it is the module's own, the same in every call.
    """

    words: str
    real: torch.Tensor
    stays: bool

    def answer(self, name: str) -> Any:
        """A property of autograd, of the real tensor.

        Raises:
            Uncapturable: X-READ, it may be another in another call.
        """
        if self.real.requires_grad and (name == "grad" or not self.stays):
            raise self.refused(name)
        return getattr(self.real, name)

    def refused(self, name: str) -> Uncapturable:
        """A refusal of code that asks for what may be another in another call."""
        what = f"Python reads `{name}` of {self.words}, which may be another in each call."
        return Uncapturable(
            "X-READ", what, fix="read it outside, and pass what follows from it.", where=str(user_place(3))
        )


@contextmanager
def answering(stand_ins: Mapping[int, StandIn]) -> Iterator[None]:
    """Inside, the user's code is answered as by the real tensors.

    Args:
        stand_ins: by identity.
    """
    cls: Any = FunctionalTensor
    added = [name for name in (*_OF_AUTOGRAD, *_OF_MEMORY) if name not in vars(cls)]
    for name in added:
        setattr(cls, name, (_property if name in _OF_AUTOGRAD else _method)(name, stand_ins))
    try:
        yield
    finally:
        for name in added:
            delattr(cls, name)


def _property(name: str, stand_ins: Mapping[int, StandIn]) -> property:
    of_torch = getattr(torch.Tensor, name)

    def read(tensor: torch.Tensor) -> Any:
        about = stand_ins.get(id(tensor))
        if about is None or not is_user_file(sys._getframe(1).f_code.co_filename):
            return of_torch.__get__(tensor)
        return about.answer(name)

    return property(read, of_torch.__set__, of_torch.__delete__)


def _method(name: str, stand_ins: Mapping[int, StandIn]) -> Callable[..., Any]:
    of_torch = getattr(torch.Tensor, name)

    def call(tensor: torch.Tensor) -> Any:
        about = stand_ins.get(id(tensor))
        if about is None or about.stays or not is_user_file(sys._getframe(1).f_code.co_filename):
            return of_torch(tensor)
        raise about.refused(f"{name}()")

    return call


__all__ = ["StandIn", "answering"]
