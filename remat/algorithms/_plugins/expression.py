"""Reading the algebra's own notation: `warm(auto, seed=StoreAll()).within(60) | PerLayerCheckpoint()` as a solver.

The text is parsed, never evaluated: names of the registry, calls, `|`, `>>`, the methods `within`, `when` and `sweep`, and
literals are all it may hold.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from remat.algorithms._plugins.registry import word
from remat.errors import BadArgument, RematError

METHODS = ("within", "when", "sweep")
"""Methods that an expression may call."""


def parse(text: str, *, words: Mapping[str, Any] | None = None) -> Any:
    """The value of an expression, usually a `Solver`.

    Args:
        text: the expression.
        words: more names, and what they stand for.

    Raises:
        BadArgument: A-EXPR, with the column of what cannot be read; P-NAME for an unknown name; or the error of a wrong
            setting.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadArgument("A-EXPR", f"{text!r:.200} is not an expression ({error}).", fix=_EXAMPLE) from error
    try:
        return _Reader(text.strip(), words or {}).read(tree.body)
    except RecursionError as error:
        raise BadArgument("A-EXPR", "the expression is nested too deep.", fix=_EXAMPLE) from error


_EXAMPLE = 'write for instance "auto.within(60) | PerLayerCheckpoint()".'


class _Reader:
    def __init__(self, text: str, words: Mapping[str, Any]) -> None:
        self.text = text
        self.words = words

    def read(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str, type(None))):
            return node.value
        if isinstance(node, ast.Name):
            return self.words[node.id] if node.id in self.words else word(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return self.applied(node, lambda value: -value, [self.read(node.operand)], {})
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(self.read(element) for element in node.elts)
        if isinstance(node, ast.Dict) and None not in node.keys:
            pairs = [
                (self.read(key), self.read(value)) for key, value in zip(node.keys, node.values, strict=True) if key
            ]
            return self.applied(node, dict, [pairs], {})
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.RShift)):
            left, right = self.read(node.left), self.read(node.right)
            join = (lambda a, b: a | b) if isinstance(node.op, ast.BitOr) else (lambda a, b: a >> b)
            return self.applied(node, join, [left, right], {})
        if isinstance(node, ast.Call):
            return self.call(node)
        raise self.refused(node, "may not stand in an expression")

    def call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            target = self.read(node.func.value)
            called = getattr(target, node.func.attr, None)
            if called is None:
                raise self.refused(node, f"has no {node.func.attr}")
        elif isinstance(node.func, ast.Name):
            called = self.read(node.func)
        else:
            raise self.refused(node.func, f"may not be called (methods are {', '.join(METHODS)})")
        if any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords):
            raise self.refused(node, "unpacks arguments")
        return self.applied(
            node, called, [self.read(arg) for arg in node.args], {str(k.arg): self.read(k.value) for k in node.keywords}
        )

    def applied(self, node: ast.expr, called: Any, args: list[Any], named: dict[str, Any]) -> Any:
        try:
            return called(*args, **named)
        except RematError:  # it names the wrong argument itself
            raise
        except (TypeError, ValueError) as error:
            raise self.refused(node, f"cannot be made: {error}") from error

    def refused(self, node: ast.expr, why: str) -> BadArgument:
        part = ast.get_source_segment(self.text, node) or type(node).__name__
        return BadArgument("A-EXPR", f"column {node.col_offset + 1}: {part!r:.120} {why}.", fix=_EXAMPLE)
