"""The tensor that a module sees while it runs under DTR: shape and type, a place in the autograd graph, and no memory of its own.

Operations on it come below autograd to the runtime. What reads its values outside of operations (print, numpy, pickle) gets
those of a plain tensor, computed again if need be.
"""

from __future__ import annotations

from typing import Any

import torch

from remat.algorithms._dtr.values import Handle, Value
from remat.exec._torch.wrappers import PLAIN_FUNCTIONS, like, outside_modes


class RematTensor(torch.Tensor):
    """A tensor whose memory may be evicted; it behaves as a plain one.

    Attributes:
        _handle: its value. _runtime: whose it is. _uses: how many operations were given this very tensor.
        _pieces: of a gradient, the contributions whose sum it is, where torch would add them one by one to what is there.
    """

    _handle: Handle
    _runtime: Any
    _uses: list[int]
    _pieces: tuple[torch.Tensor, ...] = ()

    __torch_function__ = PLAIN_FUNCTIONS

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own is no class method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Hand an operation to the runtime of the first such tensor among its arguments."""
        return runtime_of(args, kwargs or {}).dispatch(func, args, kwargs or {})

    def plain(self) -> torch.Tensor:
        """A plain tensor with its values, outside the autograd graph; its memory is not evicted any more."""
        result: torch.Tensor = self._runtime.hand_out(self._handle.value)
        return result

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]  # torch leaves its own untyped
        """As of a plain tensor."""
        with outside_modes():
            return repr(self.plain())

    def __format__(self, format_spec: str) -> str:
        """As of a plain tensor."""
        with outside_modes():
            return format(self.plain(), format_spec)

    def numpy(self, *, force: bool = False) -> Any:
        """As of a plain tensor."""
        with outside_modes():
            return _as_asked(self, force=force).numpy(force=force)

    def __array__(self, dtype: Any = None) -> Any:
        """As of a plain tensor."""
        with outside_modes():
            return _as_asked(self).__array__(dtype)

    def tolist(self) -> Any:
        """As of a plain tensor."""
        with outside_modes():
            return self.plain().tolist()

    def data_ptr(self) -> int:
        """Where its values are, from now on."""
        with outside_modes():
            return self.plain().data_ptr()

    def untyped_storage(self) -> Any:
        """The memory of its values, from now on."""
        with outside_modes():
            return self.plain().untyped_storage()

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """As of a plain tensor."""
        with outside_modes():
            return _as_asked(self).__dlpack__(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A plain tensor is what is pickled."""
        with outside_modes():
            return self.plain().requires_grad_(self.requires_grad).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """A copy as a plain tensor; of one inside the graph none, as of a plain tensor."""
        if self.grad_fn is not None:
            what = "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
            raise RuntimeError(what)
        with outside_modes():
            copied = self.plain().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied


def _as_asked(tensor: RematTensor, *, force: bool = False) -> torch.Tensor:
    """The plain tensor; where the wrapper requires a gradient, one that does: torch says then what is wrong with the request."""
    return tensor.plain().requires_grad_(tensor.requires_grad and not force)


def wrapper_of(value: Value, runtime: Any) -> RematTensor:
    """A tensor that stands for a value."""
    tensor = like(RematTensor, value.payload)
    tensor._handle = Handle(value)
    tensor._runtime = runtime
    tensor._uses = [0]
    return tensor


def runtime_of(*trees: Any) -> Any:
    """The runtime of the first wrapper tensor."""
    for tree in trees:
        for item in tree.values() if isinstance(tree, dict) else tree:
            if isinstance(item, RematTensor):
                return item._runtime
            if isinstance(item, (list, tuple)):
                inner = runtime_of(item)
                if inner is not None:
                    return inner
    return None


__all__ = ["RematTensor", "runtime_of", "wrapper_of"]
