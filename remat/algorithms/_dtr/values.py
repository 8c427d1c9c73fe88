"""Storages, values and calls of a program that runs call by call, and who keeps whom alive.

A value lives as long as something may need it: a reference of the program (`Handle`), or a call whose results live. So nothing
grows over many steps, and no garbage collector is waited for. Payloads are whatever `Call.run` takes and returns: tensors in
the execution layer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

Run = Callable[[list[Any]], Sequence[Any]]
"""Computes the payloads of a call's results from those of its arguments."""


class Ledger(Protocol):
    """What storages are counted in; see `memory.py`."""

    memory: int
    pool: dict[int, weakref.ref[Stored]]
    small: dict[int, weakref.ref[Stored]]

    def release(self, storage: Stored) -> None:
        """One reference of the program fewer."""


class Out(NamedTuple):
    """A result that a call declares.

    Attributes:
        size: bytes.
        alias: place of the argument whose storage it shares; -1: none. shares: place of the earlier result; -1: none.
    """

    size: int
    alias: int = -1
    shares: int = -1


class Node:
    """A node of the union-find over evicted storages; of a root the cost of the class."""

    __slots__ = ("above", "value")

    def __init__(self, value: int) -> None:
        self.above: Node | None = None
        self.value = value

    def root(self) -> Node:
        """The root, with path compression."""
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
        ledger: where it is counted. size: bytes. charged: bytes that are counted for it now.
        refs: number of references of the program. handles: these references, by id.
        locks: pending runs that need it, and pins. pinned: never evicted. material: in memory.
        cost: of its calls. access: time of its last access. node: of its class.
        up, down: storages that its calls read, and storages made from it, by id. gone: classes of the evicted ones among
            them, by id. values: its values, by id.
        source, version: of a pinned storage: the program's tensor, and its version counter (-1: any). readers: calls that
            read a pinned storage.
    """

    __slots__ = ("__weakref__", "access", "charged", "cost", "down", "gone", "handles", "ledger", "locks", "material", "node",
                 "pinned", "readers", "refs", "size", "source", "up", "values", "version")  # fmt: skip

    def __init__(self, ledger: Ledger, size: int) -> None:
        self.ledger, self.size, self.charged = ledger, size, 0
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
        """Its values that are still needed."""
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
        ledger = self.ledger
        ledger.memory -= self.charged
        self.charged, self.material = 0, False  # a garbage collector may finalize handles on it afterwards
        ledger.pool.pop(id(self), None)
        ledger.small.pop(id(self), None)
        for parent in self.up.values():
            parent.gone.pop(id(self), None)
            parent.down.pop(id(self), None)


class Value:
    """A tensor of the runtime: result `index` of a call (None: a constant), with its payload while it is in memory."""

    __slots__ = ("__weakref__", "call", "index", "payload", "storage")

    def __init__(self, storage: Stored, call: Call | None, index: int, payload: Any = None) -> None:
        self.storage, self.call, self.index, self.payload = storage, call, index, payload
        storage.values[id(self)] = weakref.ref(self)

    def __del__(self) -> None:
        self.storage.values.pop(id(self), None)


class Handle:
    """A reference of the program to a value; it follows where the storage of the value is overwritten.

    Attributes:
        value: what it refers to. saved: the value must not change; stale: part of it was overwritten since.
    """

    __slots__ = ("__weakref__", "saved", "stale", "value")

    def __init__(self, value: Value, *, saved: bool = False) -> None:
        self.value, self.saved, self.stale = value, saved, False
        value.storage.refs += 1
        value.storage.handles[id(self)] = weakref.ref(self)

    def __del__(self) -> None:
        storage = self.value.storage
        storage.handles.pop(id(self), None)
        storage.ledger.release(storage)


class Call:
    """An operator that was called, as it is run again.

    Attributes:
        args: values it reads. run: computes the payloads of its results. outs: its results, while they are needed.
        cost: of a run. size: bytes of all results in new storages. work: bytes of workspace.
        takes: values whose storages it overwrites: the first results are in the memory of these, one each.
        written: at its first run, the values that it writes to.
        name: of the operator, for messages. spare: bytes to free in addition, as far as evicting goes.
        room: bytes to free for the first run, where the results are not declared; describe: declares them then from their
            payloads. values: the results, for the caller.
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


def link(parent: Stored, child: Stored) -> None:
    """Make two storages neighbors: a call reads the parent and makes the child. Pinned storages are no neighbors."""
    if parent is not child and not parent.pinned:
        child.up[id(parent)] = parent
        parent.down[id(child)] = weakref.ref(child)
        if child.node is not None:
            parent.gone[id(child)] = child.node
        if parent.node is not None:
            child.gone[id(parent)] = parent.node


def readers_of(storage: Stored) -> Iterator[Stored]:
    """The live storages that are made from a storage."""
    for ref in list(storage.down.values()):
        child = ref()
        if child is not None:
            yield child
