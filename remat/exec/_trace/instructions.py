"""Operations as a tape records them: tensors by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from remat.exec._program.program import Ref, refs
from remat.exec._torch import rng
from remat.exec._torch.places import Place
from remat.exec._torch.torch_private import OpOverload


@frozen(kw_only=True)
class Instruction:
    """An operation on the tape.

    Attributes:
        target: what is called.
        args, kwargs: its arguments; tensors stand as `Ref`.
        outputs: names of the tensors it returns; None where an output is no tensor.
        unpack: it returns a tuple or list.
        place: the line of the user's code that called it, or None.
    """

    target: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[str | None, ...]
    unpack: bool
    place: Place | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors it takes."""
        return tuple(ref.name for ref in refs((self.args, self.kwargs)))

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of the tensors it returns."""
        return tuple(name for name in self.outputs if name is not None)

    @property
    def draws(self) -> bool:
        """Whether it advances a generator of random numbers."""
        return rng.draws(self.target, self.args, self.kwargs)

    @property
    def written(self) -> tuple[str, ...]:
        """Names of the tensors it overwrites."""
        if not self.target._schema.is_mutable:
            return ()
        arguments = zip(self.target._schema.arguments, self.args, strict=False)
        named = (
            (argument, self.kwargs[argument.name])
            for argument in self.target._schema.arguments
            if argument.name in self.kwargs
        )
        return tuple(
            ref.name
            for argument, value in (*arguments, *named)
            if argument.alias_info is not None and argument.alias_info.is_write
            for ref in refs(value)
        )

    @property
    def text(self) -> str:
        """The part that two traces of the same code must have in common."""
        return f"{self.target}{self.args}{self.kwargs}"


_SETS = (
    "fill", "zero", "copy", "bernoulli", "uniform", "normal", "random", "exponential", "geometric", "cauchy", "log_normal",
)  # fmt: skip
"""Operations that set all of their first argument, in place or in a copy, and do not look at it."""
_COVERS = ("alias", "detach", "view", "_unsafe_view", "t", "transpose", "permute", "unsqueeze", "squeeze")
"""Views of all elements of their base: writing the view sets all of the memory."""
_RESULTS = ("out", "noise")
"""Arguments that are results: an operation sets all of them, and does not look at them."""


def left_unset(instructions: tuple[Instruction, ...]) -> Instruction | None:
    """The first operation that leaves memory unset which a later one reads."""
    raw: dict[str, Instruction] = {}
    whole: dict[str, str] = {}  # a view of all elements, and its base
    for instruction in instructions:
        name = _name(instruction)
        first = _first(instruction)
        if first in raw and name in _COVERS:
            whole.update((view, whole.get(first, first)) for view in instruction.makes)
            raw.update((view, raw[first]) for view in instruction.makes)
            continue
        covered, written = set(_covered(instruction)), set(instruction.written)
        memories = {whole.get(other, other) for other in covered & written}
        raw = {other: source for other, source in raw.items() if whole.get(other, other) not in memories}
        for read in instruction.reads:
            if read in raw and read not in covered:
                return raw[read]
        if "empty" in name:
            raw.update((tensor, instruction) for tensor in instruction.makes)
    return None


def _name(instruction: Instruction) -> str:
    return instruction.target._schema.name.removeprefix("aten::")


def _first(instruction: Instruction) -> str | None:
    args = instruction.args
    return args[0].name if args and isinstance(args[0], Ref) else None


def _covered(instruction: Instruction) -> Iterator[str]:
    """Tensors that an operation takes for their place or form alone: where it writes them, it sets all of them."""
    first = _first(instruction)
    if first is not None and _name(instruction).startswith(_SETS):
        yield first
    for at, argument in enumerate(instruction.target._schema.arguments):
        if argument.name in _RESULTS and argument.alias_info is not None and argument.alias_info.is_write:
            given = instruction.args[at] if at < len(instruction.args) else instruction.kwargs.get(argument.name)
            yield from (ref.name for ref in refs(given))
