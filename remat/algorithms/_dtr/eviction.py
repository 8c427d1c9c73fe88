"""Evicting, locking, pinning and banishing storages."""

from __future__ import annotations

from remat.algorithms._arrays.jit import inner_kernel
from remat.algorithms._dtr.classes import join, leave
from remat.algorithms._dtr.pool import enter_pool, leave_pool
from remat.algorithms._dtr.program import Flat
from remat.algorithms._dtr.regions import leave_memory
from remat.algorithms._dtr.state import State, linked


@inner_kernel
def evict(g: Flat, s: State, x: int) -> None:
    """Evict a storage; all its tensors become undefined."""
    s.storages[x].material = False
    s.now[0].memory -= s.storages[x].size
    s.now[0].evictions += 1
    leave_pool(s, x)
    for k in range(g.storages[x].members, g.storages[x + 1].members):
        t = g.members[k]
        if g.tensors[t].op >= s.now[0].created:
            break
        s.defined[t] = False
        if s.waits.size > 0:
            wait_for_arguments(g, s, t)
    if s.free.size > 0:
        leave_memory(g, s, x)
    if s.nodes.size > 0:
        join(g, s, x)


@inner_kernel
def wait_for_arguments(g: Flat, s: State, t: int) -> None:
    """The tensor `t` is an evicted dependent of the storages of its arguments, except its own."""
    o, mine = g.tensors[t].op, g.tensors[t].storage
    for k in range(g.ops[o].args, g.ops[o + 1].args):
        y, place = g.args[k].storage, k - g.ops[o].args
        if y != mine and linked(s, mine, y) and g.args[k].first == place and not s.waits[g.tensors[t].waits + place]:
            s.waits[g.tensors[t].waits + place] = True
            s.storages[y].dependents += 1


@inner_kernel
def stop_waiting(g: Flat, s: State, t: int, y: int) -> None:
    """The tensor `t` is no longer an evicted dependent of the storage `y`."""
    o = g.tensors[t].op
    for k in range(g.ops[o].args, g.ops[o + 1].args):
        place = g.tensors[t].waits + k - g.ops[o].args
        if s.waits[place] and g.args[k].storage == y:
            s.waits[place] = False
            s.storages[y].dependents -= 1


@inner_kernel
def lock(s: State, x: int) -> None:
    """Keep a resident storage from being evicted."""
    if s.storages[x].locks == 0:
        leave_pool(s, x)
    s.storages[x].locks += 1


@inner_kernel
def unlock(s: State, x: int) -> None:
    """Release a lock; with its last lock released, the storage goes to the end of the pool."""
    s.storages[x].locks -= 1
    if s.storages[x].locks == 0:
        enter_pool(s, x)


@inner_kernel
def pin(s: State, x: int) -> None:
    """Lock a storage permanently."""
    if not s.storages[x].pinned:
        s.storages[x].pinned = True
        lock(s, x)


@inner_kernel
def try_to_banish(g: Flat, s: State, x: int) -> None:
    """Remove a storage permanently if it has no references and no evicted dependents; its dependents are pinned."""
    mine = s.storages[x]
    if mine.refs > 0 or mine.dependents > 0 or mine.banished > 0 or mine.lent > 0:
        return
    if mine.material:
        mine.locks = 0
        evict(g, s, x)
    if s.nodes.size > 0:
        leave(g, s, x)
    s.now[0].banished += 1
    mine.banished = s.now[0].banished
    for k in range(g.storages[x].members, g.storages[x + 1].members):
        t = g.members[k]
        if g.tensors[t].op >= s.now[0].created:
            break
        forget_tensor(g, s, t, x)
    for k in range(g.storages[x].down, g.storages[x + 1].down):
        if g.down[k].since >= s.now[0].created:
            break
        if s.storages[g.down[k].storage].banished == 0:
            pin(s, g.down[k].storage)


@inner_kernel
def forget_tensor(g: Flat, s: State, t: int, x: int) -> None:
    """Disconnect a tensor of the banished storage `x` from its arguments and its readers."""
    o = g.tensors[t].op
    for k in range(g.ops[o].args, g.ops[o + 1].args):
        y = g.args[k].storage
        if y != x and s.storages[y].banished == 0:
            s.storages[y].down_pairs -= 1
            stop_waiting(g, s, t, y)
    for k in range(g.tensors[t].uses, g.tensors[t + 1].uses):
        reader = g.uses[k]
        if reader >= s.now[0].created:
            break
        for u in range(g.ops[reader].outs, g.ops[reader + 1].outs):
            y = g.tensors[u].storage
            if y != x and s.storages[y].banished == 0:
                s.storages[y].up_pairs -= 1
