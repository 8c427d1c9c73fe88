"""`InChild(backend)`: a back end that solves in a process of its own.

For packages that cannot share a process: OR-Tools and highspy each bring a HiGHS, and the one that is loaded first excludes the
other. Any back end can be stopped there, and may crash without harm. Each solve starts an interpreter: about a second.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Any, Final

from attrs import evolve, field, frozen

from remat._warn import warn
from remat.algorithms._core.processes import ended, interpreter
from remat.algorithms._core.startup import importing
from remat.algorithms._milp.answer import Answer, Floats
from remat.algorithms._milp.backend import NO_HINTS, Backend, Hints, Limits, Seen
from remat.algorithms._milp.child import CODE, Task
from remat.algorithms._milp.milp_model import MilpModel
from remat.errors import BadArgument
from remat.settings import instance

POLL: Final = 0.1
"""Seconds between two questions whether to stop."""

GRACE: Final = 5.0
"""Seconds that a solver may take beyond its limit before its process is ended."""

_MODULE: Final = "define its class in a module that another process can import."


@frozen
class InChild(Backend):
    """Another back end, in a process of its own.

    Attributes:
        backend: solves there; its class stands in a module that can be imported.
    """

    backend: Backend = field(validator=instance(Backend, "CpSat()"))

    @property
    def takes_start(self) -> bool:  # type: ignore[override]
        """Whether it can begin from a point."""
        return self.backend.takes_start

    def with_save(self) -> Backend:
        """In the same way, with the settings that suit formulations with a second budget."""
        return InChild(self.backend.with_save())

    def check(self) -> None:
        """Raise `BackendMissing` when it is not installed."""
        self.backend.check()

    def solve(self, model: MilpModel, limits: Limits, hints: Hints = NO_HINTS) -> Answer:
        """Solve; see `Backend.solve`.

        If the process is stopped, the answer has the incumbent and the bound that it reported last; likewise, with a warning,
        if it ends without an answer.

        Raises:
            BadArgument: A-CHILD, when the back end cannot be sent to another process.
        """
        self.check()
        task = Task(
            backend=self.backend, linear=model.linear, relaxed=model.relaxed, budget=model.budget, save=model.save,
            limits=limits, hints=evolve(hints, seen=None), listens=hints.seen is not None,
        )  # fmt: skip
        with _Process(task) as process:
            return process.answer(hints.seen)


class _Process:
    """A child at work on a task. It has ended when the block ends."""

    def __init__(self, task: Task) -> None:
        self.task = task
        try:
            self._pickled = pickle.dumps(task)
        except Exception as error:  # pickle raises what the object raises
            raise self._unreadable(f"{type(error).__name__}: {error}") from error
        self._messages: SimpleQueue[tuple[str, Any] | None] = SimpleQueue()
        self._last = Answer(note=f"{task.backend!r}: stopped")

    def __enter__(self) -> _Process:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()
        self._child = interpreter(CODE, stdout=subprocess.PIPE, stderr=self._stderr)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        with suppress(BrokenPipeError):  # it has ended already: the reader says so
            assert self._child.stdin is not None
            pickle.dump((sys.path, self._pickled), self._child.stdin)
            self._child.stdin.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(BrokenPipeError):
            ended(self._child)
        self._reader.join()
        self._stderr.close()

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as stream:
            while True:
                try:
                    self._messages.put(pickle.load(stream))
                except (EOFError, pickle.UnpicklingError, OSError):
                    break
        self._messages.put(None)

    def answer(self, seen: Seen | None) -> Answer:
        """Wait for the answer, or until it is to stop."""
        with importing():  # the interpreter starts, and imports the back end
            message = self._messages.get()
        over = time.monotonic() + self.task.limits.seconds + GRACE
        while message is not None:
            match message:
                case "answer", Answer() as answer:
                    return answer
                case "failed", Exception() as error:
                    raise error
                case "unreadable", words:
                    raise self._unreadable(words)
                case "seen", (point, bound):
                    self._note(point, bound)
                    if seen is not None and seen(point, bound):
                        return self._last
            message = self._next(seen, over)
            if message == _STOP:
                return self._last
        return self._crashed()

    def _next(self, seen: Seen | None, over: float) -> tuple[str, Any] | None:
        """The next message; `_STOP` where it is to stop before there is one."""
        while True:
            try:
                return self._messages.get(timeout=POLL)
            except Empty:
                if time.monotonic() > over or (seen is not None and seen(None, self._last.bound)):
                    return _STOP

    def _note(self, point: Floats | None, bound: int) -> None:
        self._last = evolve(
            self._last,
            point=self._last.point if point is None else point,
            bound=max(self._last.bound, bound),
        )

    def _crashed(self) -> Answer:
        """What was reported before the process ended without an answer."""
        code = self._child.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        words = f"{self.task.backend!r}: its process ended with code {code} and no answer" + (
            f" ({last:.200})" * bool(last)
        )
        warn(words, RuntimeWarning)
        return evolve(self._last, note=words)

    def _unreadable(self, words: str) -> BadArgument:
        what = f"InChild: {self.task.backend!r} cannot be sent to another process ({words})."
        return BadArgument("A-CHILD", what, fix=_MODULE)


_STOP: Final = ("stop", None)
"""The message of a child that is to stop."""
