"""Capture: one training step of a module, traced under fake tensors into a `Program`.

The trace (`_trace/tracing.py`) is one joint graph of forward and backward, with what Python read and changed meanwhile.
`read_joint` (in `reader.py`) makes operations over storages of its nodes; `finish` (in `complete.py`) writes out what the trace
leaves implicit: writes of buffers, generator states, copies of gradients, the loss; `accumulate` (in `fold_sums.py`) folds sums
into the operations that make what is summed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch import nn

from remat._collector import collector_paused
from remat.errors import Uncapturable
from remat.exec._capture.agree import Kernels, traced_as_run
from remat.exec._capture.casts import share_casts
from remat.exec._capture.complete import finish
from remat.exec._capture.fold_sums import accumulate
from remat.exec._capture.guards import Guards, Prologue, compile_guards, compile_prologue
from remat.exec._capture.noise import keep_masks
from remat.exec._capture.reader import read_joint
from remat.exec._program.program import Program
from remat.exec._program.refusals import refusing
from remat.exec._torch import rng
from remat.exec._torch.cuda_memory import charged
from remat.exec._torch.exchange import EXCHANGE
from remat.exec._torch.sharded import class_name, flat_inside, sharded_inside
from remat.exec._torch.torch_private import FakeTensor
from remat.exec._trace import structure
from remat.exec._trace.diagnosis import refusal
from remat.exec._trace.effects import Effect
from remat.exec._trace.reads import Reads
from remat.exec._trace.structure import PLAIN, Layout, Plain
from remat.exec._trace.tape import Read, Scalar
from remat.exec._trace.tracing import Step, Traced, trace
from remat.settings import instance, one_of
from remat.units import Bytes

TRACERS = ("auto", "log", "joint")


@frozen(kw_only=True, eq=False)
class Captured:
    """A captured step and how to call it.

    Attributes:
        program: the operations. Its outputs are the tensors that the module returns, then the late reads, then what effects set;
            its inputs the tensors of the arguments, then those that were lifted.
        layout, out_leaves: how the flat outputs become what the module returns; tensors stand as None in `out_leaves`.
        places: which of `out_leaves` are tensors.
        requires_grad: for each output of the program, whether the bare module's tensor requires a gradient.
        differentiable: positions of outputs through which gradients may come back.
        widened: why outputs were cloned: positions of outputs that alias an input or another output.
        guards: what must hold of the tensors of a call.
        late: what must hold of the late reads, in the order of their outputs.
        effects: what the forward changes in Python.
        replaced: paths of buffers that the forward replaces by new tensors: the step writes them in new memory.
        lifted: paths of the plain tensors that are inputs besides the arguments.
        leaves: inputs that autocast casts more than once, and whether they are leaves, of which eager keeps the cast.
        prologue: what is computed before the step because shapes depend on it, and is an input after these; None: nothing.
        orders: for each output of the program, how its dimensions are permuted for the caller; None: not at all.
        tokens: states of Python in which the step is this one; `reads` says which attributes count.
        exported: why the joint export has traced the step and not the log (see `capture`); empty: the log has, or the export
            was asked for.
        asked: all that Python read of tensors, in order.
        saved: what autograd holds where the module runs unwrapped, as (number of a node of autograd, storage); empty where the
            export has traced the step.
    """

    program: Program
    layout: Layout
    out_leaves: tuple[Any, ...]
    places: tuple[int, ...]
    requires_grad: tuple[bool, ...]
    differentiable: tuple[int, ...]
    widened: frozenset[int] = frozenset()
    guards: Guards = field(factory=lambda: compile_guards(()))
    late: tuple[Read, ...] = ()
    effects: tuple[Effect, ...] = ()
    replaced: tuple[str, ...] = ()
    lifted: tuple[str, ...] = ()
    leaves: tuple[tuple[int, bool], ...] = ()
    prologue: Prologue | None = None
    orders: tuple[tuple[int, ...] | None, ...] = ()
    exported: str = ""
    asked: tuple[Read, ...] = field(default=(), repr=False)
    saved: tuple[tuple[int, str], ...] = field(default=(), repr=False)
    tokens: tuple[Any, ...] = field(default=(), repr=False)
    reads: Reads | None = field(default=None, repr=False)

    @cached_property
    def tensor_leaves(self) -> frozenset[int]:
        """Places of the tensors among the flat outputs."""
        return frozenset(self.places)

    @property
    def overhead(self) -> Bytes:
        """Bytes that a call holds outside the step: results of the prologue, new memory of buffers that the forward replaces, and
        what undoes a forward on the wrong branch.
        """
        program = self.program
        forms = () if self.prologue is None else self.prologue.forms
        overhead = sum(charged(shape.numel() * dtype.itemsize, program.device) for shape, _, dtype in forms)
        if self.late:
            written = sum(program.storage_of(target).size for target in program.updates)
            overhead += rng.state_bytes(program.device) + written
        replaced = (program.values[value].spec for value, path in program.buffers if path in self.replaced)
        return overhead + sum(charged(spec.numel * spec.dtype.itemsize, program.device) for spec in replaced)


def capture(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    step: Callable[..., Any] | None = None,
    differentiable: str = "auto",
    fold_sums: str = "settled",
    watched: tuple[Any, ...] = (),
    answers: tuple[Scalar, ...] = (),
    as_run: bool | None = None,
    tracer: str = "auto",
) -> Captured:
    """Trace one training step of `module` on arguments like these; nothing of the module or the arguments changes.

    Args:
        module: the module; its parameters and buffers are read for shapes, never for values.
        args: positional arguments of a call, with tensors of the shapes, types and devices to plan for.
        kwargs: keyword arguments of that call.
        step: what is called, as `step(module, *args, **kwargs)`; by default the module's forward.
        differentiable: "loss": gradients come back through the one 0-dim output alone; "all": through every output;
            "auto": through the loss if there is exactly one 0-dim output that requires a gradient, else through all.
        fold_sums: which sums of gradients become part of the operations that make what they add: "settled", "all" or "none"
            (see `fold_sums.py`).
        watched: functions and objects besides the module whose Python state the step may depend on.
        answers: values of the first late reads, where they are known from a call that took another branch.
        as_run: whether the trace must agree with the kernels of this machine; None: where the module has tensors with memory.
        tracer: "log": forward and backward run once under fake tensors, and what they call is written down; "joint": torch's
            joint export, about three times slower; "auto": the log, and the export for steps that the log does not stand for.

    Raises:
        Uncapturable: the step cannot be one graph; the message names the operation or the reason.
    """
    instance(nn.Module, "nn.Linear(3, 4)").check(module, "capture: module", rule="X-ARG")
    function = step or type(module).forward
    one_of(*TRACERS).check(tracer, "capture: tracer", rule="X-ARG")
    try:
        asked = step_of(module, args, kwargs or {}, function, differentiable)
        asked = evolve(asked, watched=watched, answers=answers, tracer=tracer)
        with EXCHANGE.alone, collector_paused():  # nearly all that a trace makes lives until its end
            return _captured_step(asked, fold_sums, as_run)
    except Uncapturable as error:
        raise refusal(error, module) from error


def step_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], function: Callable[..., Any], differentiable: str
) -> Step:
    """The call to be traced, its arguments as leaves."""
    leaves, layout = structure.flatten((args, kwargs), opaque=lambda value: isinstance(value, nn.Module))
    state: dict[int, tuple[str, Any]] = {}
    for kind, named in (("param", module.named_parameters), ("buffer", module.named_buffers)):
        for name, tensor in named(remove_duplicate=False):
            state.setdefault(id(tensor), (kind, name))
    inputs, repeated = structure.distinct(leaves, state)
    tensors = tuple(inputs)
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *PLAIN)):
            fix = "pass tensors, plain values and objects of them, or give it to the module as an attribute."
            if isinstance(leaf, torch.Generator):
                fix = "draw before the call and pass the numbers."
            raise Uncapturable("X-INPUT", f"an argument is a {type(leaf).__name__}.", fix=fix)
    _check_plain(module, tensors)
    return Step(
        module=module, function=function, layout=layout, tensors=tensors,
        leaves=tuple(
            repeated.get(at) if isinstance(leaf, torch.Tensor) else Plain(leaf) for at, leaf in enumerate(leaves)
        ),
        differentiable=differentiable,
    )  # fmt: skip


def _captured_step(step: Step, fold_sums: str, as_run: bool | None) -> Captured:
    results: list[Captured] = []

    def traced(kernels: Kernels | None) -> Program:
        traced_step = trace(step, None if kernels is None else kernels.returned)
        results[:] = [_read(traced_step, step, fold_sums)]
        return results[0].program

    tensors = (*step.module.parameters(), *step.module.buffers(), *step.tensors)
    if as_run is None:
        as_run = not any(isinstance(tensor, FakeTensor) for tensor in tensors)
    if as_run and any(tensor.is_meta for tensor in tensors):
        fix = "give its tensors memory (`module.to_empty(device=…)`, then weights), or ask `remat.estimate` what it would need."
        raise Uncapturable("X-DEVICE", "tensors lie on the meta device, where nothing is computed.", fix=fix)
    if as_run:
        traced_as_run(traced)
    else:
        traced(None)
    return results[0]


def _read(traced: Traced, step: Step, fold_sums: str) -> Captured:
    """The program of a trace."""
    inputs = (*step.tensors, *(slot.tensor for slot in traced.lifted))
    with refusing("reading the trace"):
        draft = read_joint(traced.joint, step.module)
        cast = share_casts(draft, lambda source: source[0] != "input" or is_leaf(inputs[source[1]]))
        keep_masks(draft)
        program = finish(draft, name=class_name(step.module))
        _check_counters(traced, program)
        leaves = tuple((at, is_leaf(inputs[at])) for at in cast)
        return _captured(traced, accumulate(program, fold_sums), leaves, draft.saved)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether autocast keeps casts of a tensor that requires a gradient."""
    return tensor.is_leaf and not tensor._is_view()


def _captured(
    traced: Traced, program: Program, leaves: tuple[tuple[int, bool], ...], saved: tuple[tuple[int, str], ...]
) -> Captured:
    last = traced.last
    assert last.layout is not None
    reads = last.tape.reads
    return Captured(
        program=program,
        layout=last.layout,
        out_leaves=last.leaves,
        places=last.places,
        requires_grad=last.requires_grad,
        differentiable=last.through,
        widened=traced.cloned,
        guards=compile_guards(reads),
        late=tuple(read for read in reads if read.late is not None),
        effects=last.effects,
        replaced=last.replaced,
        lifted=tuple(slot.path for slot in traced.lifted),
        leaves=leaves,
        prologue=_prologue(traced),
        orders=last.orders,
        tokens=traced.tokens,
        reads=last.reads,
        exported=traced.exported,
        asked=tuple(reads),
        saved=tuple((number, name) for number, name in saved if name in program.storages),
    )


def _prologue(traced: Traced) -> Prologue | None:
    if not traced.computed:
        return None
    reads, tensors = zip(*((computed.read, computed.tensors) for computed in traced.computed), strict=True)
    return compile_prologue(reads, tensors, traced.inputs)


def _check_counters(traced: Traced, program: Program) -> None:
    """Refuse a number that Python reads from what every step changes: each call would need a plan of its own."""
    written = {("buffer", path) for value, path in program.buffers if value in program.updates}
    for read in traced.last.tape.reads:
        changing = [origin for origin in read.origins.values() if origin in written]
        if changing and not isinstance(read.value, bool):
            what = f"Python reads a number from the buffer {changing[0][1]}, which every step changes."
            fix = "keep it a tensor; for BatchNorm give `momentum` a number."
            raise Uncapturable("X-READ", what, fix=fix, where=str(read.place))


def _check_plain(module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> None:
    plain = (torch.Tensor, nn.Parameter, nn.Buffer, FakeTensor)
    state = [*module.parameters(), *module.buffers()]
    _check_sharding(module)
    for path, inner in module.named_modules():
        if isinstance(inner, nn.EmbeddingBag) and inner.sparse and inner.weight.requires_grad:
            fix = "make them dense (`nn.EmbeddingBag(…, sparse=False)`), or leave this module bare."
            raise Uncapturable("X-TENSOR", f"{path or 'the module'} (EmbeddingBag) has sparse gradients.", fix=fix)
    for tensor in (*state, *tensors):
        if type(tensor) not in plain or tensor.layout is not torch.strided:
            fix = "leave this module bare."
            if type(tensor).__name__ == "DTensor":
                fix = "leave this module bare, and wrap modules without tensor parallelism."
            raise Uncapturable("X-TENSOR", f"a tensor is a {type(tensor).__name__}, {tensor.layout}.", fix=fix)
    devices = {tensor.device for tensor in state if tensor.numel()}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise Uncapturable("X-DEVICE", f"parameters lie on {names}.", fix="put the module on one device.")


def _check_sharding(module: nn.Module) -> None:
    if path := sharded_inside(module):
        what = f"{path} is sharded on its own: its parameters are gathered and freed in the middle of the step."
        fix = "divide the budget among such blocks with `apply_budget` before `fully_shard`, or wrap each with `wrap_in_place`."
        raise Uncapturable("X-MODULE", what, fix=fix)
    if (flat := flat_inside(module)) is not None:
        place = flat or "the module itself"
        what = f"{place} is a FullyShardedDataParallel (FSDP1), which gathers and frees its parameters as it runs."
        fix = "wrap the module first and give FullyShardedDataParallel the wrapped one, or use `fully_shard`."
        raise Uncapturable("X-MODULE", what, fix=fix)


__all__ = ["PLAIN", "Captured", "FakeTensor", "capture"]
