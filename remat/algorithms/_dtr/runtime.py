"""The runtime of DTR (Kirisame et al., ICLR 2021, Figure 1 and appendix C.4) as a machine that can be left and entered again.

A tensor that is asked for is *materialized*: the storages of its arguments are accessed now; arguments that are there
are locked; the others are materialized first, each locked as it comes; then room is made for all outputs of its operator,
the clock moves on by the operator's cost, and the locks are taken back in order. Runs under way stand on a stack, so that
depth costs nothing, and whatever the kernel cannot do alone (ask an outside score, find more room for its arrays) it
returns for.
"""

from __future__ import annotations

from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._dtr.classes import leave, new_class
from remat.algorithms._dtr.eviction import evict, lock, pin, stop_waiting, try_to_banish, unlock, wait_for_arguments
from remat.algorithms._dtr.pool import enter_pool, find_victim
from remat.algorithms._dtr.program import COMPUTE, GET, PIN, RELEASE
from remat.algorithms._dtr.regions import come_back
from remat.algorithms._dtr.state import (
    BANISH,
    CLOCK,
    COUNT,
    CREATED,
    DEPTH,
    DIRTY,
    EAGER,
    FAULT,
    IGNORE,
    MEMORY,
    NODES,
    OUTSIDE,
    PEAK,
    REMAT,
    REMATS,
    SLOTS,
    STEP,
    VICTIM,
    Machine,
)

DONE, OUT_OF_MEMORY, OVER_LIMIT, CHOOSE, GROW, GONE = range(6)
"""Why the kernel returns: the program ended; nothing is left to evict; recomputation passed its limit; a victim is
wanted; classes or regions need more room; an operator reads what was banished."""


@kernel
def advance(m: Machine) -> int:
    """Run the program on, from where it is; returns why it stopped."""
    s = m.s
    while True:
        if not has_room(m):
            return GROW
        if s.now[DEPTH] > 0:
            code = continue_run(m)
        elif s.now[STEP] < m.g.step_kind.size:
            code = begin_step(m)
        else:
            return DONE
        if code != DONE:
            return code


@inner_kernel
def has_room(m: Machine) -> bool:
    """Whether classes and regions have room for the outputs of one operator and one eviction."""
    if m.c.cached.size > 0 and m.s.now[NODES] + m.q.widest + 2 > m.c.parent.size:
        return False
    return m.r.slot.size == 0 or m.s.now[SLOTS] + m.q.widest <= m.r.free.size


@inner_kernel
def begin_step(m: Machine) -> int:
    """Take the next step of the program; one that needs a tensor computed stays until it is."""
    g, s = m.g, m.s
    kind, arg = g.step_kind[s.now[STEP]], g.step_arg[s.now[STEP]]
    if kind == COMPUTE:
        if not create(m, arg):
            return GONE
        push(m, g.out_ptr[arg], True)
    elif kind == PIN and not s.defined[arg]:
        push(m, arg, False)
        return DONE  # the step is taken again
    elif kind == PIN:
        pin(m, g.tensor_storage[arg])
    elif kind == GET:
        s.refs[g.tensor_storage[arg]] += 1
    elif kind == RELEASE and m.q.dealloc != IGNORE:
        release(m, g.tensor_storage[arg])
    s.now[STEP] += 1
    return DONE


@inner_kernel
def release(m: Machine, x: int) -> None:
    """One reference fewer."""
    m.s.refs[x] -= 1
    if m.s.refs[x] == 0:
        if m.q.dealloc == BANISH:
            try_to_banish(m, x)
        elif m.q.dealloc == EAGER and m.s.material[x] and not m.s.pinned[x]:
            evict(m, x)


@inner_kernel
def create(m: Machine, o: int) -> bool:
    """The outputs of an operator come to be, not in memory yet; False where an argument was banished."""
    g, s = m.g, m.s
    for k in range(g.arg_ptr[o], g.arg_ptr[o + 1]):
        if s.banished[g.tensor_storage[g.arg_idx[k]]] > 0:
            s.now[FAULT] = o
            return False
    s.now[CREATED] = o + 1
    outputs, args = g.out_ptr[o + 1] - g.out_ptr[o], g.arg_ptr[o + 1] - g.arg_ptr[o]
    for k in range(g.arg_ptr[o], g.arg_ptr[o + 1]):
        s.down_edges[g.tensor_storage[g.arg_idx[k]]] += outputs
    for t in range(g.out_ptr[o], g.out_ptr[o + 1]):
        x = g.tensor_storage[t]
        s.up_edges[x] += args
        s.refs[x] += 1
        fresh = True  # an operator counts once for a storage, whatever it makes in it
        for u in range(g.out_ptr[o], t):
            fresh = fresh and g.tensor_storage[u] != x
        s.cost[x] += g.op_cost[o] if fresh else 0
        if m.c.cached.size > 0 and g.storage_idx[g.storage_ptr[x]] == t:
            new_class(s, m.c, x, 0)
        if m.q.dealloc == BANISH:
            wait_for_arguments(m, t)
    if m.c.cached.size > 0:
        for k in range(g.arg_ptr[o], g.arg_ptr[o + 1]):
            m.c.cached[g.tensor_storage[g.arg_idx[k]]] = DIRTY
        for t in range(g.out_ptr[o], g.out_ptr[o + 1]):
            m.c.cached[g.tensor_storage[t]] = DIRTY
    return True


@inner_kernel
def push(m: Machine, t: int, first: bool) -> None:
    """Begin to materialize a tensor: access the storages of its arguments, lock those that are there."""
    g, s = m.g, m.s
    depth = s.now[DEPTH]
    s.frame[depth], s.cursor[depth], s.first[depth] = t, 0, first
    s.now[DEPTH] += 1
    o = g.tensor_op[t]
    for k in range(g.arg_ptr[o], g.arg_ptr[o + 1]):
        x = g.tensor_storage[g.arg_idx[k]]
        s.locked[k] = False
        if s.banished[x] > 0:
            continue
        if m.q.dealloc != BANISH or s.refs[x] > 0:
            s.access[x] = s.now[CLOCK]
        if s.defined[g.arg_idx[k]]:
            take(m, k, x)


@inner_kernel
def take(m: Machine, k: int, x: int) -> None:
    """Lock the argument at place `k`, in storage `x`, for the run under way."""
    m.s.locked[k] = True
    m.s.lent[x] += 1
    lock(m, x)


@inner_kernel
def continue_run(m: Machine) -> int:
    """Bring the innermost run one piece further: an argument that is missing, or room and the run itself."""
    g, s = m.g, m.s
    depth = s.now[DEPTH] - 1
    t = s.frame[depth]
    o = g.tensor_op[t]
    while s.cursor[depth] < g.arg_ptr[o + 1] - g.arg_ptr[o]:
        k = g.arg_ptr[o] + s.cursor[depth]
        x = g.tensor_storage[g.arg_idx[k]]
        if not s.locked[k] and s.banished[x] == 0:
            if not s.defined[g.arg_idx[k]]:
                push(m, g.arg_idx[k], False)
                return DONE
            take(m, k, x)
        s.cursor[depth] += 1
    need = g.op_size[o] + g.op_work[o]
    while s.now[MEMORY] + need > m.q.budget:
        if s.now[COUNT] == 0:
            return OUT_OF_MEMORY
        if m.c.cached.size > 0 and s.now[NODES] + 2 > m.c.parent.size:
            return GROW
        if m.q.kind == OUTSIDE and s.now[VICTIM] < 0:
            return CHOOSE
        victim = s.now[VICTIM] if m.q.kind == OUTSIDE else find_victim(m)
        s.now[VICTIM] = -1
        evict(m, victim)
    run(m, t)
    s.now[DEPTH] = depth
    if s.first[depth]:
        for u in range(g.out_ptr[o], g.out_ptr[o + 1]):  # so that they are not evicted at once; not when run again
            s.access[g.tensor_storage[u]] = s.now[CLOCK]
    if s.tally[REMAT] > m.q.most_cost or s.tally[REMATS] > m.q.most_runs:
        return OVER_LIMIT
    return DONE


@inner_kernel
def run(m: Machine, t: int) -> None:
    """Run the operator of `t`: all its outputs are computed, those that were there twice for a moment."""
    g, s = m.g, m.s
    o = g.tensor_op[t]
    s.now[CLOCK] += g.op_cost[o]
    s.now[MEMORY] += g.op_size[o]
    s.tally[PEAK] = max(s.tally[PEAK], s.now[MEMORY] + g.op_work[o])
    if not s.first[s.now[DEPTH] - 1]:
        s.tally[REMAT] += g.op_cost[o]
        s.tally[REMATS] += 1
    arrivals = 0
    for u in range(g.out_ptr[o], g.out_ptr[o + 1]):
        if u != t:
            arrivals += arrive(m, u, arrivals)
    arrivals += arrive(m, t, arrivals)
    if m.r.slot.size > 0:
        come_back(g, s, m.r, arrivals)
    if m.c.cached.size > 0:
        for i in range(arrivals):
            leave(g, s, m.c, s.arrived[i])
    if m.q.dealloc == BANISH:
        finish_and_banish(m, o, t)
    else:
        for u in range(g.out_ptr[o], g.out_ptr[o + 1]):
            s.defined[u] = True
        for k in range(g.arg_ptr[o], g.arg_ptr[o + 1]):
            s.lent[g.tensor_storage[g.arg_idx[k]]] -= 1
            unlock(m, g.tensor_storage[g.arg_idx[k]])


@inner_kernel
def arrive(m: Machine, u: int, arrivals: int) -> int:
    """The output `u` was computed; returns how many storages came into memory with it."""
    s, x = m.s, m.g.tensor_storage[u]
    if s.defined[u]:  # there were two of it for a moment
        s.now[MEMORY] -= m.g.tensor_size[u]
        return 0
    if s.material[x]:
        return 0
    s.material[x] = True
    enter_pool(s, x)
    s.arrived[arrivals] = x
    return 1


@inner_kernel
def finish_and_banish(m: Machine, o: int, t: int) -> None:
    """Take the locks back, and banish what was kept for the outputs of `o` alone.

    The public simulator walks over the arguments while banishing takes some out: the one that moves up into the place of
    the last one seen is passed over, and keeps its lock for good. That is part of its behavior, so it is here too.
    """
    g, s = m.g, m.s
    missing = 0
    for u in range(g.out_ptr[o], g.out_ptr[o + 1]):  # those that were computed now
        if u == t or not s.defined[u]:
            s.arrived[missing] = u
            missing += 1
        s.defined[u] = True
    for k in range(g.arg_ptr[o], g.arg_ptr[o + 1]):
        if s.locked[k]:
            s.lent[g.tensor_storage[g.arg_idx[k]]] -= 1
    seen = 0
    while True:
        place, k = -1, g.arg_ptr[o]
        while k < g.arg_ptr[o + 1] and place < seen:  # the argument at place `seen` among those that are left
            if s.banished[g.tensor_storage[g.arg_idx[k]]] == 0 or g.tensor_storage[g.arg_idx[k]] == g.tensor_storage[t]:
                place += 1
            k += 1
        if place < seen:
            break
        x = g.tensor_storage[g.arg_idx[k - 1]]
        if s.banished[x] > 0:  # with the storage of `t` itself
            break
        unlock(m, x)
        for i in range(missing):
            if g.tensor_storage[s.arrived[i]] != x:
                stop_waiting(m, s.arrived[i], x)
        try_to_banish(m, x)
        seen += 1
