"""Reading a log: the program that its instructions describe."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable

from attrs import define, field

from remat.algorithms._dtr.log import (
    Alias,
    Annotate,
    Call,
    Constant,
    Copy,
    CopyFrom,
    Instruction,
    Memory,
    Mutate,
    Release,
    malformed,
    read_instructions,
)
from remat.algorithms._dtr.program import Program, ProgramBuilder
from remat.errors import MalformedFile
from remat.ir.arguments import A_PATH
from remat.ir.json_document import as_text, read_unzipped
from remat.settings import FLAG, MANY, takes


@takes(lines=MANY, keep=FLAG)
def read_program(lines: Iterable[str], *, keep: bool = True) -> Program:
    """Read a log as a stream; with `keep`, what it still references at its end has to be resident then.

    Instructions before an annotation `START` are ignored.

    Raises:
        MalformedFile: F-LOG, with the line; the first line where there are no instructions.
    """
    reader, started, early, count = _Reader(), False, None, 0
    for number, instruction in read_instructions(lines):
        if isinstance(instruction, Annotate):
            if instruction.text == "START" and not started:
                reader, started, early, count = _Reader(), True, None, 0
        elif early is None:
            count += 1
            try:
                reader.take(number, instruction)
            except MalformedFile as error:
                if started:
                    raise
                early = error  # forgiven if a START follows
    if early is not None:
        raise early
    if not count:
        raise malformed(1, "the log has no instructions.", "record it again, whole.")
    return reader.end(keep)


@takes(path=A_PATH, keep=FLAG)
def load_program(path: str | os.PathLike[str], *, keep: bool = True) -> Program:
    """Read a log from a file, gzipped or not; errors as of `read_program`; F-GZIP, F-SIZE, F-UTF8."""
    return read_program(io.StringIO(as_text(read_unzipped(path)), newline=None), keep=keep)


@define
class _Reader:
    """Joins consecutive instructions: a CALL with the MEMORY and ALIAS of each of its results."""

    builder: ProgramBuilder = field(factory=ProgramBuilder)
    head: Call | Constant | None = None
    head_line: int = 0
    parts: list[Memory | Alias] = field(factory=list)

    def take(self, line: int, instruction: Instruction) -> None:
        if self.head is not None:
            self._part(line, instruction)
            return
        self.builder.line = line
        match instruction:
            case Call(results=()):
                self.builder.call(instruction.name, instruction.args, instruction.time, [])
            case Call() | Constant():
                self.head, self.head_line, self.parts = instruction, line, []
            case Mutate(name, args, mutated, time):
                self.builder.mutate(name, args, time, mutated)
            case Copy(dst, src):
                self.builder.copy(dst, src)
            case CopyFrom(dst, src):
                self.builder.copy_from(dst, src)
            case Release(name):
                self.builder.release(name)
            case Memory() | Alias():
                kind = type(instruction).__name__.upper()
                raise malformed(
                    line, f"{kind} of {instruction.name!r:.100} belongs to no CALL.", "put it after its CALL."
                )

    def _wanted(self) -> tuple[type[Memory] | type[Alias], str]:
        """The instruction that has to follow."""
        if isinstance(self.head, Call):
            return (Alias if len(self.parts) % 2 else Memory), self.head.results[len(self.parts) // 2]
        assert self.head is not None
        return Memory, self.head.name

    def _part(self, line: int, instruction: Instruction) -> None:
        kind, name = self._wanted()
        if not isinstance(instruction, (Memory, Alias)) or type(instruction) is not kind or instruction.name != name:
            what = f"{kind.__name__.upper()} of {name!r:.100} is missing."
            raise malformed(line, what, f"write it here: line {self.head_line} asks for it.")
        self.parts.append(instruction)
        if isinstance(self.head, Call) and len(self.parts) < 2 * len(self.head.results):
            return
        head, self.head, self.builder.line = self.head, None, self.head_line
        sizes = [part.size for part in self.parts if isinstance(part, Memory)]
        if isinstance(head, Call):
            places = [part.argument for part in self.parts if isinstance(part, Alias)]
            self.builder.call(head.name, head.args, head.time, list(zip(head.results, sizes, places, strict=True)))
        elif head is not None:
            self.builder.constant(head.name, sizes[0])

    def end(self, keep: bool) -> Program:
        if self.head is not None:
            kind, name = self._wanted()
            what = f"the log ends, and {kind.__name__.upper()} of {name!r:.100} is missing."
            raise malformed(self.head_line, what, "write the log to its end.")
        return self.builder.build(keep=keep)
