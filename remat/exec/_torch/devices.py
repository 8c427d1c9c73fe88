"""Where tensors lie."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from remat.errors import Uncapturable

CPU = torch.device("cpu")


class _Placed(Protocol):
    @property
    def device(self) -> torch.device: ...


def one_device(tensors: Iterable[_Placed]) -> torch.device:
    """The device of tensors that is not the host, wherever parameters are (a loss has none); the host, where all lie there.

    Args:
        tensors: or what else has a device, as a `Spec`.

    Raises:
        Uncapturable: X-DEVICE, where there are several.
    """
    devices = {tensor.device for tensor in tensors if tensor.device.type != CPU.type}
    if len(devices) > 1:
        what = f"tensors lie on {', '.join(sorted(map(str, devices)))}."
        raise Uncapturable("X-DEVICE", what, fix="put the module on one device, or wrap what runs on each apart.")
    return next(iter(devices), CPU)
