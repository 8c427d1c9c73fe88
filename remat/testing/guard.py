"""What a part may not do during a call: run without end, leave threads behind, or change global state of the process."""

from __future__ import annotations

import decimal
import gc
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from remat.algorithms._core.startup import compile_seconds, import_seconds
from remat.algorithms._search.kernel_prefetch import prefetching

T = TypeVar("T")

PATIENCE: Final = 12.0
"""Seconds of process time that a call on a small example may take, without imports and compilation."""
AFTER: Final = 1.0
"""The same, from the first reading of the clock after it has expired."""
IDLE: Final = 8.0
"""Seconds for which the process may be idle during a call."""
_TICK = 0.1
_NOTHING = 0.001  # process time between two ticks of an idle process


class Overrun(BaseException):
    """Ends a call that takes too long; a BaseException, so that parts do not catch it by accident."""


class Stopwatch:
    """Process time of a call, without imports and compilation."""

    def __init__(self) -> None:
        self.start = self._now()

    @staticmethod
    def _now() -> float:
        return time.process_time() - import_seconds() - compile_seconds()

    @property
    def seconds(self) -> float:
        """Since its creation."""
        return self._now() - self.start


@contextmanager
def patient(over_since: Callable[[], float | None] = lambda: None) -> Iterator[Stopwatch]:
    """Interrupts the block by `Overrun` if it takes too long (only in the main thread, and where the platform has signals).

    Args:
        over_since: the process time at which the clock was first read after it had expired; None: it was not.
    """
    watch = Stopwatch()
    idle, last = 0, time.process_time()

    def look(number: int, frame: FrameType | None) -> None:
        del number, frame
        nonlocal idle, last
        now, since = time.process_time(), over_since()
        idle += (
            now - last < _NOTHING
        )  # counted in ticks: a process that waits for a processor, or was suspended, is not idle
        last = now
        late = since is not None and now - since > AFTER
        if watch.seconds > PATIENCE or (late and watch.seconds > AFTER) or idle * _TICK > IDLE:
            raise Overrun

    free = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not free or signal.getitimer(signal.ITIMER_REAL)[0]:  # an alarm of other code is not replaced
        yield watch
        return
    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
    try:
        yield watch
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def workers() -> dict[Any, str]:
    """Threads and child processes that are alive, with a text for each."""
    threads = {thread.ident: f"the thread {thread.name!r}" for thread in threading.enumerate()}
    named = {child.pid: f"the process {child.name!r}" for child in multiprocessing.active_children()}
    return threads | {pid: f"the process {pid}" for pid in _children()} | named


def _children() -> set[int]:
    """Child processes that run, however they were started, without helpers that stay on purpose; as far as /proc tells."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (AttributeError, ChildProcessError):  # no such call on this platform; or no child at all, the usual case
        return set()
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    helpers = {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None), prefetching()}
    running = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state not in "ZX":
                running.add(int(file.parent.name))
    return running - helpers


def whole_process() -> dict[str, Any]:
    """The global state of the process, by description: generators, environment, limits. Compared before and after a call."""
    state: dict[str, Any] = {
        "the generator of `random`": random.getstate(),
        "the environment": dict(os.environ),
        "the working directory": os.getcwd(),
        "the recursion limit": sys.getrecursionlimit(),
        "the handler of Ctrl-C": signal.getsignal(signal.SIGINT),
        "the search path of modules": tuple(sys.path),
        "whether garbage is collected": gc.isenabled(),
        "the trace function": (sys.gettrace(), sys.getprofile()),
        "the standard output": (id(sys.stdout), id(sys.stderr)),
        "the root of logging": (logging.getLogger().level, tuple(map(id, logging.getLogger().handlers))),
        "the precision of decimals": decimal.getcontext().prec,
    }
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["the generator of `numpy.random`"] = (kind, keys.tobytes(), *rest)
        state["how numpy treats floating-point errors"] = tuple(sorted(numpy.geterr().items()))
    if torch is not None and hasattr(torch, "get_rng_state"):
        state["the generator of `torch`"] = bytes(torch.get_rng_state().numpy().tobytes())
        state["torch's settings"] = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads())
    return state


def put_back(state: dict[str, Any]) -> None:
    """Restore the generators, so that a part which changes them does not affect other code."""
    random.setstate(state["the generator of `random`"])
    if "the generator of `numpy.random`" in state:
        import numpy as np

        kind, keys, *rest = state["the generator of `numpy.random`"]
        np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))


def seed_all(seed: int) -> None:
    """Seed the global generators of the process: a part that draws from them then gives other answers."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed)
    if torch is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(seed)
