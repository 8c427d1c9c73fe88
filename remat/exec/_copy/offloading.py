"""Where a wrapped module's copies go: what `wrap(…, offload=, host_budget=)` says, and the device and pool made from it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from attrs import field, frozen

from remat.errors import BadArgument
from remat.exec._copy.bandwidth import link_speed
from remat.exec._copy.copies import Copier
from remat.exec._copy.cpu import CpuDevice
from remat.exec._copy.cuda import CudaDevice
from remat.exec._copy.device import CopyDevice
from remat.exec._copy.host_pool import HostPool
from remat.ir import Link
from remat.settings import Setting, optional, whole
from remat.units import Bytes

DISK = "disk"
WHERE = Setting('True, "disk" or a Link', lambda value: value is True or value == DISK or isinstance(value, Link))


@frozen
class Offloading:
    """Where copies go, how fast they are, and how many bytes they may take there.

    Attributes:
        where: True: to host memory, at the speed that is measured; "disk": to files (CPU); or the link to plan with. On
            the CPU, where memory stands in for the host, copies are slowed down to that link.
        host_budget: most bytes of host buffers, of all steps of a module and its deep copies together; None: no limit.
    """

    SETTINGS_RULE: ClassVar[str] = "X-ARG"

    where: bool | str | Link = field(validator=WHERE)
    host_budget: Bytes | None = field(default=None, validator=optional(whole(0, "bytes")))
    _pools: dict[torch.device, HostPool] = field(factory=dict, init=False, eq=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Offloading, (self.where, self.host_budget)

    def link(self, device: torch.device) -> Link:
        """The link to plan with; it is measured where none was given.

        Raises:
            BadArgument: X-ARG, where nothing can be copied from this device.
        """
        if isinstance(self.where, Link):
            return self.where
        return link_speed(self._pool(device).device, disk=self.where == DISK).link

    def copier(self, device: torch.device) -> Copier:
        """A new copier over the pool of this module; arguments and errors as for `link`."""
        pool = self._pool(device)
        return Copier(pool.device, pool)

    def _pool(self, device: torch.device) -> HostPool:
        if device not in self._pools:
            self._pools[device] = HostPool(self._device(device), self.host_budget)
        return self._pools[device]

    def _device(self, device: torch.device) -> CopyDevice:
        disk = self.where == DISK
        if device.type == "cpu":
            return CpuDevice(throttle=self.where if isinstance(self.where, Link) else None, disk=disk)
        if device.type == "cuda" and not disk:
            return CudaDevice(device)
        what = f"offload={self.where!r}: nothing is copied from {device.type} to {'disk' if disk else 'the host'}."
        fix = "give offload=True on CUDA, or wrap the module on the CPU." if disk else "leave offload out."
        raise BadArgument("X-ARG", what, fix=fix)


__all__ = ["DISK", "WHERE", "Offloading"]
