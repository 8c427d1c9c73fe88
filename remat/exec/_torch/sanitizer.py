"""Torch's detector of races between streams, which needs no device: streams, events and pointers are numbers to it.

To import torch's module is to have every event and allocation of the process on a CUDA device call into Python, with or without
a sanitizer in use; so the detector comes from an import under which that is left out, and a later one does what it always does.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch
import torch.cuda._gpu_trace as gpu_trace
from torch._utils import CallbackRegistry

_MODULE = "torch.cuda._sanitizer"


def _without_tracing() -> ModuleType:
    if _MODULE in sys.modules:  # the program watches its streams (TORCH_CUDA_SANITIZER=1)
        return sys.modules[_MODULE]
    registries = [value for value in vars(gpu_trace).values() if isinstance(value, CallbackRegistry)]
    before = [list(registry.callback_list) for registry in registries]
    native: Any = torch._C
    activate = native._activate_gpu_trace
    native._activate_gpu_trace = lambda: None
    try:
        return importlib.import_module(_MODULE)
    finally:
        native._activate_gpu_trace = activate
        for registry, callbacks in zip(registries, before, strict=True):
            registry.callback_list[:] = callbacks
        sys.modules.pop(_MODULE, None)
        vars(torch.cuda).pop("_sanitizer", None)


_sanitizer: Any = _without_tracing()
EventHandler: Any = _sanitizer.EventHandler
UnsynchronizedAccessError: Any = _sanitizer.UnsynchronizedAccessError

__all__ = ["EventHandler", "UnsynchronizedAccessError"]
