"""Tensors that have only a form, and what the tracer runs in, for runs of a step that compute nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from attrs import frozen
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch.nn.utils import stateless

from remat.exec._torch.joint import Correction, corrections, eager_kernels, unseen_refused
from remat.exec._torch.logged import no_cast_kept
from remat.exec._torch.quiet import without_tracebacks
from remat.exec._torch.torch_private import ShapesOnly


class NoOutline(Exception):
    """A step that runs without data do not stand for; the message says why."""


@frozen
class Form:
    """Shape, strides, offset [elements], type and device of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Form:
        """Of any tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype, tensor.device)


class Outlined(torch.Tensor):
    """A tensor without memory."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, form: Form, requires_grad: bool = False) -> Outlined:
        return torch.Tensor._make_wrapper_subclass(
            cls, form.shape, strides=form.stride, storage_offset=form.offset, dtype=form.dtype, device=form.device,
            requires_grad=requires_grad,
        )  # fmt: skip

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Nothing runs on it outside of an outline."""
        raise NoOutline(f"{func} runs outside of the step")


class Fakes:
    """Makes fake tensors of a mode of their own."""

    def __init__(self) -> None:
        self.mode = ShapesOnly()

    def __call__(self, form: Form) -> torch.Tensor:
        with self.mode:
            return blank(form, form.device)

    def __enter__(self) -> None:
        self.mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.mode.__exit__(*error)


class Metas:
    """Makes tensors on the meta device, whose operations are dispatched without a way through Python."""

    def __enter__(self) -> None:
        self.without = torch._C._DisablePythonDispatcher()  # does nothing until it is entered
        self.without.__enter__()

    def __exit__(self, *error: object) -> None:
        self.without.__exit__(*error)

    def __call__(self, form: Form) -> torch.Tensor:
        return blank(form, META)


META = torch.device("meta")


def blank(form: Form, device: torch.device) -> torch.Tensor:
    """A tensor of that form; in a larger memory, where it does not begin at its beginning."""
    if not form.offset:
        return torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=device)
    reach = form.offset + 1 + sum((n - 1) * step for n, step in zip(form.shape, form.stride, strict=True) if n)
    return torch.empty(reach, dtype=form.dtype, device=device).as_strided(form.shape, form.stride, form.offset)


@contextmanager
def tracers_setting(correction: Correction | None) -> Iterator[None]:
    """What the tracer runs in, but for functionalization."""
    kernels = eager_kernels(fused_dropout=False)
    with (
        no_cast_kept(),
        enable_python_dispatcher(),
        kernels,
        unseen_refused(),
        corrections(correction),
        without_tracebacks(),
    ):
        yield


def with_tensors(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> AbstractContextManager[Any]:
    """A module with other parameters and buffers, by path, inside."""
    return stateless._reparametrize_module(module, dict(tensors))
