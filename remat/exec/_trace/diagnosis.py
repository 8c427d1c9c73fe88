"""Messages about a trace that stopped: the module, the line, and the remedy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from attrs import evolve
from torch import nn

from remat.errors import Uncapturable
from remat.exec._torch import torch_private
from remat.exec._torch.backward_writes import WRITE_ELSEWHERE, backward_write
from remat.exec._torch.places import Place, described, forward_of, is_user_file, place_of, raised_at
from remat.exec._trace.tape import Foreign

_REGISTER = "register it (`self.register_buffer(name, tensor, persistent=False)`), or pass it as an argument."


def refusal(error: Exception, module: nn.Module) -> Uncapturable:
    """A refusal for any error that stopped a capture, with the module, the line and the remedy.

    Args:
        error: what was raised.
        module: the outermost module.
    """
    if isinstance(error, Uncapturable) and error.where:
        return error
    paths = {inner: name for name, inner in module.named_modules()}
    place = error.place if isinstance(error, Foreign) else None
    place = place or raised_at(error, paths) or forward_of(module)
    if not place.module:
        place = evolve(place, module=described("", module))
    rule, what, fix = _words(error)
    return Uncapturable(rule, what, fix=fix, where=str(place))


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
        what = (
            f"{reader} reads a tensor that is no parameter, buffer or argument, or one that the backward of an autograd function "
            "takes from elsewhere than `ctx.saved_tensors`."
        )
        return "X-TRACE", what, f"{_REGISTER[:-1]}; in such a function, `ctx.save_for_backward` it."
    if "mutating a non-functional tensor with a functional tensor" in first:
        return "X-STATE", backward_write("a tensor from outside"), WRITE_ELSEWHERE
    if "use_reentrant" in first:
        return (
            "X-TRACE",
            f"the trace stopped at a reentrant checkpoint: {first:.300}",
            "give `checkpoint` use_reentrant=False.",
        )
    if "its data is not allocated yet" in first:
        what = "a kernel looks at the values of a tensor, as those of recurrent layers do at the batch sizes of a PackedSequence."
        fix = "pass padded tensors and a mask, or wrap the modules around this one."
        return "X-TRACE", what, fix
    what = f"the trace stopped with {type(error).__name__}: {first:.300}"
    fix = (
        "see whether the bare module raises the same for this call; if not, keep values of tensors out of Python and numpy "
        "(`.numpy()`, `.data_ptr()`), or wrap the modules around this one."
    )
    return "X-TRACE", what, fix


def who_changes(run: Callable[[], None], state: Callable[[], Any], module: nn.Module) -> str:
    """The place where a run first changes some state, as text; empty if it is not observed.

    Args:
        run: runs the code; what it raises does not matter.
        state: read before each line of the user's code.
        module: the outermost module.
    """
    paths = {inner: name for name, inner in module.named_modules()}
    places: list[Place] = []
    last: list[Any] = [state(), None]

    def local(frame: FrameType, event: str, _arg: object) -> Any:
        now = state()
        if now != last[0] and last[1] is not None and not places:
            places.append(last[1])
        last[0] = now
        around = frame.f_back if event == "return" else frame
        while around is not None and not is_user_file(around.f_code.co_filename):
            around = around.f_back
        last[1] = None if around is None else place_of(around, paths)
        return local

    def enter(frame: FrameType, event: str, arg: object) -> Any:
        if places or not is_user_file(frame.f_code.co_filename):
            return None
        return local(frame, event, arg)

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        # Only the line is of interest here; the caller raises the refusal.
        with contextlib.suppress(Exception):
            run()
    finally:
        sys.settrace(before)
    return str(places[0]) if places else ""
