"""The log format of DTR's public simulator (Kirisame et al., ICLR 2021, appendix C.6): one JSON object a line.

| instruction | fields | means |
|---|---|---|
| `CONSTANT` | `NAME` | a tensor that is resident from now on and never evicted; one `MEMORY` follows |
| `CALL` | `RESULT`, `NAME`, `ARGS`, `TIME` | an operator; one `MEMORY` and one `ALIAS` follow for each result, in that order |
| `MUTATE` | `NAME`, `ARGS`, `MUTATE`, `TIME` | an operator that writes in place to the arguments at the places `MUTATE` |
| `MEMORY` | `NAME`, `MEMORY` | bytes of a tensor; an alias counts as 0 |
| `ALIAS` | `NAME`, `ALIAS` | place of the argument whose storage the result shares, or -1 |
| `COPY` | `DST`, `SRC` | a new name for a tensor |
| `COPY_FROM` | `DST`, `SRC` | a bound name is rebound to another tensor |
| `RELEASE` | `NAME` | the program releases a name |
| `ANNOTATE` | `ANNOTATION` | `START`: earlier instructions are ignored; so are other annotations |

Names are strings, times and sizes integers (numbers as text are accepted and fractions truncated, as in the public
simulator).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from attrs import frozen

from remat.errors import MalformedFile
from remat.settings import MANY, takes

MOST = (1 << 62) - 1
"""The largest size or time of a log, and the largest sum of them: memory and clock then stay within a 64-bit word."""


@frozen
class Memory:
    """Bytes of a tensor."""

    name: str
    size: int


@frozen
class Alias:
    """The argument whose storage a result shares, by its place; -1: a storage of its own."""

    name: str
    argument: int


@frozen
class Call:
    """An operator: names of its results, its own name, names of its arguments, its cost."""

    results: tuple[str, ...]
    name: str
    args: tuple[str, ...]
    time: int


@frozen
class Mutate:
    """An operator that writes in place to the arguments at the places `mutated`."""

    name: str
    args: tuple[str, ...]
    mutated: tuple[int, ...]
    time: int


@frozen
class Constant:
    """A tensor that is never evicted."""

    name: str


@frozen
class Copy:
    """A new name for the tensor of `src`."""

    dst: str
    src: str


@frozen
class CopyFrom:
    """The name `dst` is bound to the tensor of `src` from now on."""

    dst: str
    src: str


@frozen
class Release:
    """The program releases a name."""

    name: str


@frozen
class Annotate:
    """A remark; `START`: earlier instructions are ignored."""

    text: str


Instruction: TypeAlias = Memory | Alias | Call | Mutate | Constant | Copy | CopyFrom | Release | Annotate


def malformed(line: int, what: str, fix: str) -> MalformedFile:
    """The error for a line of a log, the first line being 1."""
    return MalformedFile("F-LOG", what, where=f"line {line}", fix=fix)


@takes(lines=MANY)
def read_instructions(lines: Iterable[str]) -> Iterator[tuple[int, Instruction]]:
    """The instructions of a log with the numbers of their lines, one at a time; empty lines are skipped.

    Raises:
        MalformedFile: F-LOG, with the line, for what is not JSON, an unknown instruction, or a wrong or missing field.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise malformed(number, f"not JSON ({error}).", "write one JSON object a line.") from error
        yield number, _instruction(number, record)


def _instruction(number: int, record: object) -> Instruction:
    if not isinstance(record, dict):
        raise malformed(number, "not a JSON object.", 'write one object a line, e.g. {"INSTRUCTION": "RELEASE", …}.')
    kind = record.get("INSTRUCTION")
    if not isinstance(kind, str) or kind not in _READERS:
        what = f"{kind!r:.100} is not an instruction." if "INSTRUCTION" in record else "no INSTRUCTION."
        raise malformed(number, what, f"write one of {', '.join(_READERS)}.")
    return _READERS[kind](_Fields(number, kind, record))


@frozen
class _Fields:
    """The fields of one line, each read with a check of its type."""

    line: int
    kind: str
    record: dict[str, Any]

    def _refuse(self, key: str, wanted: str) -> MalformedFile:
        if key not in self.record:
            return malformed(self.line, f"{self.kind} without {key}.", f"give {key}: {wanted}.")
        return malformed(self.line, f"{key} of {self.kind} is {self.record[key]!r:.100}.", f"give {wanted}.")

    def text(self, key: str) -> str:
        value = self.record.get(key)
        if not isinstance(value, str):
            raise self._refuse(key, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.record.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._refuse(key, "a list of strings")
        return tuple(value)

    def whole(self, key: str, least: int = 0) -> int:
        value = _whole(self.record.get(key))
        if value is None or not least <= value <= MOST:
            raise self._refuse(key, f"a whole number from {least} to 2^62 - 1")
        return value

    def places(self, key: str) -> tuple[int, ...]:
        value = self.record.get(key)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self._refuse(key, "a list of places of arguments")
        return tuple(value)


def _whole(value: object) -> int | None:
    """An int from an int, a float (its fraction cut off) or digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


_READERS: dict[str, Callable[[_Fields], Instruction]] = {
    "MEMORY": lambda f: Memory(f.text("NAME"), f.whole("MEMORY")),
    "ALIAS": lambda f: Alias(f.text("NAME"), f.whole("ALIAS", -1)),
    "CALL": lambda f: Call(f.texts("RESULT"), f.text("NAME"), f.texts("ARGS"), f.whole("TIME")),
    "MUTATE": lambda f: Mutate(f.text("NAME"), f.texts("ARGS"), f.places("MUTATE"), f.whole("TIME")),
    "CONSTANT": lambda f: Constant(f.text("NAME")),
    "COPY": lambda f: Copy(f.text("DST"), f.text("SRC")),
    "COPY_FROM": lambda f: CopyFrom(f.text("DST"), f.text("SRC")),
    "RELEASE": lambda f: Release(f.text("NAME")),
    "ANNOTATE": lambda f: Annotate(f.text("ANNOTATION")),
}


@takes(instructions=MANY)
def write_instructions(instructions: Iterable[Instruction]) -> Iterator[str]:
    """The lines of a log, without line ends, one at a time; the public simulator reads them."""
    for instruction in instructions:
        yield json.dumps(_record(instruction))


def _record(instruction: Instruction) -> dict[str, Any]:  # one case for each instruction
    match instruction:
        case Memory(name, size):
            return {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": size}
        case Alias(name, argument):
            return {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": argument}
        case Call(results, name, args, time):
            return {"INSTRUCTION": "CALL", "NAME": name, "ARGS": list(args), "RESULT": list(results), "TIME": time}
        case Mutate(name, args, mutated, time):
            return {"INSTRUCTION": "MUTATE", "NAME": name, "ARGS": list(args), "MUTATE": list(mutated), "TIME": time}
        case Constant(name):
            return {"INSTRUCTION": "CONSTANT", "NAME": name}
        case Copy(dst, src):
            return {"INSTRUCTION": "COPY", "DST": dst, "SRC": src}
        case CopyFrom(dst, src):
            return {"INSTRUCTION": "COPY_FROM", "DST": dst, "SRC": src}
        case Release(name):
            return {"INSTRUCTION": "RELEASE", "NAME": name}
        case Annotate(text):
            return {"INSTRUCTION": "ANNOTATE", "ANNOTATION": text}
