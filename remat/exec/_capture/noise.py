"""Dropout as eager runs it on the CPU, with a mask of one byte an element that a plan may keep in place of the noise.

Eager draws `noise = empty_like(x).bernoulli_(1 - p).div_(1 - p)` and keeps the noise, in the type of `x`, for the backward. Here
the draw and the noise are two operations, and the noise is recomputed from the mask to the last bit: a plan that keeps everything
keeps what eager does, and one that saves memory keeps the mask. See docs/decisions/0013-dropout-as-eager-draws-it.md.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve

from remat.exec._capture.draft import Draft
from remat.exec._program.kernels import drawn, drawn_mask, noise_of
from remat.exec._program.program import Op, Ref, Spec

_EMPTY, _DRAW, _SCALE = "aten.empty_like.default", "aten.bernoulli.p", "aten.div.Scalar"


def keep_masks(draft: Draft) -> None:
    """Draw in place what eager draws in place, and the masks of dropout apart from its noise; changes the draft."""
    readers: dict[str, list[Op]] = {}
    for op in draft.ops:
        for name in op.reads:
            readers.setdefault(name, []).append(op)
    ended = set(draft.ends.values())
    for empty in [op for op in draft.ops if str(op.target) == _EMPTY]:
        draw = _only(empty, _DRAW, readers, ended)
        if draw is None:
            continue
        scale = _only(draw, _SCALE, readers, ended)
        _draw_in_place(draft, empty, draw)
        if scale is not None and draw.args[1:] == scale.args[1:]:
            _split(draft, draw, scale)


def _only(op: Op, target: str, readers: dict[str, list[Op]], ended: set[str]) -> Op | None:
    """The operation of that kind that alone reads the output of `op`, if there is one."""
    (name,) = op.outputs
    reading = readers.get(name or "", [])
    alone = len(reading) == 1 and str(reading[0].target) == target and name not in ended
    return reading[0] if alone else None


def _draw_in_place(draft: Draft, empty: Op, draw: Op) -> None:
    (gone,) = (name for name in empty.outputs if name is not None)
    spec = draft.values[gone].spec
    _replace(draft, draw, evolve(draw, target=drawn, args=(*_arguments(spec), draw.args[1]), kwargs={}))
    draft.ops.remove(empty)
    del draft.storages[draft.values.pop(gone).storage]


def _split(draft: Draft, draw: Op, scale: Op) -> None:
    (mask,) = (name for name in draw.outputs if name is not None)
    value, keep = draft.values[mask], draw.args[1]
    spec = value.spec
    at = next(op for op in draft.ops if op.name == draw.name)
    _replace(draft, draw, evolve(at, target=drawn_mask))
    _replace(draft, scale, evolve(scale, target=noise_of, args=(Ref(mask), spec.dtype, keep)))
    draft.values[mask] = evolve(value, spec=evolve(spec, dtype=torch.bool))
    draft.storages[value.storage] = evolve(draft.storages[value.storage], size=spec.numel)


def _replace(draft: Draft, old: Op, new: Op) -> None:
    at = next(place for place, op in enumerate(draft.ops) if op.name == old.name)
    draft.ops[at] = new


def _arguments(spec: Spec) -> tuple[Any, ...]:
    return spec.shape, spec.stride, spec.dtype, spec.device
