"""Making a trace agree with the kernels: now and then a kernel returns another type, shape or other strides than its shape
function says, and eager decides by what the kernel returns (whether a reshape copies, which kernel a linear layer takes).

Each kind of operation of a trace runs once on inputs made for it; where what it returns differs, the step is traced again with
that in place of what the shape function said, until nothing differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import define, field

from remat.errors import Uncapturable
from remat.exec._program.inputs import made_inputs
from remat.exec._program.kernels import no_autocast
from remat.exec._program.program import Op, Program, Ref, Role, Spec
from remat.exec._torch import rng, torch_private
from remat.exec._torch.aside import unprofiled
from remat.exec._torch.torch_private import OpOverload

Returned = tuple[Spec | None, ...]
"""What each output of a call is; None where it is no tensor."""

ROUNDS = 5
"""Largest number of traces: correcting one operation changes the inputs of the operations after it."""


@define(eq=False)
class Kernels:
    """What kernels were seen to return, by call.

    Attributes:
        agreeing: calls that return what their shape function says, or that do not run on inputs made for them.
        others: what the other calls return.
        targets: what these call.
    """

    agreeing: set[str] = field(factory=set)
    others: dict[str, Returned] = field(factory=dict)
    targets: set[Any] = field(factory=set)

    def returned(self, target: Any, args: Any, kwargs: Any) -> Returned | None:
        """What a call with these tensors is known to return other than its shape function says."""
        if target not in self.targets:
            return None
        return self.others.get(_key(target, args, kwargs, Spec.of))

    def disagreeing(self, program: Program) -> Op | None:
        """Run what was not seen yet; the first operation of the program that returns other than the trace says.

        What is computed from such an operation does not run: a kernel may not survive inputs of another shape than its own.
        The generators are afterwards as before.
        """
        return unprofiled(lambda: self._walk(program))

    def _walk(self, program: Program) -> Op | None:
        first: Op | None = None
        doubtful: set[str] = set()
        with rng.kept(), torch.no_grad(), no_autocast(program.device):
            for op in program.nodes:
                if not doubtful.isdisjoint(program.read(op)):
                    doubtful.update(program.written(op))
                elif isinstance(op.target, OpOverload) and op.role is Role.CALL and not self._agrees(program, op):
                    doubtful.update(program.written(op))
                    first = first or op
        return first

    def _agrees(self, program: Program, op: Op) -> bool:
        key = _call(program, op)
        if key in self.agreeing:
            return True
        seen = key in self.others
        real = self.others[key] if seen else _tried(program, op)
        same = real is None or _same(real, _traced(program, op))
        if real is not None and (seen or not same):
            self.others[key] = real
            self.targets.add(op.target)
        elif same:
            self.agreeing.add(key)
        return same


def _call(program: Program, op: Op) -> str:
    return _key(op.target, op.args, op.kwargs, lambda ref: program.values[ref.name].spec)


def _key(target: Any, args: Any, kwargs: Mapping[str, Any], spec: Callable[[Any], Spec]) -> str:
    """What a call is, but for the values of its tensors."""

    def text(tree: Any) -> str:
        if isinstance(tree, (Ref, torch.Tensor)):
            return str(spec(tree))
        if isinstance(tree, (list, tuple)):
            return f"[{','.join(map(text, tree))}]"
        return repr(tree)

    named = ",".join(f"{name}={text(value)}" for name, value in sorted(kwargs.items()))
    return f"{target}{text(args)}{named}"


def _tried(program: Program, op: Op) -> Returned | None:
    """What an operation returns, or None where it does not run on inputs made for it."""
    args, kwargs = made_inputs(program, op, torch.Generator(program.device).manual_seed(0))
    try:
        result = torch_private.entry(op.target)(*args, **kwargs)  # type: ignore[arg-type]
    except (RuntimeError, IndexError, ValueError):
        # Values decide here (an index, a matrix that must have an inverse): what it returns shows in the first real step.
        return None
    outputs = result if op.unpack else [result]
    return tuple(Spec.of(output) if isinstance(output, torch.Tensor) else None for output in outputs)


def _traced(program: Program, op: Op) -> Returned:
    return tuple(None if name is None else program.values[name].spec for name in op.outputs)


def _same(real: Returned, traced: Returned) -> bool:
    return len(real) == len(traced) and all(map(alike, real, traced))


def alike(real: Spec | None, traced: Spec | None) -> bool:
    """Whether two specs are the same but for strides that nothing can see; a gradient that is not asked for may be left out."""
    if real is None or traced is None:
        return True
    if (real.shape, real.dtype, real.device) != (traced.shape, traced.dtype, traced.device):
        return False
    steps = zip(real.shape, real.stride, traced.stride, strict=True)
    return real.numel == 0 or all(n == 1 or ours == theirs for n, ours, theirs in steps)


_kernels = Kernels()
"""What this process knows; specs name their device."""


def returned_by_kernels(target: Any, args: Any, kwargs: Any) -> Returned | None:
    """What a call is known in this process to return other than its shape function says."""
    return _kernels.returned(target, args, kwargs)


def corrected_targets() -> frozenset[Any]:
    """The operations of which such calls are known."""
    return frozenset(_kernels.targets)


def traced_as_run(trace: Callable[[Kernels], Program]) -> None:
    """Trace until the trace agrees with the kernels.

    Args:
        trace: traces with what the kernels return in place of what the shape functions say.

    Raises:
        Uncapturable: X-KERNEL, for an operation whose kernel and trace cannot be brought together.
    """
    for _ in range(ROUNDS):
        program = trace(_kernels)
        op = _kernels.disagreeing(program)
        if op is None:
            return
    assert op is not None  # there is at least one round
    real = ", ".join(map(str, _kernels.others[_call(program, op)]))
    traced = ", ".join(map(str, _traced(program, op)))
    where = f" in {op.scope}" if op.scope else ""
    what = f"{op.target}{where} returns {real}, and the trace says {traced}, also when it is traced again."
    raise Uncapturable("X-KERNEL", what, fix="leave this module bare, and report the operation.")
