"""Reading the algebra's own notation: `warm(auto, seed=StoreAll()).within(60) | PerLayerCheckpoint()` as a solver.

The text is parsed, never evaluated: names of the registry, calls, `|`, `>>`, the methods `within`, `when`, `sweep` and `if_`, and
literals are all it may hold.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import Any

from remat.algorithms._plugins.registry import word
from remat.errors import BadArgument, RematError
from remat.ir.arguments import A_TABLE, A_TEXT
from remat.settings import optional, takes

METHODS = ("within", "when", "sweep", "if_")
"""Methods that an expression may call."""


@takes(text=A_TEXT, words=optional(A_TABLE))
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
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None):
                return node.value
            case ast.Name():
                return self.words[node.id] if node.id in self.words else word(node.id)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                return self.applied(node, operator.neg, [self.read(node.operand)], {})
            case ast.Tuple() | ast.List():
                return tuple(self.read(item) for item in node.elts)
            case ast.Dict() if None not in node.keys:
                keys = [self.read(key) for key in node.keys if key]
                values = [self.read(value) for value in node.values]
                return self.applied(node, dict, [zip(keys, values, strict=True)], {})
            case ast.BinOp(op=ast.BitOr() | ast.RShift()):
                join = operator.or_ if isinstance(node.op, ast.BitOr) else operator.rshift
                return self.applied(node, join, [self.read(node.left), self.read(node.right)], {})
            case ast.Call():
                return self.call(node)
        raise self.refused(node, "may not stand in an expression")

    def call(self, node: ast.Call) -> Any:
        called = self.called(node)
        names = [keyword.arg for keyword in node.keywords]
        if None in names or any(isinstance(arg, ast.Starred) for arg in node.args):
            raise self.refused(node, "unpacks arguments")
        args = [self.read(arg) for arg in node.args]
        return self.applied(node, called, args, {str(k.arg): self.read(k.value) for k in node.keywords})

    def called(self, node: ast.Call) -> Any:
        """What a call calls: a name, or one of the methods of an expression."""
        if isinstance(node.func, ast.Name):
            return self.read(node.func)
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in METHODS:
            raise self.refused(node.func, f"may not be called (methods are {', '.join(METHODS)})")
        method = getattr(self.read(node.func.value), node.func.attr, None)
        if method is None:
            raise self.refused(node, f"has no {node.func.attr}")
        return method

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
