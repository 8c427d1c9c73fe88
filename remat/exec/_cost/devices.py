"""Cost models of devices by name: what each operation of a captured step would cost on a device that this machine does not have.

A model is a roofline: a call costs its launch, plus the longer of its arithmetic and its traffic. Workspaces follow three rules
of thumb (convolution, Fourier transform, backward of layer normalisation). Good for ranking plans and for models too large for
this machine; a plan that will run is better made from measured costs (`measuring.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar

from attrs import evolve, field, frozen

from remat.errors import BadArgument
from remat.exec._cost.cost import OpCost, flops
from remat.exec._program.program import Op, Program, Role, Spec, refs
from remat.settings import NAME, either, instance, optional, takes, whole
from remat.units import Bytes, GiB, MiB, Ns

LARGEST_CONVOLUTION_WORKSPACE: Bytes = 128 * MiB
"""Largest workspace of a convolution."""

_LOOK_UPS = {
    "aten.embedding.default": 0,
    "aten.index_select.default": 0,
    "aten.gather.default": 0,
    "aten.index.Tensor": 0,
    "aten.nll_loss_forward.default": 0,
    "aten.nll_loss2d_forward.default": 0,
}
"""Operations that read no more of one argument (its position) than they write."""

_ALSO_READ = {"aten.nll_loss_backward.default": 1, "aten.nll_loss2d_backward.default": 1}
"""Operations that use only the shape of one argument (its position)."""


@frozen(kw_only=True)
class Device:
    """A device as a roofline.

    Attributes:
        name: shown in messages.
        flops_per_second: multiplications and additions of products and convolutions [1/s].
        bytes_per_second: bytes read and written [1/s].
        launch: of every call that runs on the device [ns].
        granule: what its allocator hands out is a multiple of this [bytes].
        half_flops_per_second: the same of products in types of two bytes or less; None: as of all others [1/s].
        memory: what it has, as its driver reports it; None: not stated [bytes].
        source: where the figures are from.
    """

    SETTINGS_RULE: ClassVar[str] = "X-ARG"

    name: str = field(validator=NAME)
    flops_per_second: int = field(validator=whole(1, "flops/s"))
    bytes_per_second: int = field(validator=whole(1, "bytes/s"))
    launch: Ns = field(default=5000, validator=whole(0, "ns"))
    granule: Bytes = field(default=512, validator=whole(1, "bytes"))
    half_flops_per_second: int | None = field(default=None, validator=optional(whole(1, "flops/s")))
    memory: Bytes | None = field(default=None, validator=optional(whole(1, "bytes")))
    source: str = ""

    def costs(self, program: Program) -> Mapping[str, OpCost]:
        """Time and workspace of every node of a step but its loss, by name."""
        return {op.name: self.cost(program, op) for op in program.nodes if op.role is not Role.LOSS}

    def cost(self, program: Program, op: Op) -> OpCost:
        """Time and workspace of one operation.

        A generator's state lives on the host, so that saving one costs the device nothing.
        """
        if op.role in (Role.RNG, Role.LOSS):
            return OpCost()
        outputs = [program.values[name].spec for name in op.outputs if name is not None]
        moving = Fraction(moved(program, op) * 10**9, self.bytes_per_second)
        counting = Fraction(flops(program, op, outputs) * 10**9, self._rate(outputs))
        time = self.launch + int(max(moving, counting))
        for into, *_ in op.adds:
            added = 3 * _weight(program.values[into].spec)
            time += self.launch + added * 10**9 // self.bytes_per_second
        return OpCost(time=time, workspace=workspace(program, op))

    def _rate(self, outputs: list[Spec]) -> int:
        """Arithmetic in the type of the outputs [1/s]."""
        half = self.half_flops_per_second
        short = bool(outputs) and all(spec.dtype.is_floating_point and spec.dtype.itemsize <= 2 for spec in outputs)
        return half if short and half is not None else self.flops_per_second

    def resized(self, program: Program) -> Program:
        """The program with storages as the device's allocator would give them, and no state of a generator among them."""
        states = {program.values[op.name].storage for op in program.nodes if op.role is Role.RNG}
        storages = {
            name: evolve(storage, size=0 if name in states else -(-storage.size // self.granule) * self.granule)
            for name, storage in program.storages.items()
        }
        return evolve(program, storages=storages)


def _nvidia(name: str, rates: tuple[float, float, float], memory: float) -> Device:
    """An accelerator of NVIDIA: arithmetic in single and in half precision [Tflop/s], traffic [GB/s], memory [GiB]."""
    single, half, traffic = rates
    return Device(
        name=name,
        flops_per_second=round(single * 10**12),
        half_flops_per_second=round(half * 10**12),
        bytes_per_second=round(traffic * 10**9),
        memory=round(memory * 10) * GiB // 10,
        source=f"NVIDIA {name} data sheet, dense: {single:g} Tflop/s in float32, {half:g} in half, {traffic:g} GB/s",
    )


_VOLTA = Device(
    name="v100",
    flops_per_second=14 * 10**12,
    bytes_per_second=900 * 10**9,
    memory=157 * GiB // 10,
    source="NVIDIA V100 data sheet, single precision: 14 to 15.7 Tflop/s, 900 GB/s",
)

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _VOLTA,
        evolve(_VOLTA, name="v100-32gb", memory=317 * GiB // 10),
        _nvidia("t4", (8.1, 65, 320), 14.5),
        _nvidia("l4", (30.3, 121, 300), 21.9),
        _nvidia("rtx3090", (35.6, 71, 936), 23.6),
        _nvidia("rtx4090", (82.6, 165.2, 1008), 23.5),
        _nvidia("a100-40gb", (19.5, 312, 1555), 39.3),
        _nvidia("a100", (19.5, 312, 2039), 79.1),
        _nvidia("h100", (67, 989, 3350), 79.1),
        _nvidia("h200", (67, 989, 4800), 139.7),
    )
}
"""Devices by name; a `Device` that is added here can be given to `remat capture --device-model`.

Memory is what CUDA reports as the total capacity, cut to a tenth of a GiB: 2 to 5 % less than the card's name says.
"""


@takes(rule="X-DEVICE-MODEL", name=either(NAME, instance(Device, 'DEVICES["v100"]')))
def device_model(name: str | Device) -> Device:
    """The device of that name.

    Raises:
        BadArgument: X-DEVICE-MODEL, for an unknown name; the message lists the known ones.
    """
    if isinstance(name, Device):
        return name
    if name.lower() not in DEVICES:
        fix = f"give one of {', '.join(sorted(DEVICES))}, or a remat.exec.Device of your own."
        raise BadArgument("X-DEVICE-MODEL", f"there is no device model {name!r}.", fix=fix)
    return DEVICES[name.lower()]


def moved(program: Program, op: Op) -> Bytes:
    """Bytes that an operation reads and writes: each argument and each output once; broadcast ones at the size they have."""
    outputs = [program.values[name].spec for name in op.outputs if name is not None]
    written = sum(_weight(spec) for spec in outputs)
    name = str(op.target)
    unread = {at[name] for at in (_LOOK_UPS, _ALSO_READ) if name in at}
    arguments = [arg for at, arg in enumerate(op.args) if at not in unread]
    values = dict.fromkeys(ref.name for ref in refs((arguments, op.kwargs)))
    read = sum(_weight(program.values[value].spec) for value in values)
    if op.role is Role.UPDATE:
        # It writes its first argument and reads its second; its output is only a marker.
        return read
    return read + written + (written if name in _LOOK_UPS else 0)


def workspace(program: Program, op: Op) -> Bytes:
    """What an operation takes beyond its outputs.

    A convolution: half of its largest operand, at most 128 MiB. A Fourier transform: one output. The backward of layer
    normalisation: a sixteenth of its largest operand. All else: nothing.
    """
    name = str(op.target)
    specs = [
        program.values[value].spec for value in (*op.takes, *(output for output in op.outputs if output is not None))
    ]
    if name.startswith(("aten.convolution.", "aten.convolution_backward.")):
        return min(max(map(_weight, specs)) // 2, LARGEST_CONVOLUTION_WORKSPACE)
    if name.startswith("aten._fft_"):
        return max(_weight(program.values[output].spec) for output in op.outputs if output is not None)
    if name.startswith("aten.native_layer_norm_backward."):
        return max(map(_weight, specs)) // 16
    return 0


def _weight(spec: Spec) -> Bytes:
    """Bytes of a value; of one that is broadcast, the bytes that are stored."""
    return min(spec.numel * spec.dtype.itemsize, spec.extent)


__all__ = ["DEVICES", "LARGEST_CONVOLUTION_WORKSPACE", "Device", "device_model", "moved", "workspace"]
