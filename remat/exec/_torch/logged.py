"""The log: forward and backward run once under functional and fake tensors, and what reaches the fake tensors is written down.

It makes the graph that the joint export makes, without its proxies: about three times faster. What it does not
understand it refuses with a reason (`NotLogged`); the joint export is the reference, and takes those steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.nn.utils import stateless
from torch.utils._python_dispatch import _correct_storage_aliasing, get_alias_info, return_and_correct_aliasing

from remat.exec._torch.joint import DECOMPOSED, Correction, Joint, corrections, eager_kernels, lists_of_items, unseen_refused
from remat.exec._torch.late_numbers import compared_late
from remat.exec._torch.torch_private import flatten

_MULTIPLE = (tuple, list)
_FUNCTIONALIZE = torch._C.DispatchKey.Functionalize
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_KINDS = {torch.Tensor, FakeTensor, FunctionalTensor}
_DEVICE = torch.ops.prim.device.default


class NotLogged(Exception):
    """A step that the log does not stand for; the message says why."""


class _Functional(FunctionalTensorMode):
    """Torch's functional mode, with a short way for the operations that need nothing special."""

    def __init__(self, log: Log) -> None:
        super().__init__(_allow_token_discovery=True)
        self.log = log
        self._plain: dict[Any, tuple[bool, Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = self._plain.get(func)
        if plain is None:
            plain = self._plain[func] = _is_plain(func)
        if not plain[0] or not _KINDS.issuperset(types):
            return super().__torch_dispatch__(func, types, args, kwargs)
        include = torch._C._dispatch_tls_local_include_set() | torch._C.DispatchKeySet(_FUNCTIONALIZE)
        exclude = (
            torch._C._dispatch_tls_local_exclude_set().remove(_FUNCTIONALIZE) - FunctionalTensor._extra_dispatch_keys
        )
        with torch._C._ForceDispatchKeyGuard(include, exclude):
            try:
                before = torch._functionalize_enable_reapply_views(True)
                self._sync_view_replay_annotations(args, kwargs)
                inner = [_unwrapped(value) for value in args]
                result = func._op_dk(
                    _FUNCTIONALIZE, *inner, **{name: _unwrapped(value) for name, value in (kwargs or {}).items()}
                )
                result = self._wrapped(result)
            finally:
                torch._disable_functionalization()
                torch._functionalize_enable_reapply_views(before)
        if plain[1] is None:
            return result
        if not any(type(item) is FunctionalTensor for item in flatten(result)[0]):
            return result
        return return_and_correct_aliasing(func, args, kwargs or {}, result)

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return FunctionalTensor(value, self) if torch._is_functional_tensor(value) else value
        if isinstance(value, _MULTIPLE):
            return type(value)([self._wrapped(item) for item in value])
        return value

    def _sync_view_replay_annotations(self, args: Any, kwargs: Any) -> None:
        """Bring what an operation reads up to date, each view under the name of the operation that it stems from."""
        for value in args:
            if type(value) is FunctionalTensor:
                self._sync(value)
            elif isinstance(value, _MULTIPLE):
                for item in value:
                    if type(item) is FunctionalTensor:
                        self._sync(item)
        for value in (kwargs or {}).values():
            if type(value) is FunctionalTensor:
                self._sync(value)

    def _sync(self, tensor: FunctionalTensor) -> None:
        self.log.replayed = torch._from_functional_tensor(tensor.elem)
        torch._sync(tensor)
        self.log.replayed = None


def _unwrapped(value: Any) -> Any:
    if type(value) is FunctionalTensor:
        return value.elem
    if type(value) is list or type(value) is tuple:
        return [_unwrapped(item) for item in value]
    return value


def _is_plain(func: Any) -> tuple[bool, Any]:
    """Whether the short way does for an operation, and what it aliases; None: nothing."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func in FunctionalTensor.metadata_fns:
        return False, None
    name = func.name()
    composite = _COMPOSITE in func.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)
    if composite or not torch._C._dispatch_has_kernel(name) or torch.Tag.inplace_view in func.tags:
        return False, None
    if func is torch.ops.aten.lift_fresh.default:
        return False, None
    info = get_alias_info(func)
    aliases = bool(info.read_only_alias_match_indexes) or info.outs_write_aliases is not None
    return True, info if aliases else None


def _same(ours: Any, theirs: Any) -> bool:
    """Whether two arguments are the same, tensors by identity."""
    if ours is theirs:
        return True
    kind = type(ours)
    if kind is not type(theirs):
        return False
    if kind is list or kind is tuple:
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if kind is dict:
        return ours.keys() == theirs.keys() and all(_same(ours[name], theirs[name]) for name in ours)
    if issubclass(kind, torch.Tensor):
        return False
    return bool(ours == theirs)


class Log:
    """What reaches the fake tensors, as a graph."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.nodes: dict[int, torch.fx.Node] = {}
        self.kept: list[Any] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.depth = 0
        self.on = False
        self.first: list[tuple[Any, Any, Any, Any]] | None = None
        self.at = 0
        self.recording = False
        self.replayed: torch.Tensor | None = None
        self.finished: int | None = None
        self.backward = False
        self.scopes: dict[int | None, Any] = {}

    def placeholder(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = tensor
        self.nodes.setdefault(id(tensor), node)
        self.kept.append(tensor)
        return node

    def again(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the first pass made of the same call at this place; None: this is another call."""
        if self.graph is None or self.first is None or self.at < 0:
            return None
        if self.at < len(self.first):
            other, theirs, named, result = self.first[self.at]
            if func is other and _same(args, theirs) and _same(kwargs, named):
                self.at += 1
                return result
        self.at = -1
        return None

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Write down an operation."""
        if self.recording:
            if func.namespace != "prim":
                self.first.append((func, args, kwargs, result))
            return
        if not isinstance(func, OpOverload):
            raise NotLogged(f"{func} is no operation of ATen")
        if func.namespace == "prim":
            return
        if func is torch.ops.aten.lift_fresh.default:
            func = torch.ops.aten.lift_fresh_copy.default
        arguments = tuple([self._argument(value) for value in args])
        named = {name: self._argument(value) for name, value in kwargs.items()}
        node = self.graph.create_node(
            "call_function", func, arguments, named, name=self.graph._target_to_str(func.overloadpacket.__name__)
        )
        self._describe(node, result)
        if isinstance(result, torch.Tensor):
            self.nodes[id(result)] = node
        elif isinstance(result, _MULTIPLE):
            import operator

            for at, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    part = self.graph.create_node("call_function", operator.getitem, (node, at), {})
                    part.meta = {**node.meta, "val": item}
                    self.nodes[id(item)] = part
        self.kept.append(result)

    def _describe(self, node: torch.fx.Node, result: Any) -> None:
        meta = node.meta
        meta["val"] = result
        number = torch.autograd._get_sequence_nr() - 1
        custom = dict(fx_traceback.get_current_meta().get("custom") or {})
        if self.backward:
            meta["partitioner_tag"] = "is_backward"
            current = torch._C._current_autograd_node()
            if current is not None and current._sequence_nr() != self.finished:
                number = current._sequence_nr()
                custom = self.scopes.get(number, custom)
        else:
            self.scopes.setdefault(number, custom)
        origin = None if self.replayed is None else self.nodes.get(id(self.replayed))
        if origin is not None:
            number, custom = origin.meta.get("seq_nr", number), origin.meta.get("custom", custom)
        meta["seq_nr"] = number
        meta["custom"] = custom

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = self.nodes.get(id(value))
            if node is None:
                node = self._constant(value)
            return node
        if isinstance(value, _MULTIPLE):
            return type(value)([self._argument(item) for item in value])
        return value

    def _constant(self, tensor: torch.Tensor) -> torch.fx.Node:
        if isinstance(tensor, FakeTensor):
            raise NotLogged("a tensor without memory comes from outside the trace")
        name = f"_tensor_constant{len(self.constants)}"
        self.constants[name] = tensor
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = tensor
        self.nodes[id(tensor)] = node
        self.kept.append(tensor)
        return node


def log_joint(module: nn.Module, args: tuple[torch.Tensor, ...], correction: Correction | None = None) -> Joint:
    """Trace as `export_joint` does, by a log."""
    from torch._dynamo.utils import _disable_saved_tensors_hooks_during_tracing

    log = Log()
    taken = (*DECOMPOSED, "matmul") if correction is None else (*DECOMPOSED, "matmul", "dropout")
    with (
        enable_python_dispatcher(),
        eager_kernels(taken),
        fx_traceback.preserve_node_meta(),
        lists_of_items(),
        compared_late(),
        unseen_refused(),
        corrections(correction, log),
        torch.autograd.set_multithreading_enabled(False),
        _disable_saved_tensors_hooks_during_tracing(),
        torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_FUNCTIONALIZE)),
    ):
        names = [("param", name) for name, _ in module.named_parameters(remove_duplicate=False)]
        names += [("buffer", name) for name, _ in module.named_buffers(remove_duplicate=False)]
        real = [tensor for _, tensor in module.named_parameters(remove_duplicate=False)]
        real += [tensor for _, tensor in module.named_buffers(remove_duplicate=False)]
        mode = detect_fake_mode((*real, *args)) or FakeTensorMode()
        roles: list[tuple[str, Any]] = [*names, *(("input", at) for at in range(len(args)))]
        with mode:
            return _Run(log, module, names, roles).joint(_faked(mode, [*real, *args]))


def _faked(mode: FakeTensorMode, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [
        tensor if isinstance(tensor, FakeTensor) and tensor.fake_mode is mode else mode.from_tensor(tensor)
        for tensor in tensors
    ]


class _Run:
    def __init__(self, log: Log, module: nn.Module, names: list[Any], roles: list[Any]) -> None:
        self.log = log
        self.module = module
        self.names = names
        self.roles = roles

    def call(self, *flat: Any) -> Any:
        count = len(self.names)
        state = {name: tensor for (_, name), tensor in zip(self.names, flat[:count], strict=True)}
        with stateless._reparametrize_module(self.module, state):
            self.log.on = True
            try:
                return list(self.module(*flat[count:]))
            finally:
                self.log.on = not self.log.recording

    def joint(self, fakes: list[torch.Tensor]) -> Joint:
        """The graph."""
        from torch._functorch._aot_autograd.collect_metadata_analysis import run_functionalized_fw_and_collect_metadata
        from torch._functorch._aot_autograd.descriptors import PlainAOTInput

        descs: Any = [PlainAOTInput(at) for at in range(len(fakes))]
        fakes = self._apart(fakes)
        with _Functional(self.log):
            self.log.recording, self.log.first = True, []
            meta = run_functionalized_fw_and_collect_metadata(
                self.call, flat_args_descs=descs, keep_input_mutations=False
            )(*fakes)
        plain = {"non_alias", "unsafe_view_alias", "custom_function_view"}
        aliased = frozenset(i for i, info in enumerate(meta.output_info) if info.output_type.name not in plain)
        if aliased:
            return Joint(torch.fx.Graph(), {}, (), (), aliased)
        self._check(meta, fakes)
        return self._trace(meta, fakes)

    def _apart(self, fakes: list[torch.Tensor]) -> list[torch.Tensor]:
        """Arguments that are given twice are two leaves; a tied parameter is one."""
        seen: set[int] = set()
        result = []
        for (kind, _), fake in zip(self.roles, fakes, strict=True):
            if id(fake) in seen and kind != "param":
                fake = fake.detach().requires_grad_(fake.requires_grad)
            seen.add(id(fake))
            result.append(fake)
        return result

    def _check(self, meta: Any, fakes: list[torch.Tensor]) -> None:
        if meta.tokens:
            raise NotLogged("an operation has side effects")
        if meta.grad_enabled_mutation is not None:
            raise NotLogged("the forward switches gradients on or off")
        keys: dict[int, int] = {}
        for info, fake in zip(meta.input_info, fakes, strict=True):
            key = fake.untyped_storage()._cdata
            keys[key] = keys.get(key, 0) + 1
        for info, fake, role in zip(meta.input_info, fakes, self.roles, strict=True):
            if info.mutates_metadata or info.mutates_storage_metadata or info.mutation_inductor_storage_resize:
                raise NotLogged(f"the forward changes the form of {role}")
            if info.mutates_data and info.requires_grad:
                raise NotLogged(f"the forward writes {role}, which requires a gradient")
            if info.mutates_data and keys[fake.untyped_storage()._cdata] > 1:
                raise NotLogged(f"the forward writes {role}, which shares its memory")

    def _trace(self, meta: Any, fakes: list[torch.Tensor]) -> Joint:
        log = self.log
        tangents = [
            torch.empty_strided(form.shape, form.stride(), dtype=form.dtype, device=form.device)
            for form in meta.traced_tangents
        ]
        for at, fake in enumerate(fakes, start=1):
            log.placeholder(f"primals_{at}", fake)
        log.nodes.pop(-1, None)
        for at, tangent in enumerate(tangents, start=1):
            log.placeholder(f"tangents_{at}", tangent)
        inputs = (*self.roles, *(("tangent", ("output", desc.output.idx)) for desc in meta.traced_tangents_descs))
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            with _Functional(log):
                memo: dict[int, Any] = {}
                primals = []
                for fake in fakes:
                    if id(fake) not in memo:
                        memo[id(fake)] = FunctionalTensor.to_functional(fake)
                    primals.append(memo[id(fake)])
                towards = [FunctionalTensor.to_functional(tangent) for tangent in tangents]
                log.recording = False
                outs = self.call(*primals)
                for primal in primals:
                    torch._sync(primal)
                updates = [at for at, info in enumerate(meta.input_info) if info.mutates_data]
                written = [_inner(primals[at]) for at in updates]
                needed = [out for out, info in zip(outs, meta.output_info, strict=True) if info.requires_grad_for_backward]
                if len(needed) != len(towards):
                    raise NotLogged("other outputs require a gradient than in the first pass")
                counters = [torch._functionalize_mutation_counter(primal.elem) for primal in primals]
                trained = {id(primal): primal for primal in primals if primal.requires_grad}
                grads: dict[int, Any] = {}
                if trained and needed:
                    log.backward = True
                    self._watch(needed)
                    with _no_autocast():
                        made = torch.autograd.grad(needed, list(trained.values()), towards, allow_unused=True)
                    grads = dict(zip(trained, made, strict=True))
                    log.backward = False
                results = [_inner(out) for out in outs]
                gradients = {key: None if grad is None else _inner(grad) for key, grad in grads.items()}
                for primal in (*primals, *towards):
                    torch._sync(primal)
                after = [torch._functionalize_mutation_counter(primal.elem) for primal in primals]
                log.on = False
                if counters != after:
                    raise NotLogged("the backward writes an input")
        finally:
            torch.set_autocast_cache_enabled(cached)
            log.on = False
        ends: list[Any] = [log._argument(value) for value in (*written, *results)]
        outputs: list[Any] = [*(("update", self.roles[at]) for at in updates), *(("output", at) for at in range(len(outs)))]
        for role, primal in zip(self.roles, primals, strict=True):
            gradient = gradients.pop(id(primal), None)
            ends.append(None if gradient is None else log._argument(gradient))
            outputs.append(("grad", role))
        log.graph.output(tuple(ends))
        log.graph.eliminate_dead_code()
        return Joint(log.graph, log.constants, inputs, tuple(outputs), frozenset())


    def _watch(self, roots: list[torch.Tensor]) -> None:
        """Know when a node of autograd has ended: what runs then adds gradients, and belongs to no operation."""
        stack = [root.grad_fn for root in roots]
        seen: set[Any] = set(stack)
        while stack:
            node = stack.pop()
            if node is None:
                continue
            node.register_hook(partial(self._end, node._sequence_nr()))
            for inner, _ in node.next_functions:
                if inner is not None and inner not in seen and inner.next_functions:
                    seen.add(inner)
                    stack.append(inner)

    def _end(self, number: int, *_gradients: Any) -> None:
        self.log.finished = number


def _inner(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, FunctionalTensor):
        return tensor
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor.elem)


@contextmanager
def _no_autocast() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in torch._C._autocast_supported_devices():
            if hasattr(torch, kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
