"""The runtime of DTR for a program that is not known beforehand: operators come as they are called.

The rule is the simulator's (`runtime.py`, `eviction.py`, `classes.py`), in plain Python: a program of calls and releases gives
the same clock, evictions, recomputations and peak (`tests/algorithms/test_dtr_online.py`). What is different is who holds
what: a value lives as long as something may need it (a reference of the program, or a call whose results live), so that
nothing grows over many steps. A released storage that nothing can need again is no neighbor of anything any more.

Payloads are whatever `Call.run` takes and returns: tensors in the execution layer.
"""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from remat.algorithms._dtr.scores import Chance, Family, LastAccess, Pool, Score
from remat.errors import BadArgument

Run = Callable[[list[Any]], Sequence[Any]]
"""Computes the payloads of a call's results from those of its arguments."""

LIMIT = 10.0
"""Cost of a step, recomputation included, over its cost without: more is thrashing."""

PATIENCE = 4
"""Recomputations for each call of a step that are no thrashing, whatever they cost by the model of costs."""


class OutOfRoom(Exception):
    """Nothing is left to evict.

    Attributes:
        need: bytes that the operator needs. kept: bytes that cannot be evicted now.
    """

    def __init__(self, need: int, kept: int) -> None:
        super().__init__(need, kept)
        self.need, self.kept = need, kept


class Thrashing(Exception):
    """Recomputation passed its limit."""


class Out(NamedTuple):
    """A result that a call declares.

    Attributes:
        size: bytes.
        alias: place of the argument whose storage it shares; -1: none. beside: of the earlier result; -1: none.
    """

    size: int
    alias: int = -1
    beside: int = -1


class Node:
    """A node of the union-find over evicted storages; of a root the cost of the class."""

    __slots__ = ("above", "value")

    def __init__(self, value: int) -> None:
        self.above: Node | None = None
        self.value = value

    def root(self) -> Node:
        """The root; the nodes on the way to it are hung under it."""
        top: Node = self
        while top.above is not None:
            top = top.above
        node: Node = self
        while node.above is not None and node.above is not top:
            node.above, node = top, node.above
        return top


class Stored:
    """A storage.

    Attributes:
        size: bytes. charged: bytes that the runtime counts for it now.
        refs: references of the program. handles: the same, by id.
        locks: runs under way that need it, and pins. pinned: never evicted.
        material: in memory.
        cost: of its calls. access: when it was accessed last. node: of its class.
        up, down: storages that its calls read, and that are made from it, by id. gone: classes of those among them that are not
        in memory, by id. values: its values, by id.
        source, version: of one that is never evicted: what the program has of it, and how often that may have been written
        (-1: any number of times). readers: calls that read it.
    """

    __slots__ = ("__weakref__", "access", "charged", "core", "cost", "down", "gone", "handles", "locks", "material", "node",
                 "pinned", "readers", "refs", "size", "source", "up", "values", "version")  # fmt: skip

    def __init__(self, core: Core, size: int) -> None:
        self.core, self.size, self.charged = core, size, 0
        self.refs = self.locks = self.cost = 0
        self.access = -1
        self.pinned = self.material = False
        self.node: Node | None = None
        self.up: dict[int, Stored] = {}
        self.down: dict[int, weakref.ref[Stored]] = {}
        self.gone: dict[int, Node] = {}
        self.values: dict[int, weakref.ref[Value]] = {}
        self.handles: dict[int, weakref.ref[Handle]] = {}
        self.source: Any = None
        self.version = -1
        self.readers: list[weakref.ref[Call]] = []

    def live_values(self) -> list[Value]:
        """Its values that something still needs."""
        return [value for ref in list(self.values.values()) if (value := ref()) is not None]

    def near(self) -> Iterator[Stored]:
        """The storages that its calls read, and those that are made from it."""
        yield from self.up.values()
        for key, ref in list(self.down.items()):
            child = ref()
            if child is None:
                self.down.pop(key, None)
            elif key not in self.up:
                yield child

    def __del__(self) -> None:
        core = self.core
        core.memory -= self.charged
        self.charged, self.material = 0, False  # a collector may ask handles on it to let go afterwards
        core.pool.pop(id(self), None)
        core.small.pop(id(self), None)
        for parent in self.up.values():
            parent.gone.pop(id(self), None)
            parent.down.pop(id(self), None)


class Value:
    """A tensor as the runtime knows it: result `index` of a call (None: a constant), and its payload while that is there."""

    __slots__ = ("__weakref__", "call", "index", "payload", "storage")

    def __init__(self, storage: Stored, call: Call | None, index: int, payload: Any = None) -> None:
        self.storage, self.call, self.index, self.payload = storage, call, index, payload
        storage.values[id(self)] = weakref.ref(self)

    def __del__(self) -> None:
        self.storage.values.pop(id(self), None)


class Handle:
    """A reference of the program to a value; where its storage is overwritten, to the value that is there then.

    Attributes:
        value: what it refers to. saved: the value is wanted as it is now; stale: part of it was overwritten since.
    """

    __slots__ = ("__weakref__", "saved", "stale", "value")

    def __init__(self, value: Value, *, saved: bool = False) -> None:
        self.value, self.saved, self.stale = value, saved, False
        value.storage.refs += 1
        value.storage.handles[id(self)] = weakref.ref(self)

    def __del__(self) -> None:
        storage = self.value.storage
        storage.handles.pop(id(self), None)
        storage.core.release(storage)


class Call:
    """An operator that was called, as it is run again.

    Attributes:
        args: values it reads. run: computes the payloads of its results. outs: its results, as far as they are needed.
        cost: of a run. size: bytes of all results in storages of their own. work: bytes beyond these.
        takes: values whose storages it overwrites: each of the first results has the memory of one of these.
        written: at its first run, the values that it writes to.
        name: of the operator, for messages. spare: bytes that are made free besides as far as that goes.
        room: bytes to make room for at the first run, where its results are not declared; describe: says then from their
        payloads what they are. values: they themselves, for whoever called.
    """

    __slots__ = ("__weakref__", "args", "cost", "describe", "name", "outs", "room", "run", "size", "spare", "takes",
                 "values", "work", "written")  # fmt: skip

    def __init__(self, args: tuple[Value, ...], run: Run, *, cost: int, work: int = 0, name: str = "") -> None:
        self.args, self.run, self.cost, self.work, self.name = args, run, cost, work, name
        self.outs: tuple[weakref.ref[Value] | None, ...] = ()
        self.size = self.room = self.spare = 0
        self.takes: tuple[Value, ...] = ()
        self.written: tuple[Value, ...] = ()
        self.describe: Callable[[Sequence[Any]], Sequence[Out | None]] | None = None
        self.values: list[Value | None] = []


class _Frame:
    """A run under way: its call, the result asked for (None: the first run), and the arguments it has locked."""

    __slots__ = ("call", "cursor", "entered", "locked", "target")

    def __init__(self, call: Call, target: Value | None) -> None:
        self.call, self.target = call, target
        self.cursor, self.entered = 0, False
        self.locked = [False] * len(call.args)


class Core:
    """Storages, their pool, and the rule by which they are evicted and computed again.

    Args:
        budget: bytes; None: no limit.
        score: what is evicted first.
        limit: cost of a step with recomputation over its cost without, above which it thrashes.
        seed: of the score `random`.
        tiny: storages below this share of the mean size are evicted only where nothing else is left.

    Attributes:
        memory, peak: bytes now, and most. reserve: bytes set apart. clock: moves by the cost of each run.
        compute, calls: cost and number of first runs. remat_cost, remats: of the others. evictions: storages taken out.
    """

    def __init__(
        self, budget: int | None, score: Score, *, limit: float = LIMIT, seed: int = 0, tiny: float = 0.0
    ) -> None:
        self.budget = math.inf if budget is None else budget
        self.score, self.limit, self.tiny = score, limit, tiny
        self.reserve = 0
        self.memory = self.peak = self.compute = self.calls = 0
        self.remat_cost = self.remats = self.evictions = 0
        self.clock = 1
        self.pool: dict[int, weakref.ref[Stored]] = {}
        self.small: dict[int, weakref.ref[Stored]] = {}
        self.busy = 0
        self.released: list[Stored] = []
        self._random = random.Random(seed)
        self._sizes = self._stored = 0
        self._measure = score.measure
        self.view_of: Callable[[Value], Run] | None = None
        self.overlap: Callable[[Value, Value], bool] = lambda _first, _second: True

    # -- what the program does -----------------------------------------------------------------------------------------

    def constant(self, payload: Any, size: int = 0) -> Value:
        """A value that is never evicted; `size`: bytes to count for it."""
        storage = Stored(self, size)
        storage.pinned = storage.material = True
        storage.locks = 1
        storage.charged = size
        self.memory += size
        self.peak = max(self.peak, self.memory)
        return Value(storage, None, 0, payload)

    def declare(self, call: Call, outs: Sequence[Out | None]) -> list[Value | None]:
        """The results of a call come to be, not in memory yet; None for one that it does not return."""
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
                _link(arg.storage, storage)
            values.append(Value(storage, call, place))
        call.outs = tuple(None if value is None else weakref.ref(value) for value in values)
        return values

    def _storage_of(self, call: Call, out: Out, values: list[Value | None]) -> Stored:
        if out.alias >= 0:
            return call.args[out.alias].storage
        if out.beside >= 0:
            earlier = values[out.beside]
            assert earlier is not None
            return earlier.storage
        call.size += out.size
        storage = Stored(self, out.size)
        if self._measure == "eq":
            storage.node = Node(0)
        self._sizes += out.size
        self._stored += out.size > 0
        return storage

    def perform(self, call: Call) -> None:
        """Run a call for the first time; errors as of `get`, and whatever `call.run` raises."""
        self.calls += 1
        self.compute += call.cost
        self._run_all(_Frame(call, None))

    def get(self, value: Value) -> Any:
        """The payload of a value, computed again if need be.

        Raises:
            OutOfRoom: nothing is left to evict.
            Thrashing: recomputation passed its limit.
        """
        if value.payload is None:
            call = value.call
            assert call is not None
            self._run_all(_Frame(call, value))
        return value.payload

    def release(self, storage: Stored) -> None:
        """One reference of the program fewer; with the last one a storage is evicted."""
        storage.refs -= 1
        if storage.refs > 0:
            return
        if self.busy:
            self.released.append(storage)
        elif storage.material and not storage.pinned:
            self.evict(storage)

    def begin_step(self) -> None:
        """Count anew."""
        self.compute = self.calls = self.remat_cost = self.remats = self.evictions = 0
        self.peak = self.memory

    # -- memory --------------------------------------------------------------------------------------------------------

    def make_room(self, need: int, spare: int = 0) -> None:
        """Evict until `need` bytes more fit, and `spare` bytes besides unless nothing is left to evict; raises `OutOfRoom`."""
        self._evict_released()
        while self.memory + self.reserve + need + spare > self.budget:
            victim = self._victim()
            if victim is None:
                if self.memory + self.reserve + need <= self.budget:
                    return
                raise OutOfRoom(need, self.memory + self.reserve)
            self.evict(victim)

    def evict(self, storage: Stored) -> None:
        """Take a storage out of memory; all its values have to be computed again."""
        self.evictions += 1
        self._withdraw(storage)

    def _withdraw(self, storage: Stored) -> None:
        storage.material = False
        self.memory -= storage.charged
        storage.charged = 0
        self._leave_pool(storage)
        for value in storage.live_values():
            value.payload = None
        if storage.node is not None or self._measure == "eq":
            self._join(storage)

    def pin(self, storage: Stored) -> None:
        """Never evict a storage that is in memory."""
        if not storage.pinned:
            storage.pinned = True
            self.lock(storage)

    def lock(self, storage: Stored) -> None:
        """Keep a storage from being evicted."""
        if storage.locks == 0:
            self._leave_pool(storage)
        storage.locks += 1

    def unlock(self, storage: Stored) -> None:
        """Take a lock back; with the last one the storage comes to the end of the pool."""
        storage.locks -= 1
        if storage.locks == 0 and storage.material:
            self._enter_pool(storage)

    def _enter_pool(self, storage: Stored) -> None:
        small = self.tiny > 0 and storage.size * self._stored < self.tiny * self._sizes
        (self.small if small else self.pool).setdefault(id(storage), weakref.ref(storage))

    def _leave_pool(self, storage: Stored) -> None:
        self.pool.pop(id(storage), None)
        self.small.pop(id(storage), None)

    def settle(self) -> None:
        """Evict what was released while runs were under way, if none is any more."""
        if not self.busy:
            self._evict_released()

    def _evict_released(self) -> None:
        """Evict what was released while runs were under way."""
        if self.released:
            waiting, self.released = self.released, []
            for storage in waiting:
                if storage.refs > 0 or not storage.material or storage.pinned:
                    continue
                if storage.locks > 0:
                    self.released.append(storage)
                else:
                    self.evict(storage)

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _run_all(self, frame: _Frame) -> None:
        """Run a call after all that it needs; depth costs nothing but memory."""
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
        """Bring a run one piece further: the argument that is missing, or None when it has run."""
        args = frame.call.args
        if not frame.entered:
            frame.entered = True
            for place, arg in enumerate(args):
                arg.storage.access = self.clock
                if arg.payload is not None:
                    self._take_lock(frame, place)
        while frame.cursor < len(args):
            if not frame.locked[frame.cursor]:
                if args[frame.cursor].payload is None:
                    return args[frame.cursor]
                self._take_lock(frame, frame.cursor)
            frame.cursor += 1
        taken = self._takeable(frame)
        size = frame.call.size if frame.call.describe is None else frame.call.room
        self.make_room(size + frame.call.work - sum(storage.size for storage in taken), frame.call.spare)
        self._run(frame, taken)
        return None

    def _take_lock(self, frame: _Frame, place: int) -> None:
        frame.locked[place] = True
        self.lock(frame.call.args[place].storage)

    def _takeable(self, frame: _Frame) -> list[Stored]:
        """Storages whose memory the call writes to as it is; of what is needed besides it takes a copy."""
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
                self._withdraw(root.storage)
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
        """The results are in memory; the one asked for comes last to the pool, as in the simulator."""
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
                    self._enter_pool(storage)
                arrivals.append(storage)
            out.payload = results[place] if out.payload is None else out.payload
        self.memory -= call.size - counted  # what was there already, or nothing needs any more
        for storage in arrivals:
            if storage.node is not None:
                storage.node.root().value -= storage.cost
                storage.node = None
                for other in storage.near():
                    other.gone.pop(id(storage), None)

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

    # -- classes and scores --------------------------------------------------------------------------------------------

    def _join(self, storage: Stored) -> None:
        """A storage was evicted: its class takes in those of its evicted neighbors."""
        if self._measure != "eq":
            return
        storage.node = node = Node(storage.cost)
        for other in storage.near():
            other.gone[id(storage)] = node
            if not other.material and other.node is not None:
                theirs, mine = other.node.root(), node.root()
                if theirs is not mine:
                    theirs.above = mine
                    mine.value += theirs.value

    def _cost(self, storage: Stored) -> int:
        """The numerator of a score: by the measure that it asks for."""
        measure = self._measure
        if measure == "local":
            return storage.cost
        if measure == "no":
            return 1
        if measure == "eq":
            return storage.cost + _value_of(storage.gone) if storage.gone else storage.cost
        cost = storage.cost + _walk(storage, down=False)
        return cost + _walk(storage, down=True) if measure == "e*" else cost

    def _victim(self) -> Stored | None:
        """The storage of the smallest score, of equal ones the last in the pool; None: nothing can be evicted."""
        pool = self.pool or self.small
        storages = [storage for ref in list(pool.values()) if (storage := ref()) is not None]
        if not storages:
            return None
        score, clock = self.score, self.clock
        if isinstance(score, Chance):
            return storages[self._random.randrange(len(storages))]
        if type(score) is LastAccess:
            return min(reversed(storages), key=lambda storage: storage.access)
        if type(score) is not Family:
            return self._chosen(storages)
        best, victim = math.inf, storages[-1]
        sized, aged, classes, local = score.size, score.staleness, self._measure == "eq", self._measure == "local"
        for storage in storages:
            if classes:
                cost = storage.cost + _value_of(storage.gone) if storage.gone else storage.cost
            else:
                cost = storage.cost if local else self._cost(storage)
            divisor = (storage.size if sized else 1) * (clock - storage.access if aged else 1)
            value = cost / divisor if divisor > 0 else math.inf  # as `Family.value` has it
            if value <= best:
                best, victim = value, storage
                if value == 0:
                    break
        return victim

    def _chosen(self, storages: list[Stored]) -> Stored:
        """The victim by a score that scores a whole pool."""
        access = np.array([storage.access for storage in storages], np.int64)
        pool = Pool(
            cost=np.array([self._cost(storage) for storage in storages], np.int64),
            size=np.array([storage.size for storage in storages], np.int64),
            staleness=self.clock - access,
            access=access,
        )
        values = np.asarray(self.score.values(pool))
        if values.shape != (len(storages),) or values.dtype.kind not in "fi" or np.isnan(values).any():
            what = f"a score gave {values!r:.100} for {len(storages)} storages."
            raise BadArgument("P-SCORE", what, fix="return one number for each, none of them NaN.")
        zeros = np.flatnonzero(values == 0)
        if zeros.size:
            values = values[: zeros[0] + 1]
        return storages[int(np.flatnonzero(values == values.min())[-1])]


def _link(parent: Stored, child: Stored) -> None:
    """The one is read by a call that makes the other; what is never evicted is nobody's neighbor."""
    if parent is not child and not parent.pinned:
        child.up[id(parent)] = parent
        parent.down[id(child)] = weakref.ref(child)
        if child.node is not None:
            parent.gone[id(child)] = child.node
        if parent.node is not None:
            child.gone[id(parent)] = parent.node


def _value_of(gone: dict[int, Node]) -> int:
    """Cost of the distinct classes of some nodes."""
    if len(gone) == 1:
        (node,) = gone.values()
        return node.root().value
    return sum(root.value for root in {node.root() for node in gone.values()})


def _walk(storage: Stored, *, down: bool) -> int:
    """Cost of the evicted storages reached from a storage through evicted ones, towards sources or towards readers."""
    reached: set[int] = {id(storage)}
    stack, total = [storage], 0
    while stack:
        current = stack.pop()
        for other in _children(current) if down else current.up.values():
            if not other.material and id(other) not in reached:
                reached.add(id(other))
                total += other.cost
                stack.append(other)
    return total


def _children(storage: Stored) -> Iterator[Stored]:
    for ref in list(storage.down.values()):
        child = ref()
        if child is not None:
            yield child
