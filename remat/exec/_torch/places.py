"""Where in the user's code something happened: file, line, and the module that was running."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import sys
from collections.abc import Mapping
from types import FrameType, TracebackType

import numpy as np
import torch
from attrs import evolve, frozen
from torch import nn

from remat._warn import is_standard

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder of `remat.exec`."""

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep
_LIBRARY = (HERE, _TORCH, _NUMPY)
_LAYERS = os.path.join(_TORCH, "nn", "modules") + os.sep


@frozen
class Place:
    """A line of code.

    Attributes:
        file: its path.
        line: number of the line; 0: the function has no Python code.
        function: name of the function it is in.
        module: path and class of the module that was running; empty where that is not known.
    """

    file: str
    line: int
    function: str
    module: str = ""

    @property
    def short(self) -> str:
        """File and line, without folders."""
        return f"{os.path.basename(self.file)}:{self.line}"

    def __str__(self) -> str:
        if not self.line:
            return self.module
        code = linecache.getline(self.file, self.line).strip()
        text = f"{self.short} in {self.function}" + (f" (`{code}`)" if code else "")
        return f"{self.module}, {text}" if self.module else text


class Running:
    """The modules that are running, outermost first: paths and classes, as text."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @property
    def innermost(self) -> str:
        """The module that runs now."""
        return self.names[-1] if self.names else ""


@functools.lru_cache(maxsize=4096)
def is_user_file(file: str) -> bool:
    """Whether a file belongs neither to Python, torch or numpy nor to this library."""
    return not file.startswith(_LIBRARY) and not is_standard(file)


def described(path: str, module: nn.Module) -> str:
    """A module in words: path and class."""
    return f"{path or 'the module itself'} ({type(module).__name__})"


def user_place(depth: int = 1, module: str = "") -> Place | None:
    """The innermost running line of the user's.

    Args:
        depth: callers to skip.
        module: the module that runs.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, module)
        frame = frame.f_back
    return None


def place_of(frame: FrameType, paths: Mapping[nn.Module, str]) -> Place:
    """The line that a frame is at, and the module it belongs to."""
    around: FrameType | None = frame
    while around is not None:
        owner = around.f_locals.get("self")
        if isinstance(owner, nn.Module) and owner in paths:
            name = described(paths[owner], owner)
            return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, name)
        around = around.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def raised_at(error: BaseException, paths: Mapping[nn.Module, str]) -> Place | None:
    """Where an exception was raised: the innermost line of the user's (or of a layer of torch's), and its module.

    Args:
        error: with its traceback.
        paths: the modules that are looked for, and their paths; "" is the outermost.
    """
    name, place = "", None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        file = frame.f_code.co_filename
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and owner in paths and not file.startswith(HERE):
            name = described(paths[owner], owner)
        layer = file.startswith(_LAYERS) and frame.f_code.co_name == "forward"
        if is_user_file(file) or layer:
            place = Place(file, trace.tb_lineno, frame.f_code.co_name)
        trace = trace.tb_next
    return None if place is None else evolve(place, module=name)


def forward_of(module: nn.Module) -> Place:
    """The line at which the forward of a module begins: the place of what belongs to no line in it."""
    # A scripted module's class answers for `forward` with an error.
    forward = inspect.getattr_static(type(module), "forward")
    code = getattr(inspect.unwrap(forward), "__code__", None)
    name = described("", module)
    if code is None:
        return Place("", 0, "forward", name)
    return Place(code.co_filename, code.co_firstlineno, code.co_name, name)
