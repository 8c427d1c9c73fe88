"""The process that solves for `InChild`: it reads one task, writes incumbents and bounds as they come, then its answer.

Messages are pickled pairs of a word and a value: `ready` once the task is read; `seen`, an incumbent or None and a bound;
`answer`; `failed`, an exception; `unreadable`, why the task could not be read.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from typing import Any, BinaryIO

from attrs import evolve, field, frozen

from remat.algorithms._core.processes import end_with_parent
from remat.algorithms._milp.answer import Answer, Floats
from remat.algorithms._milp.backend import Backend, Hints, Limits
from remat.algorithms._milp.linear import Linear
from remat.algorithms._milp.milp_model import model_of
from remat.units import Bytes

CODE = "from remat.algorithms._milp.child import serve; serve()"
"""What the interpreter of the child runs."""


@frozen(kw_only=True)
class Task:
    """What is to be solved.

    Attributes:
        backend: solves it.
        linear, relaxed, budget, save: of the model.
        limits: when to stop.
        hints: without a listener.
        listens: whether incumbents and bounds are to be sent.
    """

    backend: Backend
    linear: Linear = field(repr=False)
    relaxed: bool
    budget: Bytes
    save: Bytes
    limits: Limits
    hints: Hints
    listens: bool

    def solve(self, channel: _Channel) -> Answer:
        """The answer; incumbents and bounds go to the channel."""
        model = model_of(self.linear, relaxed=self.relaxed)
        model.set(self.budget, self.save)
        hints = evolve(self.hints, seen=channel.seen) if self.listens else self.hints
        return self.backend.solve(model, self.limits, hints)


class _Channel:
    """Writes messages to the parent."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._bound = 0

    def send(self, word: str, value: Any = None) -> None:
        pickle.dump((word, value), self._stream)
        self._stream.flush()

    def seen(self, point: Floats | None, bound: int) -> bool:
        """Send an incumbent or a better bound; the parent ends this process to stop the solver."""
        if point is not None or bound > self._bound:
            self._bound = max(bound, self._bound)
            self.send("seen", (point, bound))
        return False


def serve() -> None:
    """Solve the task of the parent."""
    channel = _Channel(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # what a solver prints is no message
    paths, pickled = pickle.load(sys.stdin.buffer)
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.path[:] = paths
    try:
        task: Task = pickle.loads(pickled)
    except Exception as error:  # noqa: BLE001 - whatever the module of a back end raises when it is imported
        channel.send("unreadable", f"{type(error).__name__}: {error}")
        return
    channel.send("ready")
    try:
        answer = task.solve(channel)
    except Exception as error:  # noqa: BLE001 - it is raised in the parent
        channel.send("failed", _portable(error))
    else:
        channel.send("answer", answer)


def _portable(error: Exception) -> Exception:
    """The exception, or one with its message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - as above
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
