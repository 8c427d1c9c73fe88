"""Measuring what each operation costs: once per signature, on tensors made for it, one operation at a time.

Inputs have the shapes, strides and types of the trace; integers that index something are drawn over all they may index, so
that look-ups touch memory as real ones do. Time is the median of a few calls; workspace is what the allocator gives during a
call beyond the outputs. The module, its buffers and gradients are not touched, and the generators are restored.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import torch
from attrs import frozen

from remat.errors import Uncapturable
from remat.exec._cost.cost import OpCost
from remat.exec._program.inputs import made_inputs, make
from remat.exec._program.kernels import no_autocast
from remat.exec._program.program import Op, Program, Role, Spec, charged
from remat.exec._program.refusals import refusing
from remat.exec._program.signatures import signature
from remat.exec._torch import recording, rng, torch_private
from remat.exec._torch.aside import unprofiled
from remat.units import Bytes, Ns

PATIENCE_NS = 10_000_000
"""Time spent on repeating one signature [ns]; at least `FEWEST` and at most `MOST` calls."""
FEWEST, MOST = 3, 15


def measure(program: Program, cache: dict[str, OpCost] | None = None) -> Mapping[str, OpCost]:
    """Costs of every node of a step, by name.

    Args:
        program: the captured step; it must be for a device of this machine.
        cache: costs by signature from earlier calls; what is measured is added, and what is used comes last.

    Raises:
        Uncapturable: X-MEASURE, when an operation does not run on inputs made for it.
    """
    costs = {} if cache is None else cache
    signatures = {op.name: signature(program, op) for op in program.nodes if op.role is not Role.LOSS}
    first: dict[str, Op] = {}
    for name, text in signatures.items():
        if text not in costs:
            first.setdefault(text, program.op_by_name[name])

    def run() -> dict[str, _Trial]:
        with rng.kept(), torch.no_grad(), no_autocast(program.device):
            return {text: _tried(program, op) for text, op in first.items()}

    with refusing("measuring"):
        trials = unprofiled(run)
    for text, op in first.items():
        trial = trials[text]
        outputs = sum(filter(None, trial.sizes))
        state = rng.state_bytes(program.device) if op.draws and op.role is not Role.RNG else 0
        costs[text] = OpCost(time=trial.time, workspace=max(0, trial.peak - outputs) + state, outputs=trial.sizes)
    for text in dict.fromkeys(signatures.values()):
        costs[text] = costs.pop(text)
    return {name: costs[text] for name, text in signatures.items()}


@frozen
class _Trial:
    """What calls of one operation took.

    Attributes:
        time: the median [ns]. sizes: bytes of each output's storage. peak: most bytes held during a call, outputs included.
    """

    time: Ns
    sizes: tuple[Bytes | None, ...] = ()
    peak: Bytes = 0


def _tried(program: Program, op: Op) -> _Trial:
    """Calls on the same inputs: one to warm up that says how large the outputs are, some that are timed, one that is recorded."""
    if op.role is Role.RNG:
        return _Trial(_median(lambda: rng.save(program.device), program.device))
    call = prepared(program, op)
    try:
        sizes = _sizes(program, op, call())
    except (RuntimeError, IndexError, ValueError) as error:
        what = f"{op.target}{_where(op)} does not run on made inputs: {error}"
        raise Uncapturable("X-MEASURE", what, fix='give cost="estimate", and report the operation.') from error
    time_ns = _median(call, program.device)
    return _Trial(time_ns, sizes, _cuda_peak(program, call) if program.device.type == "cuda" else _cpu_peak(call))


def _where(op: Op) -> str:
    return f" in {op.scope}" if op.scope else ""


def _sizes(program: Program, op: Op, result: Any) -> tuple[Bytes | None, ...]:
    """Bytes of each output's storage; refuses outputs laid out otherwise than the trace says."""
    if op.role is Role.UPDATE:
        return (0,)
    sizes: list[Bytes | None] = []
    for value, tensor in zip(op.outputs, result if op.unpack else [result], strict=True):
        if value is None:
            sizes.append(None)
            continue
        if tensor is None:
            sizes.append(0)  # a gradient that the arguments do not ask for
            continue
        traced, real = program.values[value].spec, Spec.of(tensor)
        if (traced.shape, traced.dtype) != (real.shape, real.dtype):
            what = f"{op.target}{_where(op)} returned {real} where the trace says {traced}."
            raise Uncapturable("X-MEASURE", what, fix="leave this module bare, and report the operation.")
        sizes.append(charged(tensor.untyped_storage().nbytes(), tensor.device))
    return tuple(sizes)


def _median(call: Any, device: torch.device) -> Ns:
    clock = _clock(device)
    spent = 0
    times: list[Ns] = []
    while len(times) < FEWEST or (spent < PATIENCE_NS and len(times) < MOST):
        _wait(device)
        start = clock()
        out = call()
        _wait(device)
        times.append(clock() - start)
        spent += times[-1]
        del out
    return max(1, int(statistics.median(times)))


def _clock(device: torch.device) -> Callable[[], Ns]:
    """CPU time of this thread where it is the only one that computes, so that other work on the machine counts little."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time_ns if alone else time.perf_counter_ns


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def prepared(program: Program, op: Op) -> Callable[[], Any]:
    """One call of an operation, with what is added to its outputs, on inputs made for it."""
    target: Any = torch_private.entry(op.target) if isinstance(op.target, torch_private.OpOverload) else op.target
    generator = torch.Generator(program.device).manual_seed(0)
    args, kwargs = made_inputs(program, op, generator)
    if not op.adds:
        return lambda: target(*args, **kwargs)
    add = torch_private.entry(torch.ops.aten.add.out)
    adds = [
        (program.position(op, into), program.values[into].spec, make(program.values[other].spec, 1, generator))
        for into, *pair in op.adds
        for other in pair
        if other != into
    ]

    def call() -> Any:
        result = target(*args, **kwargs)
        for position, spec, other in adds:
            output = result[position] if op.unpack else result
            into = output.as_strided(spec.shape, spec.stride)
            add(other, into, out=into)
        return result

    return call


def _cpu_peak(call: Callable[[], Any]) -> Bytes:
    """Most bytes held during a call, outputs included."""
    events: list[recording.Event] = []
    with recording.recorded(events):
        out = call()
    del out
    return max((0, *accumulate(event.size for event in events)))


def _cuda_peak(program: Program, call: Callable[[], Any]) -> Bytes:
    """The same on CUDA, by the allocator's statistics."""
    torch.cuda.synchronize(program.device)
    torch.cuda.reset_peak_memory_stats(program.device)
    before = torch.cuda.memory_allocated(program.device)
    out = call()
    torch.cuda.synchronize(program.device)
    peak = torch.cuda.max_memory_allocated(program.device) - before
    del out
    return peak
