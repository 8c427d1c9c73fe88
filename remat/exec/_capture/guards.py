"""Guards: whether a call would take the branches that its plan was traced on, checked on the real tensors before the step.

The reads of a trace that depend on inputs, buffers or frozen parameters become one flat function, in the order in which Python
asked: a later one may only have a meaning on the branch that an earlier one chose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from attrs import field, frozen

from remat.exec._program.kernels import no_autocast
from remat.exec._program.program import Ref
from remat.exec._program.source import Names
from remat.exec._trace.instructions import Instruction
from remat.exec._trace.tape import Origin, Read


@frozen(kw_only=True, eq=False)
class Guards:
    """What must hold before a call.

    Attributes:
        reads: what is checked, in order.
        origins: the tensors it looks at, in the order in which `check` expects them.
        check: whether every value is as it was.
        source: its text.
    """

    reads: tuple[Read, ...]
    origins: tuple[Origin, ...]
    source: str = field(repr=False)
    check: Callable[[Sequence[torch.Tensor]], bool]

    def holds(self, tensors: Sequence[torch.Tensor], device: torch.device) -> bool:
        """Whether every value is as it was; the tensors and the generators stay as they are."""
        if not self.reads:
            return True
        with torch.no_grad(), no_autocast(device):
            return self.check(tensors)

    def __str__(self) -> str:
        return "\n".join(f"{read.place}: {read.value!r}" for read in self.reads)


def _numbered(origins: Iterable[Origin]) -> dict[Origin, int]:
    """Each origin once, with its place."""
    return {origin: place for place, origin in enumerate(dict.fromkeys(origins))}


def _early(reads: Iterable[Read]) -> tuple[Read, ...]:
    """The reads that can be evaluated before a call, each question once."""
    early = (read for read in reads if not read.fixed and read.late is None)
    return tuple({_question(read): read for read in early}.values())


def compile_guards(reads: Iterable[Read]) -> Guards:
    """One function for the reads that can be evaluated before a call; a repeated question is checked once."""
    reads = _early(reads)
    origins = _numbered(origin for read in reads for origin in read.origins.values())
    names = Names()
    lines = ["def check(tensors):"]
    seen: set[int] = set()
    share = not any(instruction.written for read in reads for instruction in read.instructions)
    for at, read in enumerate(reads):
        lines += _block(read, names, origins, prefix="" if share else f"r{at}_", seen=seen if share else set())
    lines.append("    return True")
    source = "\n".join(lines) + "\n"
    return Guards(reads=reads, origins=tuple(origins), source=source, check=names.compiled(source, "guards")["check"])


@frozen(kw_only=True, eq=False)
class Prologue:
    """What is computed before a step, because shapes depend on it.

    Attributes:
        origins: the tensors it looks at, in the order in which `run` expects them.
        run: gives the results of all operations, in order; it stops where one gives other shapes than in the trace.
        forms: shape, strides and type of each result in the trace.
    """

    origins: tuple[Origin, ...]
    run: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
    forms: tuple[Any, ...]

    def results(self, tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor] | None:
        """The results for a call; None: they have other shapes than the plan's, or cannot be computed on its branch."""
        try:
            with torch.no_grad(), no_autocast(device):
                results = self.run(tensors)
        except (RuntimeError, IndexError, ValueError):
            return None
        same = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in results] == list(self.forms)
        return results if same else None


def _prologue_lines(reads: Sequence[Read], names: Names, places: dict[Origin, int], first: int) -> list[str]:
    """The text of a prologue; `first` is the place of the first result among the tensors."""
    lines = ["def run(tensors):", f"    tensors, results = list(tensors[:{first}]), []"]
    for at, read in enumerate(reads):
        lines += _slice(read, names, places, prefix=f"r{at}_", seen=set())
        call = _call(read.instructions[-1], names, f"r{at}_")
        lines.append(f"    results += {call if read.instructions[-1].unpack else f'[{call}]'}")
        lines.append(f"    tensors[{first}:] = results")
    return [*lines, "    return results"]


def compile_prologue(reads: Sequence[Read], tensors: Sequence[Sequence[torch.Tensor]], inputs: int) -> Prologue:
    """One function for operations whose shapes depend on values.

    Args:
        reads: what each depends on; the results of earlier ones are inputs after the others.
        tensors: the results of each for the sample.
        inputs: how many inputs there are before these results.
    """
    asked = (origin for read in reads for origin in read.origins.values())
    origins = _numbered((kind, about) for kind, about in asked if kind != "input" or about < inputs)
    names = Names()
    places = dict(origins)
    for at in range(sum(map(len, tensors))):
        places["input", inputs + at] = len(origins) + at
    source = "\n".join(_prologue_lines(reads, names, places, first=len(origins))) + "\n"
    flat = [tensor for results in tensors for tensor in results]
    return Prologue(
        origins=tuple(origins),
        run=names.compiled(source, "prologue")["run"],
        forms=tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in flat),
    )


def _question(read: Read) -> tuple[Any, ...]:
    """Equal for two reads that ask the same question of the same operations."""
    *before, last = read.instructions
    return tuple(map(id, before)), last.text, type(read.value), str(read.value)


def _block(read: Read, names: Names, origins: dict[Origin, int], *, prefix: str, seen: set[int]) -> list[str]:
    lines = _slice(read, names, origins, prefix=prefix, seen=seen)
    lines.append(f"    value = {_call(read.instructions[-1], names, prefix)}")
    differs = "value == value" if isinstance(read.value, float) and math.isnan(read.value) else None
    lines.append(f"    if {differs or f'value != {names.text(read.value)}'}:")
    lines.append("        return False")
    return lines


def _slice(read: Read, names: Names, origins: dict[Origin, int], *, prefix: str, seen: set[int]) -> list[str]:
    """The lines before the last instruction."""
    lines = []
    for name, origin in read.origins.items():
        copy = ".clone()" if name in read.copied else ""
        lines.append(f"    {prefix}{name} = tensors[{origins[origin]}]{copy}")
    for name, constant in read.constants.items():
        name_of_constant = names.constant(constant)
        lines.append(f"    {prefix}{name} = {name_of_constant}{'.clone()' if name in read.copied else ''}")
    for instruction in read.instructions[:-1]:
        if id(instruction) not in seen:
            seen.add(id(instruction))
            lines.append(f"    {_statement(instruction, names, prefix)}")
    return lines


def _call(instruction: Instruction, names: Names, prefix: str) -> str:
    def renamed(tree: Any) -> Any:
        if isinstance(tree, Ref):
            return Ref(prefix + tree.name)
        if isinstance(tree, (tuple, list)):
            return type(tree)(renamed(item) for item in tree)
        return tree

    args = [names.text(renamed(arg)) for arg in instruction.args]
    args += [f"{key}={names.text(renamed(arg))}" for key, arg in instruction.kwargs.items()]
    return f"{names.entry(instruction.target)}({', '.join(args)})"


def _statement(instruction: Instruction, names: Names, prefix: str) -> str:
    targets = ", ".join("_" if name is None else prefix + name for name in instruction.outputs)
    comma = "," if instruction.unpack and len(instruction.outputs) == 1 else ""
    return f"{targets}{comma} = {_call(instruction, names, prefix)}"
