"""Inputs to try an operation on: tensors of the shapes, strides and types of the trace, whose integers index what there is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from remat.exec._program.program import Op, Program, Ref, Spec, refs
from remat.exec._program.signatures import underlying
from remat.exec._torch.wrappers import with_bits
from remat.units import Bytes


def made_inputs(program: Program, op: Op, generator: torch.Generator | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for one call of an operation, with tensors made for it; without a generator, of numbers that are all the same."""
    counter = iter(range(1 << 30))

    def build(tree: Any) -> Any:
        if isinstance(tree, Ref):
            position = next(counter)
            spec = program.values[tree.name].spec
            if (chosen := _chosen(program, op, position)) is not None:
                return _mask(spec, chosen)
            if (extents := _extents(program, op, position)) is not None:
                return torch.tensor(extents, dtype=spec.dtype, device=spec.device).as_strided(spec.shape, spec.stride)
            tensor = make(spec, index_limit(program, op, position), generator, underlying(program, op, tree.name))
            # pivots of a factorization count from one
            return tensor.add_(1) if "lu_" in str(op.target) and spec.dtype is torch.int32 else tensor
        if isinstance(tree, (list, tuple)):
            return type(tree)(build(item) for item in tree)
        return tree

    return tuple(build(arg) for arg in op.args), {key: build(arg) for key, arg in op.kwargs.items()}


def _chosen(program: Program, op: Op, position: int) -> int | None:
    """How many places a mask must choose for as many values as there are; None: the argument is no such mask."""
    name = str(op.target).removeprefix("aten.").partition(".")[0]
    if name in ("masked_scatter", "masked_scatter_backward") and position == 1:
        into, mask, source = (program.values[arg.name].spec.shape if isinstance(arg, Ref) else arg for arg in op.args)
        repeated = math.prod(into) // max(1, math.prod(mask))  # the mask is broadcast
        return math.prod(source) // max(1, repeated)
    return _chosen_by_index(program, op, position) if name == "index_put" else None


def _chosen_by_index(program: Program, op: Op, position: int) -> int | None:
    """The same for a mask among the indices of `index_put`."""
    indices, values = op.args[1], program.values[op.args[2].name].spec.shape
    at = [place for place, index in enumerate(indices) if index is not None]
    if not 0 < position <= len(at):
        return None
    index = program.values[indices[at[position - 1]].name].spec
    if index.dtype is not torch.bool:
        return None
    trailing = len(program.values[op.args[0].name].spec.shape) - at[position - 1] - len(index.shape)
    return values[-1 - trailing] if trailing < len(values) else 1


def _extents(program: Program, op: Op, position: int) -> list[int] | None:
    """Integers that say how far groups or sequences reach, as far as they may; None: the argument is none of these."""
    name = str(op.target).removeprefix("aten.").partition(".")[0]
    specs = [program.values[ref.name].spec for ref in refs((op.args, op.kwargs))]
    count = math.prod(specs[position].shape)
    if name == "_grouped_mm" and position == 2:
        reach = _grouped_extent(specs[0].shape, specs[1].shape)
        return [reach * (group + 1) // count for group in range(count)]
    if name == "_ctc_loss" and position in (2, 3):
        time, states = specs[0].shape[0], program.values[str(op.outputs[1])].spec.shape[-1]
        return [time if position == 2 else states // 2] * count
    if name == "_ctc_loss_backward" and position in (3, 4):
        time, states = specs[1].shape[0], specs[6].shape[-1]
        return [time if position == 3 else states // 2] * count
    return None


def _mask(spec: Spec, chosen: int) -> torch.Tensor:
    """A mask whose first entries are set."""
    mask = torch.zeros(spec.shape, dtype=torch.bool, device=spec.device)
    mask.view(-1)[:chosen] = True
    return mask


_BLOCK = (
    1 << 16
)  # random numbers drawn for one tensor; a larger one repeats them, as drawing takes longer than most operations


def make(spec: Spec, limit: int, generator: torch.Generator | None, storage: Bytes = 0) -> torch.Tensor:
    """A tensor of that spec, in at least that much storage: floats in [0.05, 1), indices below `limit`, flags mostly set.

    Without a generator floats are a half, indices zero and flags set.
    """
    count = max(spec.extent, storage) // spec.dtype.itemsize
    if generator is None:
        plain = 0.5 if spec.dtype.is_floating_point or spec.dtype.is_complex else int(spec.dtype is torch.bool)
        flat = torch.full((count,), plain, dtype=spec.dtype, device=spec.device)
        return with_bits(flat.as_strided(spec.shape, spec.stride), *spec.bits)
    kwargs: dict[str, Any] = {
        "device": spec.device,
        "generator": generator if spec.device == generator.device else None,
    }
    if spec.dtype is torch.bool:
        flat = _repeated(torch.rand(min(count, _BLOCK), **kwargs) < 0.9, count)
    elif spec.dtype.is_complex:
        flat = torch.randn(count, dtype=spec.dtype, **kwargs)
    elif spec.dtype.is_floating_point:
        flat = _repeated(torch.rand(min(count, _BLOCK), **kwargs).mul_(0.95).add_(0.05).to(spec.dtype), count)
    else:
        flat = torch.randint(max(limit, 1), (count,), **kwargs).to(spec.dtype)
    return with_bits(flat.as_strided(spec.shape, spec.stride), *spec.bits)


def _repeated(block: torch.Tensor, count: int) -> torch.Tensor:
    """`count` elements: those of the block, again and again, in memory of their own."""
    if count == len(block):
        return block
    flat = torch.empty(count, dtype=block.dtype, device=block.device)
    whole = count // len(block) * len(block)
    flat[:whole].view(-1, len(block)).copy_(block)
    flat[whole:].copy_(block[: count - whole])
    return flat


def index_limit(program: Program, op: Op, position: int) -> int:
    """How far the integers of the tensor argument number `position` may go: what they index, else 1 (all zeros)."""
    name = str(op.target).removeprefix("aten.").partition(".")[0]
    specs = [program.values[ref.name].spec for ref in refs((op.args, op.kwargs))]
    shape = specs[0].shape
    if name == "embedding":
        return shape[0]
    if name == "embedding_dense_backward":
        return int(op.args[2])
    if name.startswith("nll_loss"):
        return _classes(specs[1].shape if "backward" in name else shape)
    if name in ("gather", "scatter", "scatter_add", "index_select", "index_add", "scatter_reduce"):
        return shape[int(op.args[1])] if shape else 1
    if name in ("index", "index_put", "_unsafe_index", "_unsafe_index_put"):
        return _indexed(shape, op.args[1], position)
    return _pooled(specs[1].shape) if _unpools(name) else 1


def _pooled(shape: Sequence[int]) -> int:
    """Places of an image that the indices of a pooling may name."""
    return max(1, shape[-1] * shape[-2]) if len(shape) > 2 else 1


def _indexed(shape: Sequence[int], indices: Sequence[object], position: int) -> int:
    """The extent of the dimension that the index at a position of the tensor arguments is for; 1 for the other arguments."""
    places = [at for at, index in enumerate(indices) if index is not None]
    return shape[places[position - 1]] if 0 < position <= len(places) else 1


def _classes(scores: Sequence[int]) -> int:
    """How many classes there are scores of: they are the second dimension, or the only one."""
    return scores[:2][-1]


def _unpools(name: str) -> bool:
    """Whether an operation sends gradients back through a pooling that gave its indices."""
    return "with_indices" in name and "backward" in name


def _grouped_extent(left: Sequence[int], right: Sequence[int]) -> int:
    """How long the dimension is that a grouped product divides into groups."""
    if len(left) == 3:
        return right[1]
    return left[0] if len(right) == 3 else left[1]
