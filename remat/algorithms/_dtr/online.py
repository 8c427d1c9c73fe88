"""The runtime of DTR for a program that is not known beforehand: operators come as they are called.

The rule is the simulator's (`runtime.py`), in plain Python: a program of calls and releases gives the same clock, evictions,
recomputations and peak (`tests/algorithms/dtr/test_online.py`). What differs is how long things live (`values.py`): a released
storage that nothing can need again is removed, and is no neighbor any more. What both share is in `scores.py`: the scores, their
measures of cost, and which of equal scores is evicted. The rest stays apart: kernels need a whole program as tables.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from remat.algorithms._dtr.memory import Memory
from remat.algorithms._dtr.scores import Score
from remat.algorithms._dtr.values import Call, Handle, Node, Out, Run, Stored, Value, link
from remat.algorithms._dtr.victims import leave

LIMIT = 10.0
"""Cost of a step, recomputation included, over its cost without: more is thrashing."""

PATIENCE = 4
"""Recomputations for each call of a step that are no thrashing, whatever they cost by the model of costs."""


class Thrashing(Exception):
    """Recomputation exceeded its limit."""


class _Frame:
    """A pending run: its call, the requested result (None: the first run), and the arguments it has locked."""

    __slots__ = ("call", "cursor", "entered", "locked", "target")

    def __init__(self, call: Call, target: Value | None) -> None:
        self.call, self.target = call, target
        self.cursor, self.entered = 0, False
        self.locked = [False] * len(call.args)


class Core(Memory):
    """Storages and the calls that compute them: the rule by which they are evicted and recomputed.

    Args:
        budget: bytes; None: no limit.
        score: what is evicted first.
        limit: cost of a step with recomputation over its cost without, above which it thrashes.
        seed: of the score `random`.
        tiny: storages below this share of the mean size are evicted only where nothing else is left.

    Attributes:
        compute, calls: cost and number of first runs. remat_cost, remats: of the others.
        view_of: of a value whose storage is overwritten: computes its view of the new one. overlap: whether two values in one
            storage have elements in common.
    """

    def __init__(
        self, budget: int | None, score: Score, *, limit: float = LIMIT, seed: int = 0, tiny: float = 0.0
    ) -> None:
        super().__init__(budget, score, seed=seed, tiny=tiny)
        self.limit = limit
        self.compute = self.calls = self.remat_cost = self.remats = 0
        self.view_of: Callable[[Value], Run] | None = None
        self.overlap: Callable[[Value, Value], bool] = lambda _first, _second: True

    # -- what the program does -----------------------------------------------------------------------------------------

    def constant(self, payload: Any, size: int = 0) -> Value:
        """A value that is never evicted; `size`: bytes that count for it."""
        storage = Stored(self, size)
        storage.pinned = storage.material = True
        storage.locks = 1
        storage.charged = size
        self.memory += size
        self.peak = max(self.peak, self.memory)
        return Value(storage, None, 0, payload)

    def declare(self, call: Call, outs: Sequence[Out | None]) -> list[Value | None]:
        """Create the results of a call, not in memory yet; None for a result that it does not return."""
        values: list[Value | None] = []
        costed: set[int] = set()
        for place, out in enumerate(outs):
            if out is None:
                values.append(None)
                continue
            storage = self._storage_of(call, out, values)
            if id(storage) not in costed:
                storage.cost += call.cost
                costed.add(id(storage))
            for arg in call.args:
                link(arg.storage, storage)
            values.append(Value(storage, call, place))
        call.outs = tuple(None if value is None else weakref.ref(value) for value in values)
        return values

    def _storage_of(self, call: Call, out: Out, values: list[Value | None]) -> Stored:
        if out.alias >= 0:
            return call.args[out.alias].storage
        if out.shares >= 0:
            earlier = values[out.shares]
            assert earlier is not None
            return earlier.storage
        call.size += out.size
        storage = Stored(self, out.size)
        if self.victims.classes:
            storage.node = Node(0)
        self.note_size(out.size)
        return storage

    def perform(self, call: Call) -> None:
        """Run a call for the first time; errors as of `get`, and whatever `call.run` raises."""
        self.calls += 1
        self.compute += call.cost
        self._run_all(_Frame(call, None))

    def get(self, value: Value) -> Any:
        """The payload of a value, recomputed if necessary.

        Raises:
            OutOfRoom: nothing is left to evict.
            Thrashing: recomputation exceeded its limit.
        """
        if value.payload is None:
            call = value.call
            assert call is not None
            self._run_all(_Frame(call, value))
        return value.payload

    def begin_step(self) -> None:
        """Reset the counts for the next step."""
        self.compute = self.calls = self.remat_cost = self.remats = self.evictions = 0
        self.peak = self.memory

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _run_all(self, frame: _Frame) -> None:
        """Run a call after everything it needs, on an explicit stack: depth is not limited by recursion."""
        frames = [frame]
        self.busy += 1
        try:
            while frames:
                missing = self._advance(frames[-1])
                if missing is None:
                    frames.pop()
                else:
                    assert missing.call is not None
                    frames.append(_Frame(missing.call, missing))
        finally:
            for waiting in frames:
                for arg, locked in zip(waiting.call.args, waiting.locked, strict=True):
                    if locked:
                        self.unlock(arg.storage)
            self.busy -= 1
            self.settle()

    def _advance(self, frame: _Frame) -> Value | None:
        """Advance a run: returns the next missing argument, or None when it has run."""
        args = frame.call.args
        if not frame.entered:
            frame.entered = True
            for place, arg in enumerate(args):
                arg.storage.access = self.clock
                if arg.payload is not None:
                    self._lock_argument(frame, place)
        while frame.cursor < len(args):
            if not frame.locked[frame.cursor]:
                if args[frame.cursor].payload is None:
                    return args[frame.cursor]
                self._lock_argument(frame, frame.cursor)
            frame.cursor += 1
        taken = self._takeable(frame)
        size = frame.call.size if frame.call.describe is None else frame.call.room
        self.make_room(size + frame.call.work - sum(storage.size for storage in taken), frame.call.spare)
        self._run(frame, taken)
        return None

    def _lock_argument(self, frame: _Frame, place: int) -> None:
        frame.locked[place] = True
        self.lock(frame.call.args[place].storage)

    def _takeable(self, frame: _Frame) -> list[Stored]:
        """Storages whose memory the call may overwrite; it takes a copy of those that are needed elsewhere."""
        storages = [root.storage for root in frame.call.takes]
        if frame.target is None:
            return storages
        mine = [
            sum(locked and arg.storage is storage for arg, locked in zip(frame.call.args, frame.locked, strict=True))
            for storage in storages
        ]
        return [
            storage
            for storage, locks in zip(storages, mine, strict=True)
            if storage.refs == 0 and storage.locks == locks
        ]

    def _run(self, frame: _Frame, taken: list[Stored]) -> None:
        call, first = frame.call, frame.target is None
        payloads = [arg.payload for arg in call.args]
        if call.takes:
            payloads.append(frozenset(map(id, taken)))
        results = call.run(payloads)
        del payloads
        if call.describe is not None:
            call.values = self.declare(call, call.describe(results))
            call.describe = None
        self.clock += call.cost
        for storage in taken:
            self.memory -= storage.charged
            storage.charged = 0
        self.memory += call.size
        self.peak = max(self.peak, self.memory + call.work)
        if not first:
            self.remat_cost += call.cost
            self.remats += 1
        outs = [None if ref is None else ref() for ref in call.outs]
        self._arrive(call, outs, results, frame.target)
        for root, out in zip(call.takes, outs, strict=False):
            if root.storage in taken:
                if first and out is not None:
                    self._follow_all(root.storage, out, call.written)
                self.withdraw(root.storage)
        for arg, locked in zip(call.args, frame.locked, strict=True):
            if locked:
                self.unlock(arg.storage)
        frame.locked = [False] * len(call.args)
        if first:
            for out in outs:
                if out is not None:
                    out.storage.access = self.clock
        elif self.remat_cost > (self.limit - 1) * self.compute and self.remats > PATIENCE * self.calls:
            raise Thrashing

    def _arrive(self, call: Call, outs: list[Value | None], results: Sequence[Any], target: Value | None) -> None:
        """The results are in memory; the requested one enters the pool last, as in the simulator."""
        counted = 0
        target = target if target is not None else next((out for out in outs if out is not None), None)
        order = [place for place, out in enumerate(outs) if out is not None and out is not target]
        arrivals: list[Stored] = []
        for place in (*order, *(() if target is None else (target.index,))):
            out = outs[place]
            assert out is not None
            storage = out.storage
            if out.payload is None and not storage.material:
                storage.material = True
                storage.charged = storage.size
                counted += storage.size
                if storage.locks == 0:
                    self.enter_pool(storage)
                arrivals.append(storage)
            out.payload = results[place] if out.payload is None else out.payload
        self.memory -= call.size - counted  # results that were in memory already, or are not needed any more
        for storage in arrivals:
            leave(storage)

    def _follow_all(self, storage: Stored, out: Value, written: tuple[Value, ...]) -> None:
        """The memory of a storage is that of the storage of `out` from now on, and what refers to it follows."""
        for ref in list(storage.handles.values()):
            handle = ref()
            if handle is None:
                continue
            if handle.saved and not handle.stale:
                handle.stale = any(value.storage is storage and self.overlap(value, handle.value) for value in written)
            self._follow(handle, out)

    def _follow(self, handle: Handle, out: Value) -> None:
        old = handle.value
        assert self.view_of is not None
        call = Call((out,), self.view_of(old), cost=0, name="view")
        (value,) = self.declare(call, [Out(0, 0)])
        assert value is not None
        value.payload = old.payload
        old.storage.handles.pop(id(handle), None)
        old.storage.refs -= 1
        handle.value = value
        value.storage.refs += 1
        value.storage.handles[id(handle)] = weakref.ref(handle)


__all__ = ["LIMIT", "Core", "Thrashing"]
