"""What a call needs before it runs: bytes of its results by a shape pass, workspace measured once for each signature, cost.

The workspace of a signature that was never seen is measured at its first run, for which room is made by a generous estimate:
where there is less room than that, all that can be evicted is evicted first. Costs come from a fixed model of shapes, so that
runs repeat.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from attrs import define, field

from remat.algorithms._core.interruption import Uninterrupted
from remat.algorithms._dtr.values import Out
from remat.exec._dtr.operators import Facts, Slot, check_strided, fill, split
from remat.exec._torch import recording
from remat.exec._torch.cuda_memory import charged, rounded, used_by
from remat.exec._torch.quiet import without_tracebacks
from remat.exec._torch.torch_private import OpOverload, no_modes, shapes_depend_on_values, storage_key
from remat.exec._torch.wrappers import arithmetic, fake_mode
from remat.units import Bytes, Ns

NO_SHAPES = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
"""What a shape pass raises where it cannot say what comes out: an operation without a shape function (NotImplementedError and
the exceptions of fake tensors are RuntimeErrors), a result whose shape follows from values, a call that is wrong (the run itself
then says why). Anything else is a fault of this library or of a custom operation, and escapes."""
NO_FORMULA = (TypeError, ValueError, IndexError, AssertionError, NotImplementedError)
"""What a formula for multiplications raises for arguments of another form than those it was written for."""

_log = logging.getLogger(__name__)

LAUNCH: Ns = 2000
"""Cost of a call by the model, whatever it computes."""
BYTES_PER_NS, FLOPS_PER_NS = 8, 20
"""The model of costs: a core reads and writes 8 GB/s, and computes 20 Gflop/s."""

SCALARS: Bytes = 64
"""What an operation element by element may take for its numbers."""

MOST_SIGNATURES = 10_000
"""Signatures whose needs are kept: some ten megabytes. A step of varying shapes has some hundreds to thousands."""


@define
class Needs:
    """What a call of one signature needs.

    Attributes:
        outs: its results. cost: by the model [ns]. work: bytes beyond the results, as far as that was measured.
        estimate: bytes beyond the results, where that was not measured. fixed: whether the sizes follow from the shapes.
    """

    outs: list[Out]
    cost: Ns
    work: Bytes = 0
    estimate: Bytes = 0
    measured: bool = False
    fixed: bool = True

    @property
    def size(self) -> Bytes:
        """Bytes of the results."""
        return sum(out.size for out in self.outs)


@define(eq=False)
class NeedsTable:
    """Needs by signature.

    Attributes:
        device: whose memory counts.
        most: signatures that are kept; the least recently used is forgotten, and measured again when it comes back.
        table: the needs, the most recently used last.
    """

    device: torch.device
    most: int = MOST_SIGNATURES
    table: dict[Any, Needs] = field(factory=dict)
    _mode: Any = None

    def of(self, func: OpOverload, facts: Facts, form: tuple[Any, Any], tensors: Sequence[torch.Tensor]) -> Needs:
        """The needs of a call.

        Args:
            func: the operator.
            facts: what is known of it.
            form: its arguments and keywords, with slots for tensors.
            tensors: in the order of the slots; only their shapes are read.
        """
        key = (func, _frozen(form, tensors))
        needs = self.table.pop(key, None)
        if needs is None:
            needs = self._learned(func, facts, form, tensors)
            if len(self.table) >= self.most:
                del self.table[next(iter(self.table))]
        self.table[key] = needs
        return needs

    def _learned(self, func: OpOverload, facts: Facts, form: tuple[Any, Any], tensors: Sequence[torch.Tensor]) -> Needs:
        read = sum(map(weight, tensors))
        results = None if shapes_depend_on_values(func, fill(form[0], tensors)) else self._shapes(func, form, tensors)
        if results is None:
            bound = 0 if facts.writes else self._bound(func, tensors, read)
            return Needs(
                [Out(bound)] if bound else [],
                LAUNCH + (read + bound) // BYTES_PER_NS,
                estimate=read + bound,
                fixed=False,
            )
        check_strided(func, results[1])
        keys = [storage_key(tensor) for tensor in results[0]]
        outs: list[Out] = []
        for place, result in enumerate(results[1]):
            key = storage_key(result)
            earlier = next((at for at in range(place) if storage_key(results[1][at]) == key), -1)
            alias = keys.index(key) if key in keys else -1
            outs.append(Out(0 if alias >= 0 or earlier >= 0 else self.rounded(bytes_of(result)), alias, earlier))
        written = sum(out.size for out in outs)
        computed = _flops(func, form, results)
        cost = LAUNCH + max((read + written) // BYTES_PER_NS, computed // FLOPS_PER_NS)
        if facts.pointwise and len({tensor.dtype for tensor in (*tensors, *results[1]) if tensor.dim()}) <= 1:
            return Needs(outs, cost, estimate=SCALARS)
        return Needs(outs, cost, estimate=2 * (read + written) + _columns(func, form, tensors))

    def _shapes(
        self, func: OpOverload, form: tuple[Any, Any], tensors: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
        """Arguments and results without memory; None where shapes do not say what comes out."""
        if self._mode is None:
            self._mode = fake_mode()
        try:
            with Uninterrupted(), no_modes(), torch.no_grad(), without_tracebacks(), self._mode:
                args = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]
                out = func(*fill(form[0], args), **fill(form[1], args))
        except NO_SHAPES as error:
            _log.debug("no shapes of %s before it runs: %s", func, error)
            return None
        results: list[torch.Tensor] = []
        split(out, results)
        return args, results

    def _bound(self, func: OpOverload, tensors: Sequence[torch.Tensor], read: Bytes) -> Bytes:
        """Bytes that results may take whose shapes follow from values."""
        name = func._schema.name
        largest = max(tensors, key=lambda tensor: tensor.numel(), default=None)
        if largest is None:
            return 64
        if name == "aten::nonzero":
            return 8 * largest.numel() * max(1, largest.dim())
        if name in ("aten::index", "aten::masked_select"):
            return weight(tensors[0]) + 64
        return 4 * read + 64

    def rounded(self, size: Bytes) -> Bytes:
        """Bytes that the device's allocator gives for so many."""
        return charged(size, self.device)

    def measured(self, needs: Needs, run: Callable[[], Any]) -> Any:
        """Run a call and, where it can be seen, learn what it takes beyond its results."""
        if needs.measured:
            return run()
        if self.device.type == "cuda":
            return self._measured_cuda(needs, run)
        if recording.profiling():
            return run()
        events: list[recording.Event] = []
        with Uninterrupted(), recording.recorded(events):
            out = run()
        self._note(needs, max((0, *accumulate(event.size for event in events))), out)
        return out

    def _measured_cuda(self, needs: Needs, run: Callable[[], Any]) -> Any:
        out, use = used_by(run, self.device)
        self._note(needs, rounded(use.asked_peak), out)
        return out

    def _note(self, needs: Needs, peak: Bytes, out: Any) -> None:
        results: list[torch.Tensor] = []
        split(out, results)
        size = sum(
            self.rounded(size) for size in {storage_key(result): bytes_of(result) for result in results}.values()
        )
        work = max(0, peak - (needs.size if needs.fixed else size))
        needs.work = max(needs.work, work)
        needs.measured, needs.estimate = needs.fixed, 0 if needs.fixed else needs.estimate


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """Bytes of a tensor's storage."""
    return int(tensor.untyped_storage().nbytes())


def weight(tensor: torch.Tensor) -> Bytes:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def _frozen(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A part of a call's arguments as a key: what of it decides shapes, results' places and kernels."""
    kind = type(value)
    if kind is Slot:
        tensor = tensors[value.at]
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_conj() or tensor.is_neg()
    if kind in (list, tuple):
        return tuple(_frozen(item, tensors) for item in value)
    if kind is dict:
        return tuple((name, _frozen(item, tensors)) for name, item in value.items())
    if kind in (bool, int, float):
        return kind, value
    return value if isinstance(value, (str, torch.dtype, torch.device, torch.Size, type(None))) else str(value)


def _flops(func: OpOverload, form: tuple[Any, Any], results: tuple[list[torch.Tensor], list[torch.Tensor]]) -> int:
    formula = arithmetic(func)
    if formula is None:
        return sum(tensor.numel() for tensor in results[1])
    try:
        args, kwargs = fill(form[0], results[0]), fill(form[1], results[0])
        out = results[1][0] if len(results[1]) == 1 else tuple(results[1])
        return int(formula(*args, **kwargs, out_val=out))
    except NO_FORMULA as error:
        _log.debug("no formula for this call of %s, so that its bytes count: %s", func, error)
        return 0


def _columns(func: OpOverload, form: tuple[Any, Any], tensors: Sequence[torch.Tensor]) -> Bytes:
    """What a convolution may take for its columns."""
    if "convolution" not in func._schema.name or len(tensors) < 2:
        return 0
    kernel = next((tensor for tensor in tensors[1:] if tensor.dim() >= 3), tensors[1])
    return weight(tensors[0]) * max(1, math.prod(kernel.shape[2:])) if kernel.numel() else 0


__all__ = ["Needs", "NeedsTable", "bytes_of", "weight"]
