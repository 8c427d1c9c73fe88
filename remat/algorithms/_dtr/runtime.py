"""The runtime of DTR (Kirisame et al., ICLR 2021, Figure 1 and appendix C.4) as a resumable machine.

A requested tensor is *materialized*: the storages of its arguments are accessed; defined arguments are locked; the others are
materialized first, and each is locked once computed; then storages are evicted until all outputs of the operator fit, the
clock advances by the operator's cost, and the locks are released in order. Pending runs are kept on an explicit stack, so that
depth is not limited by recursion. The kernel returns to Python for what it cannot do itself (ask an outside score, enlarge its
tables).
"""

from __future__ import annotations

from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._dtr.classes import leave, new_class
from remat.algorithms._dtr.eviction import evict, lock, pin, stop_waiting, try_to_banish, unlock, wait_for_arguments
from remat.algorithms._dtr.pool import enter_pool, find_victim, refresh
from remat.algorithms._dtr.program import COMPUTE, GET, PIN, RELEASE, Flat
from remat.algorithms._dtr.regions import come_back
from remat.algorithms._dtr.state import BANISH, EAGER, IGNORE, OUTSIDE, Machine, State

DONE, OUT_OF_MEMORY, OVER_LIMIT, CHOOSE, GROW, GONE = range(6)
"""Why the kernel returns: the program ended; nothing is left to evict; recomputation exceeded its limit; a victim is
requested; the tables of classes or regions are full; an operator reads a banished storage."""


@kernel
def advance(m: Machine) -> int:
    """Continue the program; returns why it stopped."""
    s = m.s
    while True:
        if not has_room(m):
            return GROW
        if s.now[0].depth > 0:
            code = continue_run(m)
        elif s.now[0].step < m.g.steps.size:
            code = begin_step(m)
        else:
            return DONE
        if code != DONE:
            return code


@inner_kernel
def has_room(m: Machine) -> bool:
    """Whether the tables of classes and regions have room for the outputs of one operator and one eviction."""
    s = m.s
    if s.nodes.size > 0 and s.now[0].nodes + m.q.widest + 2 > s.nodes.size:
        return False
    return bool(s.free.size == 0 or s.now[0].slots + m.q.widest <= s.free.size)


@inner_kernel
def begin_step(m: Machine) -> int:
    """Execute the next step of the program; a step that needs a tensor computed is repeated afterwards."""
    g, s = m.g, m.s
    kind, arg = g.steps[s.now[0].step].kind, g.steps[s.now[0].step].arg
    if kind == COMPUTE:
        if not create(g, s, arg):
            return GONE
        push(m, g.ops[arg].outs, True)
    elif kind == PIN and not s.defined[arg]:
        push(m, arg, False)
        return DONE  # the step is repeated
    elif kind == PIN:
        pin(s, g.tensors[arg].storage)
    elif kind == GET:
        s.storages[g.tensors[arg].storage].refs += 1
    elif kind == RELEASE and m.q.dealloc != IGNORE:
        release(m, g.tensors[arg].storage)
    s.now[0].step += 1
    return DONE


@inner_kernel
def release(m: Machine, x: int) -> None:
    """One reference fewer."""
    mine = m.s.storages[x]
    mine.refs -= 1
    if mine.refs == 0:
        if m.q.dealloc == BANISH:
            try_to_banish(m.g, m.s, x)
        elif m.q.dealloc == EAGER and mine.material and not mine.pinned:
            evict(m.g, m.s, x)


@inner_kernel
def create(g: Flat, s: State, o: int) -> bool:
    """Create the outputs of an operator, not resident yet; False where an argument was banished."""
    first_arg, last_arg, first_out, last_out = g.ops[o].args, g.ops[o + 1].args, g.ops[o].outs, g.ops[o + 1].outs
    for k in range(first_arg, last_arg):
        if s.storages[g.args[k].storage].banished > 0:
            s.now[0].fault = o
            return False
    s.now[0].created = o + 1
    for k in range(first_arg, last_arg):
        s.storages[g.args[k].storage].down_pairs += last_out - first_out
        refresh(s, g.args[k].storage)
    for t in range(first_out, last_out):
        x = g.tensors[t].storage
        fresh = True  # an operator counts once for a storage, even with several outputs in it
        for u in range(first_out, t):
            fresh = fresh and g.tensors[u].storage != x
        if fresh:
            s.storages[x].cost += g.ops[o].cost
        s.storages[x].up_pairs += last_arg - first_arg
        s.storages[x].refs += 1
        refresh(s, x)
        if s.nodes.size > 0 and g.members[g.storages[x].members] == t:
            new_class(s, x, 0)
        if s.waits.size > 0:
            wait_for_arguments(g, s, t)
    return True


@inner_kernel
def push(m: Machine, t: int, first: bool) -> None:
    """Begin to materialize a tensor: access the storages of its arguments, lock the defined ones."""
    g, s = m.g, m.s
    frame = s.frames[s.now[0].depth]
    frame.tensor, frame.cursor, frame.first = t, 0, first
    s.now[0].depth += 1
    o = g.tensors[t].op
    for k in range(g.ops[o].args, g.ops[o + 1].args):
        x = g.args[k].storage
        s.locked[k] = False
        if s.storages[x].banished > 0:
            continue
        if m.q.dealloc != BANISH or s.storages[x].refs > 0:
            s.storages[x].access = s.now[0].clock
            refresh(s, x)
        if s.defined[g.args[k].tensor]:
            take(s, k, x)


@inner_kernel
def take(s: State, k: int, x: int) -> None:
    """Lock the argument at place `k`, in storage `x`, for the pending run."""
    s.locked[k] = True
    s.storages[x].lent += 1
    lock(s, x)


@inner_kernel
def continue_run(m: Machine) -> int:
    """Advance the innermost run: begin with a missing argument, or make room and run."""
    g, s, q = m.g, m.s, m.q
    frame = s.frames[s.now[0].depth - 1]
    o = g.tensors[frame.tensor].op
    while frame.cursor < g.ops[o + 1].args - g.ops[o].args:
        k = g.ops[o].args + frame.cursor
        if not s.locked[k] and s.storages[g.args[k].storage].banished == 0:
            if not s.defined[g.args[k].tensor]:
                push(m, g.args[k].tensor, False)
                return DONE
            take(s, k, g.args[k].storage)
        frame.cursor += 1
    code = make_room(m, g.ops[o].size + g.ops[o].work)
    if code != DONE:
        return code
    run(m, o, frame.tensor, frame.first)
    s.now[0].depth -= 1
    if frame.first:  # so that they are not evicted at once; on first runs only
        for u in range(g.ops[o].outs, g.ops[o + 1].outs):
            s.storages[g.tensors[u].storage].access = s.now[0].clock
            refresh(s, g.tensors[u].storage)
    if s.now[0].remat > q.most_cost or s.now[0].remats > q.most_runs:
        return OVER_LIMIT
    return DONE


@inner_kernel
def make_room(m: Machine, need: int) -> int:
    """Evict until `need` bytes more fit."""
    s, q = m.s, m.q
    while s.now[0].memory + need > q.budget:
        if s.now[0].count == 0:
            return OUT_OF_MEMORY
        if s.nodes.size > 0 and s.now[0].nodes + 2 > s.nodes.size:
            return GROW
        if q.kind == OUTSIDE and s.now[0].victim < 0:
            return CHOOSE
        victim = s.now[0].victim if q.kind == OUTSIDE else find_victim(m)
        s.now[0].victim = -1
        evict(m.g, s, victim)
    return DONE


@inner_kernel
def run(m: Machine, o: int, t: int, first: bool) -> None:
    """Run the operator of `t`: all its outputs are computed; outputs that were resident exist twice for a moment."""
    g, s = m.g, m.s
    s.now[0].clock += g.ops[o].cost
    s.now[0].memory += g.ops[o].size
    s.now[0].peak = max(s.now[0].peak, s.now[0].memory + g.ops[o].work)
    if not first:
        s.now[0].remat += g.ops[o].cost
        s.now[0].remats += 1
    arrivals = 0
    for u in range(g.ops[o].outs, g.ops[o + 1].outs):
        if u != t:
            arrivals += arrive(g, s, u, arrivals)
    arrivals += arrive(g, s, t, arrivals)
    if s.free.size > 0:
        come_back(g, s, arrivals)
    if s.nodes.size > 0:
        for i in range(arrivals):
            leave(g, s, s.arrived[i])
    if m.q.dealloc == BANISH:
        finish_and_banish(g, s, o, t)
        return
    for u in range(g.ops[o].outs, g.ops[o + 1].outs):
        s.defined[u] = True
    for k in range(g.ops[o].args, g.ops[o + 1].args):
        s.storages[g.args[k].storage].lent -= 1
        unlock(s, g.args[k].storage)


@inner_kernel
def arrive(g: Flat, s: State, u: int, arrivals: int) -> int:
    """The output `u` was computed; returns how many storages came into memory with it."""
    x = g.tensors[u].storage
    if s.defined[u]:  # two copies existed for a moment
        s.now[0].memory -= g.tensors[u].size
        return 0
    if s.storages[x].material:
        return 0
    s.storages[x].material = True
    enter_pool(s, x)
    s.arrived[arrivals] = x
    return 1


@inner_kernel
def finish_and_banish(g: Flat, s: State, o: int, t: int) -> None:
    """Release the locks, and banish storages that were kept only for the outputs of `o`.

    The public simulator iterates over the arguments while banishing removes some of them: the argument that moves into the
    place of the current one is skipped, and keeps its lock. That is part of its behavior, and is reproduced here.
    """
    missing, mine = 0, g.tensors[t].storage
    for u in range(g.ops[o].outs, g.ops[o + 1].outs):  # those that were computed now
        if not s.defined[u]:
            s.arrived[missing] = u
            missing += 1
            s.defined[u] = True
    for k in range(g.ops[o].args, g.ops[o + 1].args):
        if s.locked[k]:
            s.storages[g.args[k].storage].lent -= 1
    seen = 0
    while True:
        place, k = -1, g.ops[o].args
        while k < g.ops[o + 1].args and place < seen:  # the argument at place `seen` among those that are left
            if s.storages[g.args[k].storage].banished == 0 or g.args[k].storage == mine:
                place += 1
            k += 1
        if place < seen:
            return
        x = g.args[k - 1].storage
        if s.storages[x].banished > 0:  # with the storage of `t` itself
            return
        unlock(s, x)
        for i in range(missing):
            if g.tensors[s.arrived[i]].storage != x:
                stop_waiting(g, s, s.arrived[i], x)
        try_to_banish(g, s, x)
        seen += 1
