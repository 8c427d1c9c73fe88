"""Bytes of tensors without memory: what would live, and the most that would live, while code runs on the meta device."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from remat.exec._torch import torch_private
from remat.units import Bytes


class LiveBytes(torch_private.DispatchMode):
    """Inside, counts the storages that operations make, as an allocator would.

    A value that Python asks of a tensor without memory is taken as 1, and counted.

    Attributes:
        live: bytes of the storages that were made inside and are still there.
        peak: the most of these since `peak` was last set.
        guesses: how many values were taken as 1.
    """

    def __init__(self, charge: Callable[[torch.UntypedStorage], Bytes]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.charge = charge
        self.live: Bytes = 0
        self.peak: Bytes = 0
        self.guesses = 0
        self._storages: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            self.guesses += 1
            return torch.ones((), dtype=args[0].dtype, device="cpu").item()
        result = func(*args, **(kwargs or {}))
        before = {torch_private.storage_key(leaf) for leaf in _tensors((args, kwargs or {}))}
        for tensor in _tensors(result):
            if torch_private.storage_key(tensor) not in before:
                self.count(tensor.untyped_storage())
        return result

    def count(self, storage: torch.UntypedStorage) -> None:
        """Count a storage, once: also one that came about unseen, as a number that became a tensor."""
        key = storage._cdata
        if key in self._storages:
            return
        size = self.charge(storage)

        def freed(_reference: Any) -> None:
            del self._storages[key]
            self.live -= size

        self._storages[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    leaves, _ = torch_private.flatten(tree)
    return (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


@contextlib.contextmanager
def meta_like_accelerator() -> Iterator[None]:
    """Inside, optimizers choose for tensors on the meta device what they choose on an accelerator (many tensors at a time)."""
    module: Any = importlib.import_module(torch.optim.Optimizer.__module__)
    devices = module._get_foreach_kernels_supported_devices
    module._get_foreach_kernels_supported_devices = lambda: [*devices(), "meta"]
    try:
        yield
    finally:
        module._get_foreach_kernels_supported_devices = devices
