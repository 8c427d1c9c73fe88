"""What to say of a trace that stopped: the module, the line, and the way out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from torch import nn

from remat.errors import Uncapturable
from remat.exec import torch_private
from remat.exec.places import Place, is_user_file, raised_at
from remat.exec.tape import Foreign

_REGISTER = "register it (`self.register_buffer(name, tensor, persistent=False)`), or pass it as an argument."


def refusal(error: Exception, paths: Mapping[nn.Module, str]) -> Uncapturable:
    """One refusal for whatever stopped a trace.

    Args:
        error: what was raised.
        paths: the modules and their paths.
    """
    path, place = raised_at(error, paths)
    module = next((type(inner).__name__ for inner, name in paths.items() if name == path), "")
    where = f"{path or 'the module itself'} ({module})" if path is not None else ""
    line = str(place) if place is not None else ""
    at = ", ".join(part for part in (where, line) if part)
    rule, what, fix = _words(error)
    text = what if place is not None and place.short in what else (f"at {at}: {what}" if at else what)
    if place is not None and place.short in what and where:
        text = f"in {where}: {what}"
    return Uncapturable(rule, text, fix=fix)


def _words(error: Exception) -> tuple[str, str, str]:
    first = (str(error).strip().splitlines() or [""])[0]
    operation = getattr(error, "func", None)
    if isinstance(error, Uncapturable):
        return error.rule, error.what, error.fix
    if isinstance(error, Foreign):
        kind = type(error.tensor).__name__
        what = (
            f"a tensor is read ({kind} {list(error.tensor.shape)}) that is no parameter, buffer, attribute or argument."
        )
        return "X-TRACE", what, _REGISTER
    if operation is not None:
        what = f"{operation} gives a shape or a value that depends on the values of tensors ({type(error).__name__})."
        return "X-TRACE", what, "compute it before the call and pass it as an argument, or mask instead of selecting."
    if (reader := torch_private.reader_of_real(error)) is not None:
        what = f"{reader} reads a tensor that is no parameter, buffer or argument."
        return "X-TRACE", what, _REGISTER
    what = f"the trace stopped with {type(error).__name__}: {first:.300}"
    fix = "keep values of tensors out of Python and numpy (`.numpy()`, `.data_ptr()`), or wrap the modules around this one."
    return "X-TRACE", what, fix


def who_changes(run: Callable[[], None], state: Callable[[], Any]) -> str:
    """Where a run changes some state first: "file:line in function (`code`): ", or nothing if that is not seen.

    Args:
        run: runs the code; what it raises does not matter.
        state: read before each line of the user's code.
    """
    lines: list[Place] = []
    last: list[Any] = [state(), None]

    def local(frame: FrameType, event: str, _arg: object) -> Any:
        now = state()
        if now != last[0] and last[1] is not None and not lines:
            lines.append(last[1])
        last[0] = now
        if event == "line":
            last[1] = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        return local

    def enter(frame: FrameType, _event: str, _arg: object) -> Any:
        return local if not lines and is_user_file(frame.f_code.co_filename) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        # Only the line is of interest here; the caller raises what is to be said.
        with contextlib.suppress(Exception):
            run()
    finally:
        sys.settrace(before)
    return f"{lines[0]}: " if lines else ""
