"""Measuring what each operation costs: once per signature, on tensors made for it, one operation at a time.

Inputs have the shapes, strides and types of the trace; integers that index something are drawn over all they may index, so
that look-ups touch memory as real ones do. Time is the median of a few calls, and where there are several rounds the smallest
median; workspace is what the allocator gives during a call beyond the outputs. The module, its buffers and gradients are not
touched, and the generators are restored.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, TypedDict

import torch
from attrs import evolve, field, frozen

from remat._collector import collector_paused
from remat.errors import Uncapturable
from remat.exec._cost.cost import OpCost
from remat.exec._program.inputs import made_inputs, make
from remat.exec._program.kernels import no_autocast
from remat.exec._program.program import A_PROGRAM, Op, Program, Role, Spec
from remat.exec._program.refusals import refusing
from remat.exec._program.signatures import signature
from remat.exec._torch import recording, rng, torch_private
from remat.exec._torch.aside import unprofiled
from remat.exec._torch.cuda_memory import charged, rounded, used_by
from remat.exec._torch.cuda_timing import timed_row
from remat.ir.arguments import A_TABLE
from remat.settings import instance, optional, takes, whole
from remat.units import Bytes, Ns

PATIENCE_NS = 10_000_000
"""Time spent on repeating one signature in a round [ns]; at least `FEWEST` and at most `MOST` calls."""
FEWEST, MOST = 3, 15
ENOUGH_NS = 500_000
"""Time of the calls of a signature after which a brief measurement ends [ns]."""

ROW = 16
"""So many calls are timed in a row on CUDA, fewer where these take longer than `ENOUGH_NS`."""


@frozen
class Sampling:
    """How often each signature is timed.

    Attributes:
        rounds: over all signatures, each of `FEWEST` to `MOST` calls; the smallest median counts, since other work on the
            machine only ever adds time, and rarely at both times.
        patience: time for the calls of a round beyond `FEWEST` [ns].
        enough: time after which fewer calls do, too [ns]: long ones differ less from each other; None: there is none.
    """

    rounds: int = field(default=1, validator=whole(1, "rounds"))
    patience: Ns = field(default=PATIENCE_NS, validator=whole(0, "ns"))
    enough: Ns | None = field(default=None, validator=optional(whole(0, "ns")))


ONE_ROUND, TWO_ROUNDS, BRIEF = Sampling(), Sampling(rounds=2), Sampling(patience=0, enough=ENOUGH_NS)
"""What is measured for this process; what is kept for others too; what a new size of a known step gets."""


@frozen(kw_only=True)
class Sample:
    """What a round found of one signature: median time [ns] of so many calls, bytes given for each output, most bytes held.

    `host` is the time to queue one, where a device works on its own.
    """

    time: Ns
    calls: int
    host: Ns = 0
    sizes: tuple[Bytes | None, ...] = ()
    peak: Bytes = 0


@takes(
    rule="X-ARG",
    program=A_PROGRAM,
    cache=optional(A_TABLE),
    sampling=instance(Sampling, "Sampling(rounds=2)"),
    calls=optional(A_TABLE),
)
def measure(
    program: Program,
    cache: dict[str, OpCost] | None = None,
    *,
    sampling: Sampling = ONE_ROUND,
    calls: dict[str, int] | None = None,
) -> Mapping[str, OpCost]:
    """Costs of every node of a step, by name.

    Args:
        program: the captured step; it must be for a device of this machine.
        cache: costs by signature from earlier calls; what is measured is added, and what is used comes last.
        sampling: how often each signature is timed.
        calls: takes up how many calls were timed, by signature, of what is measured here.

    Raises:
        Uncapturable: X-MEASURE, when an operation does not run on inputs made for it.
    """
    costs = {} if cache is None else cache
    signatures = signatures_of(program)
    first: dict[str, Op] = {}
    for name, text in signatures.items():
        if text not in costs:
            first.setdefault(text, program.op_by_name[name])

    def run() -> list[dict[str, Sample]]:
        # garbage that is collected meanwhile would count as freed
        with rng.kept(), torch.no_grad(), no_autocast(program.device), collector_paused():
            return [_round(program, first, sampling) for _ in range(sampling.rounds)]

    with refusing("measuring"):
        rounds = unprofiled(run)
    for text, op in first.items():
        samples = [samples[text] for samples in rounds]
        best = min(samples, key=lambda sample: sample.time)
        peak = max(sample.peak for sample in samples)
        state = rng.state_bytes(program.device) if op.draws and op.role is not Role.RNG else 0
        workspace = max(0, peak - sum(filter(None, best.sizes))) + state
        costs[text] = OpCost(time=best.time, workspace=workspace, outputs=best.sizes, host=best.host)
        if calls is not None:
            calls[text] = sum(sample.calls for sample in samples)
    for text in dict.fromkeys(signatures.values()):
        costs[text] = costs.pop(text)
    return paced({name: costs[text] for name, text in signatures.items()})


def paced(costs: Mapping[str, OpCost]) -> Mapping[str, OpCost]:
    """Costs of the nodes of a step with the host's part in their times, where the host is slower than the device in all.

    A device that is always behind takes its own time for a step, and one that waits for the host takes the host's. What the host
    is slower by is shared out among the nodes that it takes longer for.
    """
    waits = {name: max(0, cost.host - cost.time) for name, cost in costs.items()}
    behind = sum(cost.host - cost.time for cost in costs.values() if cost.host)
    if behind <= 0:
        return costs
    share = behind / sum(waits.values())
    return {name: evolve(cost, time=cost.time + round(share * waits[name])) for name, cost in costs.items()}


def _round(program: Program, first: Mapping[str, Op], sampling: Sampling) -> dict[str, Sample]:
    samples: dict[str, Sample] = {}
    for text, op in first.items():  # a loop of this frame: a refusal finds the operation in it
        samples[text] = _sampled(program, op, sampling)
    return samples


def signatures_of(program: Program) -> dict[str, str]:
    """The signature of every node that is measured, by name."""
    return {op.name: signature(program, op) for op in program.nodes if op.role is not Role.LOSS}


def _sampled(program: Program, op: Op, sampling: Sampling) -> Sample:
    """One round of an operation: a call to warm up that says how large the outputs are, one for the peak, some for the time."""
    if op.role is Role.RNG:
        return Sample(**_timed(lambda: rng.save(program.device), program.device, sampling))
    call, results = prepared(program, op), list[Any]()
    # On CUDA the first call may make workspaces that stay.
    brief = sampling.enough is not None and program.device.type != "cuda"
    try:
        peak = _peak(lambda: results.append(call()), program.device) if brief else 0
        sizes = _sizes(program, op, results.pop() if brief else call())
    except (RuntimeError, IndexError, ValueError) as error:
        what = f"{op.target}{_where(op)} does not run on made inputs: {error}"
        fix = (
            'see whether the bare module runs on this call; if it does, give cost="estimate", and report the operation.'
        )
        raise Uncapturable("X-MEASURE", what, fix=fix) from error
    peak = peak or _most_bytes(call, sizes, program.device)
    return Sample(**_timed(call, program.device, sampling), sizes=sizes, peak=peak)


def _most_bytes(call: Callable[[], Any], sizes: tuple[Bytes | None, ...], device: torch.device) -> Bytes:
    """Most bytes held during a call whose outputs have these sizes."""
    if device.type != "cuda":
        return _peak(call, device)
    out, use = used_by(call, device)
    del out
    return sum(filter(None, sizes)) + use.workspace


def weighed(program: Program, op: Op) -> tuple[Bytes, tuple[Bytes | None, ...]]:
    """Most bytes held during one call of an operation, outputs included, and the bytes of each output.

    Raises:
        Uncapturable: X-MEASURE, where it does not run on inputs made for it, or returns other forms than the program says.
    """
    call, results = prepared(program, op, plain=True), list[Any]()
    try:
        if program.device.type == "cuda":
            call()  # the first call makes workspaces that stay
        peak = _peak(lambda: results.append(call()), program.device)
    except (RuntimeError, IndexError, ValueError) as error:
        what = f"{op.target}{_where(op)} does not run on made inputs: {error}"
        raise Uncapturable("X-MEASURE", what, fix="report the operation.") from error
    for value, tensor in zip(op.outputs, results[0] if op.unpack else results, strict=True):
        if value is not None and tensor is not None and op.role is not Role.UPDATE:
            _check_strides(op, program.values[value].spec, Spec.of(tensor))
    return peak, _sizes(program, op, results[0])


def _check_strides(op: Op, traced: Spec, real: Spec) -> None:
    steps = zip(real.shape, real.stride, traced.stride, strict=False)
    if real.numel and any(n != 1 and ours != theirs for n, ours, theirs in steps):
        what = f"{op.target}{_where(op)} returned {real} where the program says {traced}."
        raise Uncapturable("X-MEASURE", what, fix="report the operation.")


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


class _Timed(TypedDict):
    time: Ns
    host: Ns
    calls: int


def _timed(call: Callable[[], Any], device: torch.device, sampling: Sampling) -> _Timed:
    """The median time of some calls, and how many these were."""
    if device.type == "cuda":
        return _timed_in_rows(call, device, sampling)
    clock = _clock(device)
    spent, enough = 0, sampling.enough
    times: list[Ns] = []
    while len(times) < FEWEST or (spent < sampling.patience and len(times) < MOST):
        if enough is not None and times and spent >= enough:
            break
        start = clock()
        out = call()
        times.append(clock() - start)
        spent += times[-1]
        del out
    return _Timed(time=max(1, int(statistics.median(times))), host=0, calls=len(times))


def _timed_in_rows(call: Callable[[], Any], device: torch.device, sampling: Sampling) -> _Timed:
    """The device's median time of a call that was queued while it was busy, and the host's least time to queue one."""
    times: list[Ns] = []
    _, host = timed_row(call, device, count=1, head_start=0)
    calls, spent, count = 1, 0, 1
    while len(times) < FEWEST or (spent < sampling.patience and len(times) < MOST):
        if sampling.enough is not None and times and spent >= sampling.enough:
            break
        took, queued = timed_row(call, device, count=count, head_start=2 * host * count)
        host = min(host, queued // count)
        times.append(took // count)
        calls, spent = calls + count, spent + took
        count = max(1, min(ROW, ENOUGH_NS // max(1, took // count)))
    return _Timed(time=max(1, int(statistics.median(times))), host=host, calls=calls)


def _clock(device: torch.device) -> Callable[[], Ns]:
    """CPU time of this thread where it is the only one that computes, so that other work on the machine counts little."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time_ns if alone else time.perf_counter_ns


def prepared(program: Program, op: Op, *, plain: bool = False) -> Callable[[], Any]:
    """One call of an operation, with what is added to its outputs, on inputs made for it, whose numbers may be all the same."""
    target: Any = torch_private.entry(op.target) if isinstance(op.target, torch_private.OpOverload) else op.target
    generator = None if plain else torch.Generator(program.device).manual_seed(0)
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


def _peak(call: Callable[[], Any], device: torch.device) -> Bytes:
    """Most bytes held during a call, outputs included."""
    if device.type == "cuda":
        out, use = used_by(call, device)
        del out
        return rounded(use.asked_peak)
    events: list[recording.Event] = []
    with recording.recorded(events):
        out = call()
    del out
    return max((0, *accumulate(event.size for event in events)))
