"""Where in the user's code something happened: file, line, and the module that was running."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Mapping
from types import FrameType, TracebackType

import torch
from attrs import frozen
from torch import nn

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARY = (_HERE, _TORCH)
_LAYERS = os.path.join(_TORCH, "nn", "modules") + os.sep


@frozen
class Place:
    """A line of code.

    Attributes:
        file: its path.
        line: number of the line.
        function: name of the function it is in.
    """

    file: str
    line: int
    function: str

    @property
    def short(self) -> str:
        """File and line, without folders."""
        return f"{os.path.basename(self.file)}:{self.line}"

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        return f"{self.short} in {self.function}" + (f" (`{code}`)" if code else "")


def is_user_file(file: str) -> bool:
    """Whether a file belongs neither to torch nor to this library."""
    return not file.startswith(_LIBRARY)


def user_place(depth: int = 1) -> Place | None:
    """The innermost running line that belongs neither to torch nor to this library.

    Args:
        depth: callers to skip.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARY):
            return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def raised_at(error: BaseException, paths: Mapping[nn.Module, str]) -> tuple[str | None, Place | None]:
    """Where an exception was raised: path of the innermost module that was running, and the line of the user's code.

    Args:
        error: with its traceback.
        paths: the modules that are looked for, and their paths; "" is the outermost.
    """
    path, place = None, None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        file = frame.f_code.co_filename
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and owner in paths and not file.startswith(_HERE):
            path = paths[owner]
        if not file.startswith(_LIBRARY) or file.startswith(_LAYERS):
            place = Place(file, trace.tb_lineno, frame.f_code.co_name)
        trace = trace.tb_next
    return path, place


def levels_to_user() -> int:
    """Stack level, as `warnings.warn` counts from its caller's caller, of the first line outside torch and this library."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and not is_user_file(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level
