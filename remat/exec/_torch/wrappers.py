"""Tensors that stand for others, and running below autograd: torch's private names that wrapper tensors need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes as no_modes
from torch.utils.flop_counter import flop_registry

T = TypeVar("T", bound=torch.Tensor)

PLAIN_FUNCTIONS: Any = torch._C._disabled_torch_function_impl
"""`__torch_function__` of a class whose functions are those of plain tensors."""


def like(kind: type[T], tensor: torch.Tensor) -> T:
    """A tensor of another class without memory, which looks as `tensor` does, conjugate and negative bits included."""
    result: T = torch.Tensor._make_wrapper_subclass(
        kind,
        tensor.shape,
        strides=tensor.stride(),
        storage_offset=tensor.storage_offset(),
        dtype=tensor.dtype,
        layout=tensor.layout,
        device=tensor.device,
        requires_grad=False,
    )
    return with_bits(result, *bits_of(tensor))


def bits_of(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Whether what a tensor stands for is the conjugate of its memory, and the negative."""
    return tensor.is_conj(), tensor.is_neg()


def with_bits(tensor: T, conj: bool, neg: bool) -> T:
    """The tensor, with these bits set."""
    if conj:
        torch._C._set_conj(tensor, True)
    if neg:
        torch._C._set_neg(tensor, True)
    return tensor


def reading_bits() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Inside of both, operations heed the conjugate and negative bits of plain tensors, which torch ignores otherwise.

    The keys that resolve these bits come before Python's, and torch excludes all those while `__torch_dispatch__` handles an
    operation. The contexts are torch's: Ctrl-C does not come between entering one and leaving it.
    """
    return _excluding(_CONJUGATE, False), _excluding(_NEGATIVE, False)


_excluding: Any = torch._C._SetExcludeDispatchKeyGuard
_CONJUGATE, _NEGATIVE = torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative


def outside_modes() -> AbstractContextManager[Any]:
    """A context in which no dispatch mode sees what runs; where there is none, it costs nothing."""
    return no_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def modes_on() -> int:
    """How many dispatch modes see what runs."""
    return int(torch._C._len_torch_dispatch_stack())


def saving_with() -> Any:
    """What autograd calls now with each tensor that it saves; None: nothing."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else hooks[0]


def below_autograd() -> Any:
    """A context in which operations are not recorded by autograd."""
    return torch._C._AutoDispatchBelowAutograd()


@contextmanager
def itself() -> Iterator[None]:
    """Inside, an operation runs on a wrapper tensor itself, which it may give another form: nothing in Python sees it."""
    with outside_modes(), torch._C._DisableTorchDispatch():
        yield


# -- assignments to `.data` ----------------------------------------------------------------------------------------------

Replaced = Callable[[torch.Tensor, Any], Any]
_REPLACED: list[Replaced] = []
_ASSIGNING = threading.Lock()
_DATA: Any = torch.Tensor.data


@contextmanager
def assigning_data(replaced: Replaced) -> Iterator[None]:
    """Inside, in all threads, `tensor.data = value` gives a tensor the memory of what `replaced(tensor, value)` returns.

    Torch tells no mode of it, and would leave a plain tensor that is given a wrapper tensor without memory.
    """
    with _ASSIGNING:
        _REPLACED.append(replaced)
        torch.Tensor.data = property(_DATA.__get__, _assigned)  # type: ignore[assignment]
    try:
        yield
    finally:
        with _ASSIGNING:
            _REPLACED.remove(replaced)
            if not _REPLACED:
                del torch.Tensor.data


def _assigned(tensor: torch.Tensor, value: Any) -> None:
    for replaced in list(_REPLACED):
        value = replaced(tensor, value)
    _DATA.__set__(tensor, value)


def fake_mode() -> FakeTensorMode:
    """A mode in which operations compute shapes alone; it adds nothing to the cache that all fake modes of a process share."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.cache_enabled = False
    return mode


def arithmetic(func: Any) -> Callable[..., Any] | None:
    """The formula for the multiplications and additions of an operation, or None."""
    return flop_registry.get(func.overloadpacket)


def storage_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor over a copy of its whole storage."""
    storage = tensor.untyped_storage()
    copied = torch.empty(storage.nbytes(), dtype=torch.uint8, device=tensor.device)
    copied.copy_(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))
    return over(copied, view_form(tensor))


class ViewForm(NamedTuple):
    """How a tensor looks at its storage; `conj`, `neg`: its conjugate and negative bits."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conj: bool
    neg: bool


def view_form(tensor: torch.Tensor) -> ViewForm:
    """How a tensor looks at its storage."""
    offset = int(tensor.storage_offset())
    return ViewForm(tensor.shape, tensor.stride(), offset, tensor.dtype, *bits_of(tensor))


def over(base: torch.Tensor, form: ViewForm) -> torch.Tensor:
    """The storage of `base` looked at in another way."""
    view = torch.empty(0, dtype=form.dtype, device=base.device)
    view.set_(base.untyped_storage(), form.offset, form.shape, form.stride)
    return with_bits(view, form.conj, form.neg)


__all__ = [
    "PLAIN_FUNCTIONS",
    "ViewForm",
    "arithmetic",
    "assigning_data",
    "below_autograd",
    "bits_of",
    "fake_mode",
    "itself",
    "like",
    "modes_on",
    "outside_modes",
    "over",
    "reading_bits",
    "saving_with",
    "storage_copy",
    "view_form",
    "with_bits",
]
