"""Operations that return other bits when they are run again on the same inputs: no plan can recompute these exactly."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen

from remat.exec._cost.measuring import prepared
from remat.exec._program.kernels import no_autocast
from remat.exec._program.program import Op, Program, Role
from remat.exec._program.signatures import signature
from remat.exec._torch import rng
from remat.exec._torch.aside import unprofiled

RUNS = 3


@frozen(kw_only=True)
class Determinism:
    """What came of running each kind of operation several times.

    Attributes:
        varying: the first of each kind whose results differed, in the order of the step.
        counts: how many operations of the step are of the kind of each of these.
        tried: how many kinds were run.
        failed: kinds that do not run on inputs made for them: the first of each.
    """

    varying: tuple[Op, ...]
    counts: tuple[int, ...]
    tried: int
    failed: tuple[Op, ...]


def determinism(program: Program) -> Determinism:
    """Run each kind of operation `RUNS` times on the same inputs, drawing the same numbers, and compare bits.

    The generators are afterwards as before.
    """
    kinds: dict[str, list[Op]] = {}
    for op in program.nodes:
        if op.role not in (Role.LOSS, Role.RNG) and "empty" not in str(op.target):
            kinds.setdefault(signature(program, op), []).append(op)
    verdicts = unprofiled(lambda: {text: _varies(program, ops[0]) for text, ops in kinds.items()})
    varying = [text for text in kinds if verdicts[text]]
    return Determinism(
        varying=tuple(kinds[text][0] for text in varying),
        counts=tuple(len(kinds[text]) for text in varying),
        tried=sum(verdict is not None for verdict in verdicts.values()),
        failed=tuple(kinds[text][0] for text in kinds if verdicts[text] is None),
    )


def _varies(program: Program, op: Op) -> bool | None:
    """Whether results differ; None: it does not run on inputs made for it."""
    with rng.kept(), torch.no_grad(), no_autocast(program.device):
        state = rng.save(program.device)
        results = []
        try:
            for _ in range(RUNS):
                call = prepared(program, op)  # made anew: an operation may write what it reads
                rng.restore(program.device, state)
                results.append(_bits(op, call()))
        except (RuntimeError, IndexError, ValueError):
            return None
    return any(result != results[0] for result in results)


def _bits(op: Op, result: Any) -> list[bytes]:
    """The bits of the outputs that something reads."""
    outputs = zip(op.outputs, result if op.unpack else [result], strict=True)
    tensors = [tensor for name, tensor in outputs if name is not None and isinstance(tensor, torch.Tensor)]
    return [bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()) for tensor in tensors]


__all__ = ["RUNS", "Determinism", "determinism"]
