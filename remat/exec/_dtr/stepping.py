"""A forward under DTR: what comes in, what goes out, and what the module keeps."""

from __future__ import annotations

import collections
import contextlib
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from attrs import frozen
from torch import nn

from remat.errors import RematError, Uncapturable
from remat.exec._dtr.boundary import plain_output, region
from remat.exec._dtr.runtime import Runtime
from remat.exec._dtr.wrapper import RematTensor
from remat.exec._torch.devices import one_device
from remat.exec._trace import structure
from remat.exec._trace.containers import PLAIN
from remat.exec._trace.walk import is_user_object
from remat.units import Bytes, Ns, format_bytes


@frozen(kw_only=True)
class PartReport:
    """A part of a model under DTR that runs by a plan.

    Attributes:
        path: of the submodule. saved: most bytes that a plan of it keeps from a forward to its backward [bytes].
        forms: number of forms of its calls that have a plan.
        planned: number of calls that ran by a plan, in all steps.
        again: why calls ran again operation by operation for their backward, and how many. apart: likewise, why calls ran
            operation by operation.
    """

    path: str
    saved: Bytes
    forms: int
    planned: int
    again: tuple[tuple[str, int], ...] = ()
    apart: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        words = [f"{self.planned} calls by {self.forms} plan{'' if self.forms == 1 else 's'}"]
        words.append(f"{format_bytes(self.saved)} kept for the backward")
        words += [f"{count} operation by operation ({reason})" for reason, count in self.apart]
        words += [f"{count} again for the backward ({reason})" for reason, count in self.again]
        return ", ".join(words)


@frozen(kw_only=True)
class DtrReport:
    """What a step under DTR did; `str` gives a table.

    Attributes:
        budget: [bytes]. peak: most bytes the step held, by the runtime's count [bytes].
        operations: operations run for the first time. evictions: storages taken out of memory, those let go of included.
        rematerializations: operations run again. overhead: cost of a step by the model of costs, over its cost without them.
        runtime: time of the runtime itself for each operation [ns], without the kernels.
        reason: why the step runs under DTR; empty: it was asked for.
        parts: submodules that run by a plan of their own, as one operation each.
        rest: what of the model runs operation by operation, and why; empty: it is not divided.
        refused: why larger submodules are no parts, by path.
    """

    budget: Bytes
    peak: Bytes
    operations: int
    evictions: int
    rematerializations: int
    overhead: float
    runtime: Ns
    reason: str = ""
    parts: tuple[PartReport, ...] = ()
    rest: str = ""
    refused: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)

    def rows(self) -> list[tuple[str, str]]:
        """The table: name and value."""
        rows = [
            ("budget", format_bytes(self.budget)),
            ("peak", format_bytes(self.peak)),
            ("operations", str(self.operations)),
            ("evictions", str(self.evictions)),
            ("rematerializations", f"{self.rematerializations} ({self.overhead - 1:+.1%} by the model of costs)"),
            ("runtime", f"{self.runtime / 1000:.0f} us an operation"),
        ]
        rows += [("under DTR because", self.reason)] if self.reason else []
        rows += [(f"part {part.path}", str(part)) for part in self.parts]
        rows += [("operation by operation", self.rest)] if self.rest else []
        return rows + [(f"no part: {path}", reason) for path, reason in self.refused]


def report_of(runtime: Runtime, reason: str = "") -> DtrReport:
    """What the last step of a runtime did so far."""
    core = runtime.core
    return DtrReport(
        budget=runtime.budget,
        peak=core.peak,
        operations=core.calls,
        evictions=core.evictions,
        rematerializations=core.remats,
        overhead=(core.compute + core.remat_cost) / core.compute if core.compute else 1.0,
        runtime=(runtime.times.spent - runtime.times.kernels) // max(1, core.calls),
        reason=reason,
    )


def device_of(tensors: Iterable[torch.Tensor]) -> torch.device:
    """The device of a step.

    Raises:
        Uncapturable: X-DEVICE, where tensors lie on several, or have no memory.
    """
    device = one_device(tensors)
    if device.type == "meta":
        raise Uncapturable("X-DEVICE", "tensors lie on the meta device.", fix="give them memory.")
    return device


def run_forward(
    runtime: Runtime, forward: Callable[[], Any], module: nn.Module, arguments: Any, reserve: Bytes | None
) -> Any:
    """Run a forward under DTR.

    Args:
        runtime: its storages and budget.
        forward: a call without arguments.
        module: whose buffers and attributes are plain tensors afterwards.
        arguments: of the call; what the forward has put in their containers is plain afterwards too.
        reserve: bytes for a loss outside; None: twice the outputs that require a gradient.
    """
    if not runtime.in_forward:
        runtime.begin()
    plain: dict[int, torch.Tensor] = {}

    def plain_of(leaf: Any) -> Any:
        if not isinstance(leaf, RematTensor):
            return leaf
        if id(leaf) not in plain:
            plain[id(leaf)] = plain_output(leaf)
        return plain[id(leaf)]

    try:
        with region(runtime):
            out = forward()
    except BaseException:
        if not runtime.in_forward:
            with contextlib.suppress(RematError):  # the first error counts
                _clean(module, arguments, plain_of)
            runtime.end_forward()
        raise
    leaves, layout = structure.flatten(out, opaque=lambda value: isinstance(value, nn.Module))
    if not runtime.in_forward:
        _clean(module, arguments, plain_of)
        results = [plain_of(leaf) for leaf in leaves]
        _reserve(runtime, results, reserve)
        out = structure.unflatten(results, layout) if any(isinstance(leaf, RematTensor) for leaf in leaves) else out
        runtime.end_forward()
    return out


def _reserve(runtime: Runtime, results: list[Any], reserve: Bytes | None) -> None:
    """Set room apart for a loss outside and for the gradients of the outputs, until these arrive."""
    outputs = [leaf for leaf in results if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    needed = 2 * sum(tensor.numel() * tensor.element_size() for tensor in outputs) if reserve is None else reserve
    with runtime.working("what comes after the forward"):
        runtime.core.make_room(needed)
    runtime.core.reserve = needed


def _clean(module: nn.Module, arguments: Any, plain_of: Callable[[Any], Any]) -> None:
    """Buffers and attributes that the forward set, and what it put in the containers of its arguments, become plain tensors."""
    seen: set[int] = set()
    for inner in module.modules():
        attributes = object.__getattribute__(inner, "__dict__")
        for table in (attributes["_buffers"], attributes):
            for name, value in list(table.items()):
                cleaned = value if name in _TABLES else _cleaned(value, plain_of, seen)
                if cleaned is not value:
                    table[name] = cleaned
    _cleaned(arguments, plain_of, seen)


_TABLES = ("_parameters", "_buffers", "_modules")
_DEEPEST = 6  # levels of containers and objects that are looked through after each step
_MOST = 10_000  # items of one: a longer one is a data set


def _cleaned(value: Any, plain_of: Callable[[Any], Any], seen: set[int], depth: int = 0) -> Any:
    """A value whose wrapper tensors, also in containers and objects of the user's, are plain; the value itself if it has none."""
    if isinstance(value, RematTensor):
        return plain_of(value)
    if isinstance(value, (*PLAIN, torch.Tensor, nn.Module)) or id(value) in seen or depth > _DEEPEST:
        return value
    if not isinstance(value, tuple):
        seen.add(id(value))
    if isinstance(value, (list, collections.deque, dict)) and len(value) <= _MOST:
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            cleaned = _cleaned(item, plain_of, seen, depth + 1)
            if cleaned is not item:
                value[key] = cleaned
    elif isinstance(value, tuple):
        items = [_cleaned(item, plain_of, seen, depth + 1) for item in value]
        if any(map(operator.is_not, items, value)):
            return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if is_user_object(value) and hasattr(value, "__dict__"):
        _cleaned(vars(value), plain_of, seen, depth + 1)
    return value
