"""What a joint trace leaves implicit, written out as operations, so that the graph charges it and a plan can see it.

In order: dead operations are removed; gradients get storages of their own in the layout that autograd accumulates without a copy;
buffers are written once, and operations that would read the old value after the write read a copy; generator states are saved
before each operation that draws; the loss stands between forward and backward and makes the tangents.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from attrs import evolve

from remat.errors import Uncapturable
from remat.exec._capture.draft import Draft
from remat.exec._program.kernels import copy_to_layout, write_unseen
from remat.exec._program.program import Op, Program, Ref, Role, Spec
from remat.exec._torch.rng import state_bytes
from remat.ir import Phase

LOSS = "loss"

_STATISTICS = {
    "aten._native_batch_norm_legit_functional.default": (3, 4, 5),
    "aten._batch_norm_with_update_functional.default": (3, 4, None),
    "remat.cudnn_batch_norm.default": (3, 4, 5),
}
"""Batch normalisation in training: positions of the running statistics, which only the updated statistics depend on, and of the
training flag (None: always training). A replay that finds them already updated computes the same output."""


def _used_storages(draft: Draft, ops: Iterable[Op]) -> set[str]:
    """Names of the memory that operations touch, and of the inputs'."""
    touched = {name for op in ops for name in (*op.reads, *_named(op))}
    return {draft.values[value].storage for value in touched.union(draft.inputs.values())}


def _by_value(roles: Iterable[tuple[Any, str]]) -> tuple[tuple[str, Any], ...]:
    return tuple((value, about) for about, value in roles)


def finish(draft: Draft, *, name: str) -> Program:
    """The program of a draft."""
    grads = _gradients(draft)
    _write_what_is_copied(draft)
    ops = _alive(draft, set(grads.values()))
    ops, updates = _write_once(draft, ops)
    ops = _save_states(draft, ops)
    outputs = tuple(value for _, value in sorted(draft.ended("output")))
    tangents = _by_value(draft.of("tangent"))
    scope = Op(
        name=LOSS, role=Role.LOSS, target=None, outputs=tuple(value for value, _ in tangents), phase=Phase.LOSS,
        needs=tuple(dict.fromkeys(outputs)),
    )  # fmt: skip
    forward = [op for op in ops if op.phase is Phase.FORWARD]
    backward = [op for op in ops if op.phase is Phase.BACKWARD]
    ordered = _renumber(draft, (*forward, scope, *backward))
    used = _used_storages(draft, ordered)
    return Program(
        name=name,
        ops=ordered,
        values=draft.values,
        storages={key: storage for key, storage in draft.storages.items() if key in used},
        params=tuple({value: (value, path) for path, value in reversed(draft.of("param"))}.values())[::-1],
        buffers=_by_value(draft.of("buffer")),
        inputs=_by_value(draft.of("input")),
        constants=draft.constants,
        outputs=outputs,
        tangents=tangents,
        grads=grads,
        updates=updates,
        device=draft.device,
    )


def _named(op: Op) -> tuple[str, ...]:
    return tuple(name for name in op.outputs if name is not None)


def _renumber(draft: Draft, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Point each view at the place of its operation."""
    for at, op in enumerate(ops):
        if op.role is Role.VIEW:
            for value in _named(op):
                draft.values[value] = evolve(draft.values[value], view=at)
    return ops


def _gradients(draft: Draft) -> dict[tuple[str, Any], str]:
    """Give each gradient that needs it a copy: one storage each, in its parameter's layout.

    Autograd keeps a gradient as it is if its strides are the parameter's and nothing else refers to it; else it makes a copy
    while all gradients are alive, which no plan would have charged.
    """
    grads: dict[tuple[str, Any], str] = {}
    taken: set[str] = set()
    for source, value in _summed(draft):
        gradient = draft.values[value]
        storage = draft.storages[gradient.storage]
        target = draft.values[draft.inputs[source]].spec
        shared = storage.outside or gradient.storage in taken or gradient.storage.startswith("tangent:")
        shared = shared or any(draft.values[name].storage == gradient.storage for _, name in draft.ended("output"))
        if shared or (source[0] == "param" and not fits_layout(gradient.spec, target)):
            value = _copy_gradient(draft, value, target)
        taken.add(draft.values[value].storage)
        grads[source] = value
    return grads


def _summed(draft: Draft) -> list[tuple[tuple[str, Any], str]]:
    """One gradient per primal: those of a tied parameter are added, in the order the backward makes them."""
    places = {value: at for at, op in enumerate(draft.ops) for value in op.outputs if value is not None}
    parts: dict[str, list[tuple[tuple[str, Any], str]]] = {}
    for source, value in draft.ended("grad"):
        parts.setdefault(draft.inputs[source], []).append((source, value))
    named = {value: source for source, value in reversed(draft.inputs.items())}
    summed = []
    for primal, items in parts.items():
        target = draft.values[primal].spec
        source, total = named[primal], ""
        for _, value in sorted(items, key=lambda item: places.get(item[1], -1)):
            total = value if not total else _add(draft, total, value, target)
        summed.append((source, total))
    return summed


def _add(draft: Draft, first: str, second: str, target: Spec) -> str:
    if not fits_layout(draft.values[first].spec, target):
        first, second = second, first
    spec = draft.values[first].spec
    name = draft.make(f"{first}_plus_{second}", spec, spec.extent)
    add = Op(
        name=name, role=Role.CALL, target=torch.ops.aten.add.Tensor, args=(Ref(first), Ref(second)), outputs=(name,),
        phase=Phase.BACKWARD,
    )  # fmt: skip
    draft.ops.append(add)
    return name


def fits_layout(spec: Spec, target: Spec) -> bool:
    """Whether autograd keeps a gradient of this layout without a copy, for a parameter of the layout of `target`."""
    wanted = target.stride if _dense(target) else _contiguous(target.shape)
    pairs = zip(spec.shape, spec.stride, wanted, strict=True)
    return all(n == 1 or have == want for n, have, want in pairs)


def _dense(spec: Spec) -> bool:
    dims = sorted((step, n) for n, step in zip(spec.shape, spec.stride, strict=True) if n != 1)
    expected = 1
    for step, n in dims:
        if step != expected:
            return False
        expected *= n
    return True


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def _copy_gradient(draft: Draft, value: str, target: Spec) -> str:
    stride = target.stride if _dense(target) else _contiguous(target.shape)
    spec = Spec(target.shape, stride, draft.values[value].spec.dtype, target.device)
    name = draft.make(f"{value}_laid_out", spec, spec.numel * spec.dtype.itemsize)
    while any(op.name == name for op in draft.ops):
        name = draft.make(f"{name}_", spec, spec.numel * spec.dtype.itemsize)
    makers = [op for op in draft.ops if value in op.outputs]
    copy = Op(
        name=name, role=Role.LAYOUT, target=copy_to_layout, args=(Ref(value), target.shape, stride), outputs=(name,),
        phase=Phase.BACKWARD, scope=makers[0].scope if makers else "",
    )  # fmt: skip
    at = draft.ops.index(makers[0]) + 1 if makers and makers[0].phase is Phase.BACKWARD else len(draft.ops)
    draft.ops.insert(at, copy)
    return name


def _alive(draft: Draft, grads: set[str]) -> list[Op]:
    """The operations that something needs; those that draw stay, because the generator must end where it would."""
    wanted = set(grads) | {value for (kind, _), value in draft.ends.items() if kind in ("output", "update")}
    alive: list[Op] = []
    for op in reversed(draft.ops):
        if op.draws or any(name in wanted for name in _named(op)):
            alive.append(op)
            wanted.update(op.reads)
    alive.reverse()
    return alive


def _write_once(draft: Draft, ops: list[Op]) -> tuple[list[Op], dict[str, str]]:
    """Write each changed buffer (or input) right after its new value is there, and save old values that are read otherwise."""
    updates: dict[str, str] = {}
    for source, value in draft.ended("update"):
        target = draft.inputs[source]
        if draft.values[value].storage == draft.values[target].storage:
            continue
        _check_same_size(source, draft.values[target].spec, draft.values[value].spec)
        ops = _save_old(draft, ops, target, value)
        writer = _writer(draft, target, value, snapshot=any(op.subject == target for op in ops))
        makers = [at for at, op in enumerate(ops) if value in op.outputs]
        ops.insert(makers[0] + 1 if makers else len(ops), writer)
        updates[target] = writer.name
    return ops, updates


def _write_what_is_copied(draft: Draft) -> None:
    """A buffer that becomes a copy of a tensor of its form, which the forward has made, is written from that tensor."""
    copies = {op.name: op for op in draft.ops if op.target is torch.ops.aten.copy.default}
    for (kind, about), value in list(draft.ends.items()):
        copy = copies.get(value) if kind == "update" else None
        source = copy.args[1] if copy is not None else None
        if not isinstance(source, Ref):
            continue
        origin = draft.values[source.name]
        if origin.spec == draft.values[value].spec and not draft.storages[origin.storage].outside:
            draft.ends[kind, about] = source.name


def _check_same_size(source: tuple[str, Any], target: Spec, new: Spec) -> None:
    """Refuse a write that gives a buffer another size, as those of observers get theirs in the first call."""
    if target.shape != new.shape:
        kind, about = source
        what = (
            f"the forward gives the {kind} {about} another size: {list(new.shape)}, where it has {list(target.shape)}."
        )
        raise Uncapturable("X-STATE", what, fix="call the module once (under torch.no_grad()) before you wrap it.")


def _is_statistic(draft: Draft, value: str) -> bool:
    """Whether a value is an updated running statistic: the last two results of a batch norm are."""
    return any(value in op.outputs[-2:] for op in draft.ops if str(op.target) in _STATISTICS)


def _writer(draft: Draft, target: str, value: str, *, snapshot: bool) -> Op:
    marker = draft.make(f"update_{target}", draft.values[target].spec, 0)
    needs = (f"snapshot_{target}",) if snapshot else ()
    write = write_unseen if _is_statistic(draft, value) else torch.ops.aten.copy_.default
    return Op(
        name=marker, role=Role.UPDATE, target=write, args=(Ref(target), Ref(value)),
        outputs=(marker,), run_once=True, subject=target, needs=needs,
    )  # fmt: skip


def _reads_storage(draft: Draft, op: Op, target: str) -> bool:
    """Whether an operation reads the memory of a value; a view only looks at it."""
    storage = draft.values[target].storage
    return op.role is not Role.VIEW and any(draft.values[name].storage == storage for name in op.reads)


def _save_old(draft: Draft, ops: list[Op], target: str, new: str) -> list[Op]:
    """Make readers of a value that will be written safe: run once, harmless, or redirected to a copy made first."""
    result: list[Op] = []
    redirected, once = False, set()
    for op in ops:
        if _reads_storage(draft, op, target) and not _harmless(op, target):
            if op.phase is Phase.FORWARD and _named(op) == (new,) and not _read_elsewhere(ops, op, new):
                # Only the write reads what it makes, so it runs before the write and need never run again.
                op = evolve(op, run_once=True)
                once.add(op.name)
            else:
                redirected = True
        result.append(op)
    if not redirected:
        return result
    copy = Op(
        name=f"snapshot_{target}", role=Role.SNAPSHOT, target=torch.ops.aten.clone.default, args=(Ref(target),),
        outputs=(f"snapshot_{target}",), run_once=True, subject=target,
    )  # fmt: skip
    spec = draft.values[target].spec
    name = draft.make(copy.name, spec, spec.extent)
    moved = [op if op.name in once else _redirect(draft, op, target, name) for op in result]
    return [copy, *moved]


def _harmless(op: Op, target: str) -> bool:
    places = _STATISTICS.get(str(op.target))
    if places is None:
        return False
    first, second, training = places
    if training is not None and op.args[training] is not True:
        return False
    return all(at in (first, second) for at, argument in enumerate(op.args) if argument == Ref(target))


def _read_elsewhere(ops: list[Op], maker: Op, value: str) -> bool:
    return any(value in op.reads for op in ops if op is not maker)


def _redirect(draft: Draft, op: Op, old: str, new: str) -> Op:
    """Read `new` instead of `old`; views of `old` become views of `new`."""
    if old not in op.reads or _harmless(op, old):
        return op
    args, kwargs = (_swap(tree, old, new) for tree in (op.args, op.kwargs))
    if op.role is Role.VIEW:
        _move(draft, op, draft.values[new].storage)
    return evolve(op, args=args, kwargs=kwargs)


def _move(draft: Draft, view: Op, storage: str) -> None:
    """A view and what is made from it now look at another storage."""
    for name in _named(view):
        draft.values[name] = evolve(draft.values[name], storage=storage)
        for op in draft.ops:
            if op.role is Role.VIEW and name in op.reads:
                _move(draft, op, storage)


def _swap(tree: Any, old: str, new: str) -> Any:
    if tree == Ref(old):
        return Ref(new)
    if isinstance(tree, (tuple, list)):
        return type(tree)(_swap(item, old, new) for item in tree)
    if isinstance(tree, dict):
        return {key: _swap(item, old, new) for key, item in tree.items()}
    return tree


def _save_states(draft: Draft, ops: list[Op]) -> list[Op]:
    """Before each forward operation that draws, save the generator's state for a replay; a backward one is never replayed."""
    result: list[Op] = []
    for op in ops:
        if op.draws and op.phase is Phase.BACKWARD:
            op = evolve(op, run_once=True)
        elif op.draws:
            size = state_bytes(draft.device)
            spec = Spec((size,), (1,), torch.uint8, torch.device("cpu"))
            state = draft.make(f"state_{op.name}", spec, size)
            save = Op(
                name=state, role=Role.RNG, target=None, outputs=(state,), draws=True, run_once=True, subject=op.name
            )
            result.append(evolve(save, scope=op.scope))
            op = evolve(op, needs=(*op.needs, state))
        result.append(op)
    return result
