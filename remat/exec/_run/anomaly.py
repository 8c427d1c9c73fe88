"""Where a backward under `torch.autograd.detect_anomaly` first made nan: the operation, its module, and the line of the plan."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

import torch
from attrs import frozen

from remat.exec._run.scopes import place_of
from remat.exec._torch.torch_private import DispatchMode

_COPIES = "remat.exec._copy."


@frozen
class Origin:
    """An operation of a generated function.

    Attributes:
        operation: what was called.
        scope: path of the module it belongs to; empty: the module itself.
        line: of the generated code.
        recomputed: whether it had run in the forward, and ran again.
    """

    operation: str
    scope: str
    line: str
    recomputed: bool = False

    def __str__(self) -> str:
        again = ", recomputed" if self.recomputed else ""
        return f"{self.operation} in {self.scope or 'the module itself'}{again} (`{self.line}`)"


class NanWatch(DispatchMode):
    """Inside, notes the first operation of a generated function that returns nan.

    Args:
        function: the generated function.
        source: the text it was compiled from.

    Attributes:
        first: that operation; None: there was none.
    """

    def __init__(self, function: Callable[..., Any], source: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.code: CodeType = inspect.unwrap(function).__code__
        self.lines = source.splitlines()
        self.first: Origin | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and look at what it returns."""
        result = func(*args, **(kwargs or {}))
        if self.first is None and has_nan(result if isinstance(result, (tuple, list)) else (result,)):
            self.first = self._origin(str(func), sys._getframe(1))
        return result

    def _origin(self, operation: str, frame: FrameType | None) -> Origin | None:
        while frame is not None and frame.f_code is not self.code:
            if str(frame.f_globals.get("__name__")).startswith(_COPIES):
                return None  # memory that a copy has not filled yet
            frame = frame.f_back
        if frame is None:
            return Origin(operation, "", "?")
        above = self.lines[: frame.f_lineno]
        scope, recomputed = next(filter(None, map(place_of, reversed(above))), ("", False))
        return Origin(operation, scope, above[-1].strip(), recomputed)


def has_nan(values: Iterable[Any]) -> bool:
    """Whether one of some values is a tensor with nan in it."""
    return any(
        isinstance(value, torch.Tensor)
        and (value.is_floating_point() or value.is_complex())
        and bool(torch.isnan(value).any())
        for value in values
    )


def is_watched() -> bool:
    """Whether a backward is to be looked at."""
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


__all__ = ["NanWatch", "Origin", "has_nan", "is_watched"]
