"""The logged trace: forward and backward run once below autograd, under functional and fake tensors, and are written down.

It makes the graph that the joint export makes, without the proxies and in a third of its time. The first pass over the forward
is torch's own, which says what is written, what outputs look at and what tangents look like; the second is written down (`Log`)
and followed by `torch.autograd.grad`. Composite operations are taken apart by the kernels that eager uses. A tied parameter is
one leaf, so that autograd adds the gradients of its uses as in eager. What is not understood is refused with a reason
(`NotLogged`): the joint export is the reference, and takes these steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from attrs import frozen
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.utils import stateless

from remat.errors import Uncapturable
from remat.exec._torch.backward_writes import refuse_written
from remat.exec._torch.functional import Functional, as_it_is, inner, writes
from remat.exec._torch.joint import (
    PLAIN_OUTPUTS,
    Correction,
    Joint,
    corrections,
    eager_kernels,
    lists_of_items,
    unseen_refused,
)
from remat.exec._torch.late_numbers import compared_late
from remat.exec._torch.log import Log, NotLogged
from remat.exec._torch.masked_writes import written_to_places
from remat.exec._torch.saved import saved_by
from remat.exec._torch.torch_private import storage_key

Role = tuple[str, Any]


def log_joint(module: nn.Module, args: tuple[torch.Tensor, ...], correction: Correction | None = None) -> Joint:
    """The joint graph of forward and backward of `module`, as `export_joint` makes it.

    Args:
        module: what is traced.
        args: its arguments.
        correction: as for `export_joint`.

    Raises:
        NotLogged: the log does not stand for this step.
    """
    log = Log()
    real: dict[Role, torch.Tensor] = {}
    real.update((("param", name), tensor) for name, tensor in module.named_parameters(remove_duplicate=False))
    real.update((("buffer", name), tensor) for name, tensor in module.named_buffers(remove_duplicate=False))
    real.update((("input", at), tensor) for at, tensor in enumerate(args))
    mode = detect_fake_mode(tuple(real.values())) or FakeTensorMode()
    identities = {role: id(tensor) for role, tensor in real.items()}
    real = _without_old_gradients(real)
    with _tracing(log, correction), mode:
        return _Tracer(log, module, _faked(mode, real), identities).joint()


def _without_old_gradients(real: Mapping[Role, torch.Tensor]) -> dict[Role, torch.Tensor]:
    """A tensor whose `grad` has the shape of data that it had before is replaced by one without: torch makes no fake of it."""
    replacements: dict[int, torch.Tensor] = {}
    for tensor in real.values():
        if tensor.is_leaf and tensor.grad is not None and tensor.grad.shape != tensor.shape:
            replacements[id(tensor)] = tensor.detach().requires_grad_(tensor.requires_grad)
    return {role: replacements.get(id(tensor), tensor) for role, tensor in real.items()}


@contextmanager
def _tracing(log: Log, correction: Correction | None) -> Iterator[None]:
    """What the joint export is made in, and the log around the fake tensors."""
    with (
        fx_traceback.preserve_node_meta(),
        enable_python_dispatcher(),
        eager_kernels(fused_dropout=correction is None),
        lists_of_items(),
        written_to_places(),
        compared_late(),
        unseen_refused(),
        corrections(correction, log.around),
        torch.autograd.set_multithreading_enabled(False),
        torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)),
    ):
        hooks = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
        try:
            yield
        finally:
            torch._C._autograd._saved_tensors_hooks_set_tracing(hooks)


def _faked(mode: FakeTensorMode, real: Mapping[Role, torch.Tensor]) -> dict[Role, torch.Tensor]:
    """Tensors without memory. Arguments that are one tensor are two leaves; a tied parameter is one."""
    fakes: dict[Role, torch.Tensor] = {}
    seen: set[int] = set()
    for role, tensor in real.items():
        ours = isinstance(tensor, FakeTensor) and tensor.fake_mode is mode
        fake = tensor if ours else mode.from_tensor(tensor)
        if id(fake) in seen and role[0] != "param":
            fake = fake.detach().requires_grad_(fake.requires_grad)
        seen.add(id(fake))
        fakes[role] = fake
    return fakes


@frozen(eq=False)
class _Forward:
    """What the second pass over the forward has left.

    Attributes:
        primals: the functional tensors that it was given, in the order of the roles.
        tangents: those that its outputs get as gradients.
        outputs: what it returned.
        written: the inputs that it has written, as they are now.
    """

    primals: list[FunctionalTensor]
    tangents: list[FunctionalTensor]
    outputs: list[torch.Tensor]
    written: list[torch.Tensor]


class _Tracer:
    """One trace of a module.

    Args:
        log: where it is written down.
        module: what is called.
        fakes: parameters, buffers and arguments.
        identities: equal numbers of those that are one tensor.
    """

    def __init__(
        self, log: Log, module: nn.Module, fakes: dict[Role, torch.Tensor], identities: dict[Role, int]
    ) -> None:
        self.log = log
        self.module = module
        self.fakes, self.identities = fakes, identities
        self.roles = tuple(fakes)
        self.state = tuple(name for kind, name in fakes if kind != "input")
        self.saved: list[tuple[int, torch.Tensor]] = []

    def joint(self) -> Joint:
        """The graph; where outputs look at inputs or at each other, these alone."""
        meta = self._first_pass()
        aliased = frozenset(
            at for at, info in enumerate(meta.output_info) if info.output_type.name not in PLAIN_OUTPUTS
        )
        if aliased:
            return Joint(torch.fx.Graph(), {}, (), (), aliased)
        self._check(meta)
        tangents = [_empty_like(form) for form in meta.traced_tangents]
        for at, fake in enumerate(self.fakes.values(), start=1):
            self.log.placeholder(f"primals_{at}", fake)
        for at, tangent in enumerate(tangents, start=1):
            self.log.placeholder(f"tangents_{at}", tangent)
        self.log.second()
        with no_cast_kept(), Functional(self.log):
            forward = self._second_pass(meta, tangents)
            gradients = self._backward(meta, forward)
        return self._finished(meta, forward, gradients)

    def _call(self, *flat: torch.Tensor) -> list[torch.Tensor]:
        count = len(self.state)
        state = dict(zip(self.state, flat[:count], strict=True))
        with stateless._reparametrize_module(self.module, state):
            return list(self.module(*flat[count:]))

    def _first_pass(self) -> Any:
        """What torch finds out about the forward."""
        from torch._functorch._aot_autograd.collect_metadata_analysis import run_functionalized_fw_and_collect_metadata
        from torch._functorch._aot_autograd.descriptors import PlainAOTInput

        def call(*flat: torch.Tensor) -> list[torch.Tensor]:
            with self._logging():
                return self._call(*flat)

        inputs: Any = [PlainAOTInput(at) for at in range(len(self.roles))]
        collect = run_functionalized_fw_and_collect_metadata(call, flat_args_descs=inputs, keep_input_mutations=False)
        with Functional(self.log):
            return collect(*self.fakes.values())

    @contextmanager
    def _logging(self) -> Iterator[None]:
        self.log.on = True
        try:
            yield
        finally:
            self.log.on = False

    def _check(self, meta: Any) -> None:
        """Refuse steps that need what is not here: other forms of inputs, effects, writes that autograd sees."""
        if meta.tokens:
            raise NotLogged("an operation has side effects")
        if meta.grad_enabled_mutation is not None:
            raise NotLogged("the forward switches gradients on or off")
        if any(type(about.output).__name__ != "PlainAOTOutput" for about in meta.traced_tangents_descs):
            raise NotLogged("something besides the outputs gets a gradient")
        sharing: dict[int, list[Role]] = {}
        for role, fake in self.fakes.items():
            sharing.setdefault(storage_key(fake), []).append(role)
        for ((kind, name), fake), info in zip(self.fakes.items(), meta.input_info, strict=True):
            if info.mutates_metadata or info.mutates_storage_metadata or info.mutation_inductor_storage_resize:
                raise NotLogged(f"the forward changes the form of the {kind} {name}")
            if info.mutates_data and info.requires_grad:
                raise NotLogged(f"the forward writes the {kind} {name}, which requires a gradient")
            sharers = sharing[storage_key(fake)]
            if info.mutates_data and len(sharers) > 1:
                if self._apart(sharers):
                    what = (
                        f"the forward writes the {kind} {name} in place, which shares its memory with another tensor."
                    )
                    raise Uncapturable("X-ALIAS", what, fix="clone one of them.")
                raise NotLogged(f"the forward writes the {kind} {name}, which shares its memory with another")

    def _apart(self, sharers: list[Role]) -> bool:
        """Whether several tensors, arguments among them, share their memory, and not one tensor alone."""
        return any(kind == "input" for kind, _ in sharers) and len({self.identities[role] for role in sharers}) > 1

    def _second_pass(self, meta: Any, tangents: list[torch.Tensor]) -> _Forward:
        leaves: dict[int, FunctionalTensor] = {}
        for fake in self.fakes.values():
            if id(fake) not in leaves:
                leaves[id(fake)] = FunctionalTensor.to_functional(fake)
        primals = [leaves[id(fake)] for fake in self.fakes.values()]
        towards = [FunctionalTensor.to_functional(tangent) for tangent in tangents]
        with self._logging():
            outputs = self._call(*primals)
            written = [
                inner(primal) for primal, info in zip(primals, meta.input_info, strict=True) if info.mutates_data
            ]
        return _Forward(primals, towards, outputs, written)

    def _backward(self, meta: Any, forward: _Forward) -> dict[int, torch.Tensor | None]:
        """The gradients by the identity of the leaf."""
        needed = [forward.outputs[about.output.idx] for about in meta.traced_tangents_descs]
        if [output.shape for output in needed] != [tangent.shape for tangent in forward.tangents]:
            raise NotLogged("the outputs that require a gradient are others when the same call is traced again")
        trained = {id(primal): primal for primal in forward.primals if primal.requires_grad}
        if not trained or not needed:
            return {}
        primals, tangents = [list(map(writes, tensors)) for tensors in (forward.primals, forward.tangents)]
        self.log.in_backward = True
        with self._watching(needed), self._logging(), outside_autocast():
            results = torch.autograd.grad(needed, list(trained.values()), forward.tangents, allow_unused=True)
            gradients = [None if gradient is None else inner(gradient) for gradient in results]
        counts = zip(self.roles, primals, map(writes, forward.primals), strict=True)
        refuse_written(role for role, before, after in counts if before != after)
        if tangents != list(map(writes, forward.tangents)):
            raise NotLogged("the backward writes the gradient of an output")
        return dict(zip(trained, gradients, strict=True))

    @contextmanager
    def _watching(self, roots: list[torch.Tensor]) -> Iterator[None]:
        """Be told when a node of autograd begins and ends: what runs between them is a hook's, or adds gradients."""
        handles: list[Any] = []
        try:
            self._watch(roots, handles)
            yield
        finally:
            for handle in handles:  # a node that keeps its hooks is a circle that Python's collector does not see
                handle.remove()

    def _watch(self, roots: list[torch.Tensor], handles: list[Any]) -> None:
        stack = [root.grad_fn for root in roots]
        seen = set(stack)
        while stack:
            node = stack.pop()
            if node is None or not node.next_functions:
                continue
            handles.append(node.register_prehook(partial(self._begin, node)))
            handles.append(node.register_hook(self._end))
            fresh = {follower for follower, _ in node.next_functions} - seen
            seen |= fresh
            stack += fresh

    def _begin(self, node: Any, _gradients: Any) -> None:
        number = node._sequence_nr()
        self.log.running.append(number)
        # read here, where what it takes to read it is written down
        self.saved += [(number, as_it_is(tensor)) for tensor in saved_by(node)]

    def _end(self, *_gradients: Any) -> None:
        self.log.running.pop()

    def _finished(self, meta: Any, forward: _Forward, gradients: dict[int, torch.Tensor | None]) -> Joint:
        """The graph with what leaves it."""
        written = [role for role, info in zip(self.roles, meta.input_info, strict=True) if info.mutates_data]
        ends: list[tuple[Any, torch.Tensor | None]] = [
            *zip((("update", role) for role in written), forward.written, strict=True),
            *((("output", at), inner(output)) for at, output in enumerate(forward.outputs)),
        ]
        for role, primal in zip(self.roles, forward.primals, strict=True):
            ends.append((("grad", role), gradients.pop(id(primal), None)))
        graph = self.log.graph
        graph.output(tuple(None if tensor is None else self.log.node(tensor) for _, tensor in ends))
        graph.eliminate_dead_code()
        tangents = [("tangent", ("output", about.output.idx)) for about in meta.traced_tangents_descs]
        inputs = (*self.roles, *tangents)
        return Joint(graph, self.log.constants, inputs, tuple(role for role, _ in ends), frozenset(), tuple(self.saved))


def _empty_like(form: torch.Tensor) -> torch.Tensor:
    """A tensor of its own of that form."""
    return torch.empty_strided(form.shape, form.stride(), dtype=form.dtype, device=form.device)


@contextmanager
def no_cast_kept() -> Iterator[None]:
    """Autocast keeps no casts, which would be those of a trace."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)


@contextmanager
def outside_autocast() -> Iterator[None]:
    """A backward runs outside autocast, whatever its forward ran in."""
    with ExitStack() as stack:
        for kind in torch._C._autocast_supported_devices():
            if hasattr(torch, kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
