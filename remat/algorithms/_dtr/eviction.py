"""Evicting, locking, pinning and banishing storages."""

from __future__ import annotations

from remat.algorithms._arrays.jit import inner_kernel
from remat.algorithms._dtr.classes import join, leave
from remat.algorithms._dtr.pool import enter_pool, leave_pool
from remat.algorithms._dtr.regions import leave_memory
from remat.algorithms._dtr.state import BANISH, BANISHED, CREATED, EVICTIONS, MEMORY, Machine, linked


@inner_kernel
def evict(m: Machine, x: int) -> None:
    """Take a storage out of memory; all its tensors have to be computed again."""
    g, s = m.g, m.s
    s.material[x] = False
    s.now[MEMORY] -= g.storage_size[x]
    s.tally[EVICTIONS] += 1
    leave_pool(s, x)
    for k in range(g.storage_ptr[x], g.storage_ptr[x + 1]):
        t = g.storage_idx[k]
        if g.tensor_op[t] >= s.now[CREATED]:
            break
        s.defined[t] = False
        if m.q.dealloc == BANISH:
            wait_for_arguments(m, t)
    if m.r.slot.size > 0:
        leave_memory(g, s, m.r, x)
    if m.c.cached.size > 0:
        join(g, s, m.c, x)


@inner_kernel
def wait_for_arguments(m: Machine, t: int) -> None:
    """The tensor `t` is an evicted dependent of the storages of its arguments, its own apart."""
    g, s = m.g, m.s
    o, mine = g.tensor_op[t], g.tensor_storage[t]
    for k in range(g.arg_ptr[o], g.arg_ptr[o + 1]):
        y = g.tensor_storage[g.arg_idx[k]]
        place = g.wait_ptr[t] + k - g.arg_ptr[o]
        if y != mine and linked(s, mine, y) and g.arg_first[k] == k - g.arg_ptr[o] and not s.waits[place]:
            s.waits[place] = True
            s.dependents[y] += 1


@inner_kernel
def stop_waiting(m: Machine, t: int, y: int) -> None:
    """The tensor `t` is no evicted dependent of the storage `y` any more."""
    g, s = m.g, m.s
    o = g.tensor_op[t]
    for k in range(g.arg_ptr[o], g.arg_ptr[o + 1]):
        place = g.wait_ptr[t] + k - g.arg_ptr[o]
        if s.waits[place] and g.tensor_storage[g.arg_idx[k]] == y:
            s.waits[place] = False
            s.dependents[y] -= 1


@inner_kernel
def lock(m: Machine, x: int) -> None:
    """Keep a resident storage from being evicted."""
    if m.s.locks[x] == 0:
        leave_pool(m.s, x)
    m.s.locks[x] += 1


@inner_kernel
def unlock(m: Machine, x: int) -> None:
    """Take a lock back; with the last one the storage comes to the end of the pool."""
    m.s.locks[x] -= 1
    if m.s.locks[x] == 0:
        enter_pool(m.s, x)


@inner_kernel
def pin(m: Machine, x: int) -> None:
    """Lock a storage for good."""
    if not m.s.pinned[x]:
        m.s.pinned[x] = True
        lock(m, x)


@inner_kernel
def try_to_banish(m: Machine, x: int) -> bool:
    """Remove a storage for good if nothing refers to it and no dependent is evicted; what was made from it is pinned."""
    g, s = m.g, m.s
    if s.refs[x] > 0 or s.dependents[x] > 0 or s.banished[x] > 0 or s.lent[x] > 0:
        return False
    if s.material[x]:
        s.locks[x] = 0
        evict(m, x)
    if m.c.cached.size > 0:
        leave(g, s, m.c, x)
    s.now[BANISHED] += 1
    s.banished[x] = s.now[BANISHED]
    for k in range(g.storage_ptr[x], g.storage_ptr[x + 1]):
        t = g.storage_idx[k]
        if g.tensor_op[t] >= s.now[CREATED]:
            break
        forget_tensor(m, t, x)
    for k in range(g.down.ptr[x], g.down.ptr[x + 1]):
        if g.down.since[k] >= s.now[CREATED]:
            break
        y = g.down.idx[k]
        if s.banished[y] == 0:
            pin(m, y)
    return True


@inner_kernel
def forget_tensor(m: Machine, t: int, x: int) -> None:
    """Cut a tensor of the banished storage `x` off what it was made from and what was made from it."""
    g, s = m.g, m.s
    o = g.tensor_op[t]
    for k in range(g.arg_ptr[o], g.arg_ptr[o + 1]):
        y = g.tensor_storage[g.arg_idx[k]]
        if y != x and s.banished[y] == 0:
            s.down_edges[y] -= 1
            if g.arg_first[k] == k - g.arg_ptr[o]:
                stop_waiting(m, t, y)
    for k in range(g.use_ptr[t], g.use_ptr[t + 1]):
        if g.use_idx[k] >= s.now[CREATED]:
            break
        for u in range(g.out_ptr[g.use_idx[k]], g.out_ptr[g.use_idx[k] + 1]):
            if g.tensor_storage[u] != x and s.banished[g.tensor_storage[u]] == 0:
                s.up_edges[g.tensor_storage[u]] -= 1
