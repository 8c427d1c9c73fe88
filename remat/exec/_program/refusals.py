"""The place where an error in a stage after the capture becomes a refusal: `Uncapturable`, with the reason and the way out.

Errors of this library pass unchanged, and so do out-of-memory errors: neither is about what was captured.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from remat.errors import RematError, Uncapturable
from remat.exec._program.program import Op

GENERATED = "<remat step"
"""How the names of generated sources begin."""

_FIX = 'leave the module bare (on_uncapturable="bare"), or wrap the parts without this operation; and report it.'


@contextmanager
def refusing(stage: str) -> Iterator[None]:
    """Turn errors of a stage into a refusal.

    Args:
        stage: what goes on inside, as in "costing stopped".

    Raises:
        Uncapturable: X-STAGE, naming the generated line and the module where the error came from one.
    """
    try:
        yield
    except (RematError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        what = f"{stage} stopped{_place(error)} with {type(error).__name__}: {first:.300}"
        raise Uncapturable("X-STAGE", what, fix=_FIX) from error


def _place(error: BaseException) -> str:
    """The operation that an error came from, or the line of the generated functions, and the module it belongs to."""
    at = error.__traceback__
    place = ""
    while at is not None:
        op = at.tb_frame.f_locals.get("op")
        if at.tb_frame.f_globals.get("__name__", "").startswith("remat.exec") and isinstance(op, Op):
            place = f" at {op.target} (of {op.scope or 'the module itself'})"
        name = at.tb_frame.f_code.co_filename
        if name.startswith(GENERATED):
            lines = linecache.getlines(name)[: at.tb_lineno]
            scopes = [line.strip("# \n") for line in lines if line.strip().startswith("#")]
            where = scopes[-1] if scopes else "the module itself"
            place = f" at `{lines[-1].strip()}` (of {where})" if lines else ""
        at = at.tb_next
    return place
