"""Settings of the process that a forward is traced under, and modes and transforms that it may be called under."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.modules import module as modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from remat.exec._torch.parametrized import keeps_parametrizations

_SETTINGS = (
    torch.get_default_dtype,
    torch.are_deterministic_algorithms_enabled,
    torch._C._get_flash_sdp_enabled,
    torch._C._get_mem_efficient_sdp_enabled,
    torch._C._get_math_sdp_enabled,
    torch._C._get_cudnn_sdp_enabled,
    torch._C._get_cudnn_enabled,
    torch._C._get_mkldnn_enabled,
    keeps_parametrizations,
)
"""They choose types, or kernels while a step is traced; what kernels ask as they run need not be here."""


_HOOKS: tuple[dict[int, Callable[..., Any]], ...] = (
    modules._global_forward_pre_hooks,
    modules._global_forward_hooks,
    modules._global_backward_pre_hooks,
    modules._global_backward_hooks,
)


def settings() -> tuple[Any, ...]:
    """Settings of the process that a traced step depends on."""
    return (*[setting() for setting in _SETTINGS], *_function_modes(), *hooks_of_all_modules())


def _function_modes() -> list[str | type]:
    """What has a say in every function of torch that the thread calls: a default device by its name, others by their kind."""
    if not torch._C._len_torch_function_stack():
        return []
    modes = _get_current_function_mode_stack()
    return [str(mode.device) if isinstance(mode, DeviceContext) else type(mode) for mode in modes]


def hooks_of_all_modules() -> dict[int, Callable[..., Any]]:
    """Hooks that run in calls of every module (`register_module_forward_hook`), by their numbers, which are never given again.

    Those of torch count calls and name modules (`FlopCounterMode`): a step does not depend on them.
    """
    hooks = {number: hook for table in _HOOKS for number, hook in table.items()}
    return {
        number: hook for number, hook in hooks.items() if not str(getattr(hook, "__module__", "")).startswith("torch.")
    }


def mode_around() -> str:
    """The kind of a mode around a call that may change functions of torch as they are called; empty: there is none."""
    return next((kind.__name__ for kind in _function_modes() if isinstance(kind, type)), "")


def transform_around(tensors: Iterable[torch.Tensor]) -> str:
    """What differentiates or batches a call from outside, other than autograd; empty: nothing does.

    Args:
        tensors: parameters and inputs of the call.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func (grad, vmap, jvp, …)"
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        return "forward-mode differentiation"
    return ""


FORWARD_FIX = "use torch.autograd.grad(…, create_graph=True) there, or call it outside of the module."
"""What to do about forward-mode derivatives in a forward."""


def forward_level() -> int:
    """How many levels of forward-mode differentiation are open, less one."""
    return int(forward_ad._current_level)


def is_batched(gradient: torch.Tensor) -> bool:
    """Whether a gradient stands for many that are computed at once (`is_grads_batched`, a backward within `torch.vmap`)."""
    asked = torch._C._functorch
    return bool(asked.is_legacy_batchedtensor(gradient) or asked.is_batchedtensor(gradient))


def is_recorded() -> bool:
    """Whether `torch.jit.trace` or `torch.export` records what is called: neither survives what a planned step is made of."""
    return torch._C._get_tracing_state() is not None or torch.compiler.is_exporting()


def in_cuda_graph() -> bool:
    """Whether a CUDA graph records the current stream: the host may not wait for the device."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
