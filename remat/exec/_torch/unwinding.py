"""What torch keeps for a thread while a forward runs, put back where Ctrl-C or an error breaks off the code that would do so."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch.utils._python_dispatch import _pop_mode

from remat.exec._torch.wrappers import modes_on, saving_with

T = TypeVar("T")
_KEYS = tuple(torch._C.DispatchKey.__members__.values())
_SETS = (
    (torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_set_dispatch_key_included),
    (torch._C._dispatch_tls_local_exclude_set, torch._C._dispatch_tls_set_dispatch_key_excluded),
)


def unwound(call: Callable[[], T], interrupted: Callable[[], None]) -> T:
    """What `call` returns; where Ctrl-C ends it, at whatever instruction, torch's state of this thread is as before.

    Args:
        call: is run.
        interrupted: is called where Ctrl-C has ended it.
    """
    before = _ThreadState()
    try:
        return call()
    except BaseException as error:
        if not isinstance(error, Exception):
            # context managers that were interrupted as they were entered end now, not when the traceback is forgotten
            traceback.clear_frames(error.__traceback__)
            before.restore()
            interrupted()
        raise


@contextmanager
def hooks_put_back() -> Iterator[None]:
    """Where an error ends what runs inside, hooks for saved tensors are as before.

    Checkpoints of torch 2.11 leave theirs on while an error that their function raised is kept: for other modules to meet.
    """
    before = saving_with()
    try:
        yield
    except BaseException as error:
        if saving_with() is not before:
            chained: BaseException | None = error
            while chained is not None:
                traceback.clear_frames(chained.__traceback__)  # that ends generators, which take off their hooks
                chained = chained.__cause__ or chained.__context__
            _take_off_hooks(before)
        raise


def _take_off_hooks(before: object) -> None:
    """Take off hooks for saved tensors down to those that call `before`."""
    while (saving := saving_with()) is not None and saving is not before:
        torch._C._autograd._pop_saved_tensors_default_hooks()


class _ThreadState:
    """Recording of gradients, modes, hooks for saved tensors, keys of the dispatcher and autocast."""

    def __init__(self) -> None:
        self.gradients, self.modes, self.saving = torch.is_grad_enabled(), modes_on(), saving_with()
        self.keys = [keys() for keys, _ in _SETS]
        self.autocast = {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}

    def restore(self) -> None:
        """Put all of it back."""
        while modes_on() > self.modes:
            _pop_mode()
        _take_off_hooks(self.saving)
        for before, (keys, put) in zip(self.keys, _SETS, strict=True):
            now = keys()
            for key in _KEYS:
                if before.has(key) != now.has(key):
                    put(key, before.has(key))
        for kind, enabled in self.autocast.items():
            torch.set_autocast_enabled(kind, enabled)
        torch._C._set_grad_enabled(self.gradients)


__all__ = ["hooks_put_back", "unwound"]
