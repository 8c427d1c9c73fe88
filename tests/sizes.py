"""Sizes of functions: `python -m tests.sizes` prints what is long, takes much or branches much, and fails beyond the limits.

Cyclomatic complexity is counted as radon counts it: 1, and one more for each branch (`if`, `elif`, conditional expression,
`case` but for a last `_`, `assert`), loop, `else` of a loop or `try`, `except`, comprehension, `if` of a comprehension, and
boolean operator (`a and b and c` has two). A nested function is a function of its own, and counts in no other.
"""

import ast
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "remat"

LINES, PARAMETERS, POSITIONAL, COMPLEXITY, SHARE = 60, 6, 4, 10, 0.95
"""Most lines and parameters of a function; positional ones of an entry point; the complexity that this share keeps to."""

LONG = frozenset({"remat/exec/wrapping.py:wrap"})
"""Functions that may be longer, at most five: the docstring of `wrap` describes each of its settings."""

ENTRY_POINTS = frozenset({
    "remat/exec/wrapping.py:wrap",
    "remat/exec/blocks.py:apply_budget",
    "remat/exec/estimating.py:estimate",
    "remat/exec/sweeping.py:sweep",
    "remat/exec/under_dtr.py:dtr",
    "remat/exec/sweeping.py:sweep_graph",
    "remat/exec/_plan/planning.py:plan_step",
    "remat/exec/_capture/capturing.py:capture",
    "remat/algorithms/_core/clock.py:Clock.report",
    "remat/algorithms/_curves/budget_sweep.py:sweep",
    "remat/ir/build.py:GraphBuilder.compute",
    "remat/testing/solver_laws.py:check_solver",
    "remat/testing/transform_laws.py:check_transform",
    "remat/testing/partitioner_laws.py:check_partitioner",
    "remat/testing/source_laws.py:check_source",
})  # fmt: skip
"""Entry points and builders: what can only be given by name is not counted there; at most `POSITIONAL` are positional."""

COMMANDS = PACKAGE / "cli"
"""What typer calls: a parameter there is an option of the command line. Models are not counted either: see `zoo`."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Size(NamedTuple):
    """What a function measures.

    Attributes:
        place: file and qualified name, `remat/ir/build.py:GraphBuilder.compute`. line: where it begins.
        lines: of its text, decorators apart. positional, named: parameters, without `self`; `named` go by name only.
        complexity: cyclomatic.
    """

    place: str
    line: int
    lines: int
    positional: int
    named: int
    complexity: int


def weight(node: ast.AST) -> int:
    """What a node of a syntax tree adds to the complexity of the function it is in."""
    match node:
        case ast.If() | ast.IfExp() | ast.Assert():
            return 1
        case ast.For() | ast.AsyncFor() | ast.While():
            return 1 + bool(node.orelse)
        case ast.Try() | ast.TryStar():
            return len(node.handlers) + bool(node.orelse)
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.Match():
            return sum(not isinstance(case.pattern, ast.MatchAs) or bool(case.pattern.pattern) for case in node.cases)
    return 0


def within(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes and all below them, but for nested functions."""
    for node in nodes:
        if not isinstance(node, Function):
            yield node
            yield from within(ast.iter_child_nodes(node))


def size_of(function: Function, place: str, *, method: bool) -> Size:
    """The size of a function."""
    arguments = function.args
    bound = method and not any(ast.unparse(decorator) == "staticmethod" for decorator in function.decorator_list)
    return Size(
        place=place,
        line=function.lineno,
        lines=(function.end_lineno or function.lineno) - function.lineno + 1,
        positional=len(arguments.posonlyargs) + len(arguments.args) - bound,
        named=len(arguments.kwonlyargs),
        complexity=1 + sum(map(weight, within(function.body))),
    )


def sizes_in(node: ast.AST, place: str) -> Iterator[Size]:
    """The sizes of all functions below a node; `place` is its name with what separates it from the next."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, (*Function.__args__, ast.ClassDef))
        if isinstance(child, Function):
            yield size_of(child, place + child.name, method=isinstance(node, ast.ClassDef))
        yield from sizes_in(child, f"{place}{child.name}." if named else place)


def measured(package: Path = PACKAGE) -> list[Size]:
    """The sizes of all functions of a package."""
    return [
        size
        for path in sorted(package.rglob("*.py"))
        for size in sizes_in(ast.parse(path.read_text()), f"{path.relative_to(package.parent)}:")
    ]


def long(sizes: Iterable[Size]) -> list[Size]:
    """Functions above the most lines that are not in the list of those that may be."""
    return [size for size in sizes if size.lines > LINES and size.place not in LONG]


def crowded(sizes: Iterable[Size]) -> list[Size]:
    """Functions with too many parameters."""
    return [size for size in sizes if _too_many(size)]


def _too_many(size: Size) -> bool:
    if size.place.startswith(("remat/cli/", "remat/zoo/")):
        return False
    if size.place in ENTRY_POINTS:
        return size.positional > POSITIONAL
    return size.positional + size.named > PARAMETERS


def branching(sizes: Iterable[Size]) -> list[Size]:
    """Functions above the complexity that most keep to, the most complex first."""
    return sorted((size for size in sizes if size.complexity > COMPLEXITY), key=lambda size: -size.complexity)


def quantile(sizes: Iterable[Size], share: float = SHARE) -> int:
    """The least complexity that this share of the functions does not exceed."""
    ordered = sorted(size.complexity for size in sizes)
    return ordered[math.ceil(len(ordered) * share) - 1]


def main() -> int:
    """Print what is beyond a limit, and the figures; 1 where a limit is broken."""
    sizes = measured()
    for size in long(sizes):
        print(f"{size.place}:{size.line}: {size.lines} lines, more than {LINES}")
    for size in crowded(sizes):
        print(f"{size.place}:{size.line}: {size.positional} parameters and {size.named} by name, too many")
    above, p95 = branching(sizes), quantile(sizes)
    for size in above:
        print(f"{size.place}:{size.line}: complexity {size.complexity}")
    largest = max(size.complexity for size in sizes)
    print(f"{len(sizes)} functions; complexity: 95 % up to {p95}, largest {largest}, {len(above)} above {COMPLEXITY}")
    return int(bool(long(sizes) or crowded(sizes)) or p95 > COMPLEXITY)


if __name__ == "__main__":
    sys.exit(main())
