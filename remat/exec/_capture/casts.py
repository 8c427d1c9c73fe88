"""Under autocast, one cast of a weight for all its uses.

Eager casts a leaf once per autocast region, keeps the cast, and adds the gradients of its uses in the lower precision, in the
order they arrive; then it casts the sum. The tracer casts the leaf for each use and adds in the leaf's own precision. Here the
trace is made into what eager does. Casts that the user's code makes are not kept, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import torch
from attrs import evolve

from remat.exec._capture.draft import Draft
from remat.exec._program.program import Op, Ref, Role, Storage, Value
from remat.ir import Phase

_CAST = "aten._to_copy.default"
_ADD = "aten.add.Tensor"


def share_casts(draft: Draft, keeps_casts: Callable[[tuple[str, Any]], bool]) -> tuple[int, ...]:
    """Make one cast of several casts of a leaf in one autocast region, forward and backward.

    Args:
        draft: of a step; it is changed.
        keeps_casts: whether eager keeps casts of that tensor from outside: it does for leaves.

    Returns:
        positions of the inputs that were asked about.
    """
    groups: dict[tuple[str, int], list[Op]] = {}
    trained = {draft.inputs[source]: source for source, _ in draft.ended("grad")}
    for op in draft.ops:
        if op.region is not None and op.phase is Phase.FORWARD and op.reads[0] in trained:
            groups.setdefault((op.reads[0], op.region), []).append(op)
    positions: dict[int, None] = {}
    for (leaf, _), casts in groups.items():
        if len(casts) == 1:
            continue
        kind, about = trained[leaf]
        if kind == "input":
            positions[about] = None
        if keeps_casts(trained[leaf]):
            _share_gradients(draft, leaf, casts)
            _share_values(draft, casts)
    return tuple(positions)


def _share_values(draft: Draft, casts: list[Op]) -> None:
    first, *others = casts
    (shared,) = filter(None, first.outputs)
    storage = draft.values[shared].storage
    for op in others:
        (name,) = filter(None, op.outputs)
        gone = draft.values.pop(name).storage
        del draft.storages[gone]
        draft.ops.remove(op)
        draft.ops[:] = [_renamed(reader, name, shared) for reader in draft.ops]
        for value in [value for value in draft.values.values() if value.storage == gone]:
            draft.values[value.name] = evolve(value, storage=storage)
        draft.ends.update({end: shared for end, ended in draft.ends.items() if ended == name})


def _renamed(op: Op, old: str, new: str) -> Op:
    def swap(tree: Any) -> Any:
        if tree == Ref(old):
            return Ref(new)
        if isinstance(tree, (tuple, list)):
            return type(tree)(swap(item) for item in tree)
        if isinstance(tree, dict):
            return {key: swap(item) for key, item in tree.items()}
        return tree

    return evolve(op, args=swap(op.args), kwargs=swap(op.kwargs)) if old in op.reads else op


def _remove(draft: Draft, ops: list[Op]) -> None:
    draft.ops[:] = [op for op in draft.ops if op not in ops]
    for op in ops:
        _forget(draft, op)


def _resummed(draft: Draft, makers: Mapping[str, Op], leaves: list[str], returned: set[str]) -> str:
    """The sum of the leaves, those that casts returned added before they are cast; returns its name."""
    at = {op.name: place for place, op in enumerate(draft.ops)}
    order = sorted(leaves, key=lambda name: at[makers[name].name])
    back = [makers[name] for name in returned]
    total = _added(draft, [op.args[0].name for op in sorted(back, key=lambda op: at[op.name])], back)
    return reduce(partial(_sum, draft), [name for name in order if name not in returned or name == total])


def _returned(makers: Mapping[str, Op], numbers: set[int | None]) -> set[str]:
    """The values that casts of the backward with these numbers make."""
    casts = {name: op for name, op in makers.items() if op.phase is Phase.BACKWARD and str(op.target) == _CAST}
    return {name for name, op in casts.items() if op.sequence in numbers}


def _share_gradients(draft: Draft, leaf: str, casts: list[Op]) -> None:
    """Add the gradients of the casts first, in the order they are made, and cast the sum."""
    makers = {name: op for op in draft.ops for name in op.outputs if name is not None}
    returned = _returned(makers, {op.sequence for op in casts})
    sources = [source for source, _ in draft.ended("grad") if draft.inputs[source] == leaf]
    leaves: list[str] = []
    sums: list[Op] = []
    for source in sources:
        _collect(draft.ends["grad", source], makers, returned, leaves, sums)
    # An operation under no_grad has the number of the next one, so that more may have been returned than gradients of this leaf.
    returned.intersection_update(leaves)
    if len(returned) < 2:
        return
    end = _resummed(draft, makers, leaves, returned)
    _remove(draft, sums)
    for source in sources[1:]:
        del draft.ends["grad", source]
    draft.ends["grad", sources[0]] = end


def _collect(name: str, makers: dict[str, Op], returned: set[str], leaves: list[str], sums: list[Op]) -> bool:
    """Walk down the sums of a gradient to the terms; whether a cast is among them."""
    op = makers.get(name)
    if op is not None and str(op.target) == _ADD and not op.kwargs:
        terms: list[str] = []
        inner: list[Op] = []
        casts = [_collect(ref.name, makers, returned, terms, inner) for ref in op.args if isinstance(ref, Ref)]
        if any(casts):
            leaves += terms
            sums += [*inner, op]
            return True
    leaves.append(name)
    return name in returned


def _added(draft: Draft, gradients: list[str], back: list[Op]) -> str:
    """The sum of gradients of the lower precision, cast by the last of the casts there were; its name."""
    *others, last = sorted(back, key=draft.ops.index)
    total = gradients[0]
    for name in gradients[1:]:
        total = _sum(draft, total, name)
    for op in others:
        _forget(draft, op)
    for op in back:
        draft.ops.remove(op)
    draft.ops.insert(_after(draft, (total,)), evolve(last, args=(Ref(total), *last.args[1:])))
    (result,) = (name for name in last.outputs if name is not None)
    return result


def _sum(draft: Draft, first: str, second: str) -> str:
    spec = draft.values[first].spec
    name = f"{first}_and_{second}"
    draft.values[name] = Value(name=name, spec=spec, storage=f"{name}.out")
    draft.storages[f"{name}.out"] = Storage(name=f"{name}.out", size=spec.extent, roots=(name,))
    add = Op(
        name=name, role=Role.CALL, target=torch.ops.aten.add.Tensor, args=(Ref(first), Ref(second)), outputs=(name,),
        phase=Phase.BACKWARD,
    )  # fmt: skip
    draft.ops.insert(_after(draft, (first, second)), add)
    return name


def _after(draft: Draft, names: tuple[str, ...]) -> int:
    return 1 + max(place for place, op in enumerate(draft.ops) if not set(names).isdisjoint(op.outputs))


def _forget(draft: Draft, op: Op) -> None:
    for name in op.outputs:
        if name is not None:
            draft.storages.pop(draft.values.pop(name).storage, None)
