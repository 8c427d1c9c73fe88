"""Scopes for profilers: the generated functions once more, with each stretch of a module under a `record_function`.

The text of a plan has a comment where the operations of another module begin, and where those that are recomputed do. Here each
comment becomes a `with` around the lines that follow. A step runs this form only while a profiler is on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch.profiler import record_function

from remat.exec._program.source import Names

PREFIX = "remat: "
"""How the names of all scopes begin."""

ITSELF = "the module itself"
RECOMPUTED = ", recomputed"
_COMMENT = "    # "


def comment(scope: str, *, recomputed: bool) -> str:
    """The comment in front of operations of a module, from its path; `recomputed`: they have run before in this step."""
    return f"# {scope or ITSELF}{RECOMPUTED if recomputed else ''}"


def place_of(line: str) -> tuple[str, bool] | None:
    """The path of the module and whether it is recomputed, from a line of generated code; None: the line is no such comment."""
    text = line.strip()
    if not text.startswith("# "):
        return None
    scope = text[2:].removesuffix(RECOMPUTED)
    return "" if scope == ITSELF else scope, text.endswith(RECOMPUTED)


def scoped_source(source: str) -> str:
    """The text of generated functions with scopes in place of comments; the comments stay, for messages.

    A scope is called `remat: `, the path of the module, and ", forward", ", backward" or ", recomputed".
    """
    return "\n".join(_scoped_lines(source.split("\n")))


def _scoped_lines(lines: list[str]) -> Iterator[str]:
    function, inside = "", False
    for line in lines:
        place = place_of(line)
        if line.startswith("def "):
            function, inside = line[len("def ") : line.index("(")], False
        inside = inside and not line.startswith("    return ")
        if place is None:
            yield f"    {line}" if inside and line else line
            continue
        scope, recomputed = place
        name = f"{PREFIX}{scope or ITSELF}{RECOMPUTED if recomputed else f', {function}'}"
        yield line
        yield f"    with _scope({name!r}):"
        yield "        pass"  # what follows may be a comment alone
        inside = True


def with_scopes(functions: tuple[Callable[..., Any], ...], source: str) -> tuple[tuple[Callable[..., Any], ...], str]:
    """Compile generated functions again with scopes.

    Args:
        functions: as compiled from `source`, or what wraps those.
        source: their text.

    Returns:
        The functions, in order, and their text.
    """
    text = scoped_source(source)
    generated = [inspect.unwrap(function) for function in functions]
    names = {name: value for function in generated for name, value in function.__globals__.items()}
    space = Names(names | {"_scope": record_function}).compiled(text, "step under a profiler")
    return tuple(space[function.__name__] for function in generated), text


__all__ = ["PREFIX", "comment", "place_of", "scoped_source", "with_scopes"]
