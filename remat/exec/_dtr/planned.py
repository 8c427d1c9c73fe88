"""A planned part of a step under DTR: its forward is one operation of the runtime, and so is its backward.

What the plan keeps from one to the other is one value of the runtime: it is evicted as a whole, and computed again by running the
forward of the plan. Where the planned backward is not what plain torch would do in this step, or does not fit, the part
runs again operation by operation (`again.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from attrs import define, field, frozen
from torch import nn

from remat.algorithms._dtr.memory import OutOfRoom
from remat.algorithms._dtr.values import Call, Handle, Value
from remat.exec._dtr.boundary import packed, unpacked
from remat.exec._dtr.operators import check_unwritten, generators_in, states_of
from remat.exec._dtr.runtime import Runtime
from remat.exec._dtr.wrapper import RematTensor
from remat.exec._program.kernels import no_autocast
from remat.exec._run.lowering import Lowered
from remat.exec._run.runtime import StepError
from remat.exec._torch.torch_private import storage_key
from remat.exec._torch.wrappers import below_autograd, outside_modes
from remat.units import Bytes, Ns

TOKEN = torch.empty(0, device="cpu")
"""What autograd saves in place of a `_Kept`."""


@frozen(kw_only=True, eq=False)
class Planned:
    """A part as it is planned for one form of its calls.

    Attributes:
        name: of the part. lowered: its two functions.
        requires_grad, differentiable: of its outputs, as of `runtime.Call`.
        inputs: places of the primals that are arguments of the call, and their numbers among its tensors.
        shared: those of them whose gradient is a sum made inside, which is the sum of plain torch only where nothing reads
            the argument afterwards.
        draws: whether it draws random numbers.
        cost: of the forward by the model of costs [ns].
        results, saved: bytes of its outputs, and of what the plan keeps between forward and backward.
        forward_work, backward_work: bytes that its forward takes beyond `results` and `saved`, and its backward beyond the
            gradients and what it has.
        gradients: bytes of the gradients.
    """

    name: str
    lowered: Lowered
    requires_grad: tuple[bool, ...]
    differentiable: tuple[int, ...]
    inputs: dict[int, int]
    shared: frozenset[int]
    draws: bool
    cost: Ns
    results: Bytes
    saved: Bytes
    forward_work: Bytes
    backward_work: Bytes
    gradients: Bytes


@define(eq=False)
class Running:
    """One call of a planned part.

    Attributes:
        runtime: it runs under. planned: what runs. primals: parameters, buffers and inputs; later without the inputs.
        leaves, layout: the flat arguments of the module's call, None for tensors, and how they become arguments.
        tensors: places of the tensors among the leaves. given: these tensors, until the forward has run.
        forward: of the module as it is. modes: each module in it, and whether it trained.
        again: runs the part again; see `again.py`. ran_again: called with why, where it does.
    """

    runtime: Runtime
    planned: Planned
    primals: tuple[torch.Tensor | None, ...]
    leaves: list[Any]
    layout: Any
    tensors: tuple[int, ...]
    given: list[torch.Tensor]
    forward: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    modes: list[tuple[nn.Module, bool]]
    again: Callable[[Running, Sequence[torch.Tensor | None]], tuple[torch.Tensor | None, ...]]
    ran_again: Callable[[str], None]
    kept: Kept | None = None


@define(eq=False)
class Kept:
    """What a call keeps until its backward, and as long as autograd keeps what it saved.

    Attributes:
        bundle: what the plan keeps. inputs: the tensors among the arguments, in order; not kept in memory.
        states, written: generators, and buffers that the part writes, by place, as they were before it.
        uses: of each shared input, how often it is read, and how often it was before the part.
    """

    bundle: Handle
    inputs: list[Value]
    states: list[tuple[Any, Any]]
    written: dict[int, torch.Tensor]
    uses: list[tuple[list[int], int]] = field(factory=list)


def room_needed(runtime: Runtime, planned: Planned) -> Bytes:
    """Bytes that a forward takes: results, workspace, and what is noted to run it again."""
    return planned.results + planned.saved + planned.forward_work + (runtime.state_bytes if planned.draws else 0)


def has_room(runtime: Runtime, planned: Planned, primals: Sequence[torch.Tensor], spare: Bytes = 0) -> bool:
    """Whether a forward fits now, if all else is evicted that can be; and its backward, if `spare` more is held then."""
    core = runtime.core
    evictable = {id(s): s.size for table in (core.pool, core.small) for ref in list(table.values()) if (s := ref())}
    read = {id(value.storage): value.storage for value in map(runtime.value_of, primals) if not value.storage.pinned}
    fixed = core.memory + core.reserve - sum(evictable.values())
    inputs = sum(storage.size for storage in read.values())
    backward = 2 * planned.results + planned.saved + planned.gradients + planned.backward_work
    return fixed + inputs + max(room_needed(runtime, planned), backward + spare) <= core.budget


# -- the two operations ----------------------------------------------------------------------------------------------------


@define(eq=False)
class _Forward:
    """The forward of a plan, as it runs and is run again: outputs, outputs that the backward reads, and what is kept."""

    planned: Planned
    states: list[tuple[Any, Any]]
    written: dict[int, torch.Tensor]
    once: frozenset[int]
    weights: list[Any]
    versions: list[tuple[int, torch.Tensor, int]] = field(factory=list)
    ran: bool = False

    def __call__(self, payloads: list[Any]) -> Sequence[Any]:
        lowered = self.planned.lowered
        if not self.ran:
            self.ran = True
            outputs, read_outputs, activations = lowered.forward(tuple(payloads))
        else:
            check_unwritten(self.planned.name, self.versions)
            primals = list(payloads)
            for at, before in self.written.items():
                primals[at] = before.clone()
            with generators_in(self.states), torch.no_grad(), below_autograd(), no_autocast(lowered.device):
                outputs, read_outputs, activations = lowered.forward(tuple(primals))
        return [*outputs, *read_outputs, activations]


@define(eq=False)
class _Backward:
    """The backward of a plan; it uses up what the plan keeps, which is computed anew where it runs again."""

    planned: Planned
    runtime: Runtime
    bundle: Value
    once: frozenset[int] = frozenset()
    versions: list[tuple[int, torch.Tensor, int]] = field(factory=list)
    result: list[int | None] = field(factory=list)

    def __call__(self, payloads: list[Any]) -> Sequence[Any]:
        lowered = self.planned.lowered
        check_unwritten(self.planned.name, self.versions)
        tangents, count = len(lowered.tangents.places), len(payloads)
        saved, (kept,), given = (
            payloads[: count - tangents - 1],
            payloads[-tangents - 1 : -tangents],
            payloads[-tangents:],
        )
        with torch.no_grad(), below_autograd(), no_autocast(lowered.device):
            gradients = lowered.backward((), tuple(saved), tuple(given), kept)
        core = self.runtime.core
        core.peak = max(core.peak, core.memory + self.planned.gradients + self.planned.backward_work)
        core.withdraw(self.bundle.storage)
        results = [gradient for gradient in gradients if gradient is not None]
        places = iter(range(len(results)))
        self.result = [None if gradient is None else next(places) for gradient in gradients]
        return results


def _perform(runtime: Runtime, record: Call, operator: _Forward | _Backward, bundle: Bytes) -> list[Value | None]:
    record.describe = lambda results: runtime.described(record, results, bundle)
    try:
        with no_autocast(runtime.device), outside_modes(), torch.no_grad():
            runtime.core.perform(record)
    finally:
        record.describe = None
    runtime.note_readers(record, operator)
    results, record.values = record.values, []
    return results


def again_bytes(running: Running, written: dict[int, torch.Tensor]) -> Bytes:
    """Bytes that a later run takes besides: the present states of generators, and buffers that it may write to."""
    states = running.runtime.state_bytes if running.planned.draws else 0
    return states + sum(running.runtime.size_of(before) for before in written.values())


class NoRoom(Exception):
    """A planned forward does not fit; nothing of it has run."""


@contextmanager
def _or_no_room() -> Iterator[None]:
    try:
        yield
    except OutOfRoom as error:
        raise NoRoom from error


def _ran_forward(running: Running) -> tuple[list[Value | None], Kept]:
    """Run the forward of a plan; the values of its results, and what is to be kept."""
    runtime, planned, core = running.runtime, running.planned, running.runtime.core
    lowered, device = planned.lowered, runtime.device
    with runtime.working(planned.name), outside_modes(), torch.no_grad(), _or_no_room():
        values = [runtime.value_of(tensor) for tensor in running.primals if tensor is not None]
        written: dict[int, torch.Tensor] = {}
        weights: list[Any] = []
        for at in lowered.written_primals:
            runtime.preserve(values[at].storage, values)
            size = runtime.size_of(values[at].payload)
            core.make_room(size)
            written[at] = values[at].payload.clone()
            weights.append(core.constant(None, size))
        states: list[tuple[Any, Any]] = []
        if planned.draws:
            core.make_room(runtime.state_bytes)
            states = states_of(sorted({torch.device("cpu"), device}, key=str))
            weights.append(core.constant(None, runtime.state_bytes))
        operator = _Forward(planned, states, written, frozenset(written), weights)
        record = Call(tuple(values), operator, cost=planned.cost, work=planned.forward_work, name=planned.name)
        record.room = planned.results + planned.saved
        results = _perform(runtime, record, operator, planned.saved)
        record.work += again_bytes(running, written)  # of runs from now on
        bundle = results[-1]
        assert bundle is not None
        kept = Kept(Handle(bundle, saved=True), [runtime.value_of(tensor) for tensor in running.given], states, written)
    return results, kept


def _ran_backward(running: Running, saved: list[Any], kept: Kept, gradients: Sequence[Any]) -> tuple[Any, ...] | None:
    """Run the backward of a plan: gradients as wrapper tensors; None where there is no room for it."""
    runtime, planned = running.runtime, running.planned
    lowered, bundle = planned.lowered, kept.bundle.value
    tangents = [gradients[position] for position in lowered.tangents.places]
    with runtime.working(f"the backward of {planned.name}"), outside_modes():
        values = [runtime.value_of(tensor) for tensor in saved]
        given = [runtime.value_of(tensor) for tensor in tangents]
        operator = _Backward(planned, runtime, bundle)
        cost = 2 * planned.cost
        record = Call((*values, bundle, *given), operator, cost=cost, work=planned.backward_work, name=planned.name)
        record.room = planned.gradients
        try:
            results = _perform(runtime, record, operator, 0)
        except OutOfRoom:
            return None
        wrappers = [runtime.wrapped(value) for value in results]
        return tuple(None if place is None else wrappers[place] for place in operator.result)


# -- autograd --------------------------------------------------------------------------------------------------------------


class PartStep(torch.autograd.Function):
    """A planned part as autograd sees it: one node, whose gradients arrive where those of its operations would."""

    @staticmethod
    def forward(ctx: Any, running: Running, *leaves: torch.Tensor) -> tuple[Any, ...]:
        """Run the forward of the plan."""
        planned, runtime = running.planned, running.runtime
        lowered = planned.lowered
        results, kept = _ran_forward(running)
        count = len(planned.requires_grad)
        outputs = tuple(runtime.wrapped(value) for value in results[:count])
        read = [runtime.wrapped(value) for value in results[count:-1]]
        places = {at: leaf for at, leaf in zip(lowered.grad_inputs, leaves, strict=True) if at in planned.inputs}
        for at, leaf in places.items():
            if isinstance(leaf, RematTensor):
                leaf._uses[0] += 1
                kept.uses += [(leaf._uses, leaf._uses[0])] if at in planned.shared else []
        running.kept = kept
        saved = [running.primals[at] for at in lowered.backward_primals]
        ctx.save_for_backward(*saved, *read, TOKEN)
        running.given = []
        running.primals = tuple(None if at in planned.inputs else p for at, p in enumerate(running.primals))
        ctx.running = running
        ctx.set_materialize_grads(False)
        plain = [output for output, wanted in zip(outputs, planned.requires_grad, strict=True) if not wanted]
        ctx.mark_non_differentiable(*plain)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Run the backward of the plan, or the part again."""
        running: Running = ctx.running
        *saved, _ = ctx.saved_tensors
        kept, running.kept = running.kept, None
        assert kept is not None
        if torch.is_grad_enabled():
            runtime: Runtime = running.runtime
            runtime.doubled = True
            what = f"backward was called with create_graph=True, and {running.planned.name} runs by a plan, which has none."
            fix = "go on, from the next step on everything runs under DTR; or use remat.exec.dtr, which makes no plans."
            raise StepError("X-DOUBLE", what, fix=fix)
        reason = why_again(running.planned, kept, gradients)
        if not reason:
            results = _ran_backward(running, saved, kept, gradients)
            if results is not None:
                return (None, *results)
            reason = "no room for the planned backward"
        running.ran_again(reason)
        if kept.bundle.value.storage.material:
            running.runtime.core.evict(kept.bundle.value.storage)
        running.kept = kept
        try:
            return (None, *running.again(running, gradients))
        finally:
            running.kept = None


def why_again(planned: Planned, kept: Kept, gradients: Sequence[torch.Tensor | None]) -> str:
    """Why the planned backward is not what plain torch would do; empty: it is."""
    tangents = planned.lowered.tangents
    for position, spec in zip(tangents.places, tangents.specs, strict=True):
        gradient = gradients[position]
        if gradient is None:
            return "an output without a gradient"
        if gradient.stride() != spec.stride or gradient.dtype != spec.dtype:
            return "a gradient of another layout than was planned for"
    if any(uses[0] != before for uses, before in kept.uses):
        return "an input that is read elsewhere too"
    return ""


def run_planned(running: Running) -> tuple[torch.Tensor, ...]:
    """Run a part by its plan; its outputs carry the backward.

    Raises:
        NoRoom: it does not fit, whatever is evicted; nothing has run.
    """
    leaves = [running.primals[at] for at in running.planned.lowered.grad_inputs]

    def pack(tensor: torch.Tensor) -> Any:
        if type(tensor) is torch.Tensor and storage_key(tensor) == storage_key(TOKEN):
            kept, running.kept = running.kept, None
            return kept
        return packed(running.runtime, tensor)

    def unpack(item: Any) -> torch.Tensor:
        if not isinstance(item, Kept):
            return unpacked(item)
        running.kept = item
        return torch.empty(0, device="cpu")

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return PartStep.apply(running, *leaves)  # type: ignore[no-any-return, no-untyped-call]


__all__ = ["Kept", "NoRoom", "Planned", "Running", "again_bytes", "has_room", "run_planned"]
