"""A bound for what a state of the search over schedules with copies still takes.

Every node that has not run does, and every node whose cells they need and that are neither on the device nor on the host runs
again. Beyond that, at the first run of any node v that is left, what was made before and is read after it has three places: on
the device, within the budget; on the host, if the lanes have time to carry it there before and back after; or nowhere, and it is
made again after. Bytes and lane times are taken as divisible, at the best rates of any cell: T(y), for y ns of reruns, is then
convex and piecewise linear, and its smallest value is a bound for the waiting and the reruns beyond those counted.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Longs
from remat.algorithms._arrays.jit import inner_kernel
from remat.algorithms._whole.timed_tables import Timed

NOW, RAN, HERE, HOST, NODE, NODE_END, OUT, OUT_END, BACK, BACK_END, WHOLE, ARRIVED = range(12)
"""Columns of a state: its time; the nodes that have started, the cells on the device and on the host, as masks; the node that
runs, the cell on its way to the host and the one on its way to the device, each with the time when it ends; the cells whose
copies to the host and to the device end just now. -1: none."""

STAGE, ORIGIN, FETCHED, NEXT, LEAST = range(12, 17)
"""Columns: which decision comes next; the state before; the cell whose fetch led here; the next state of the same list; a bound
for the time of the step."""

FIELDS = 17

NEVER = 1 << 60
_FAR = 1e17
_SAFE = 1e-6  # of rounding [ns], and of the largest number that is added up:
_SHARE = 2.0**-46

Pair = tuple[float, float]
"""Bytes that cannot stay on the device, and of them those that have to be carried to the host first."""


@inner_kernel
def bit_of(i: int) -> int:
    """The mask of one position; of -1, an empty one."""
    return 1 << i if i >= 0 else 0


@inner_kernel
def of_run(masks: Longs, state: Longs) -> int:
    """The mask of the node that runs; empty: none does."""
    return int(masks[state[NODE]]) if state[NODE] >= 0 else 0


@inner_kernel
def available(t: Timed, state: Longs) -> int:
    """Mask of the cells that exist when all that is under way has ended."""
    cells = (state[HERE] | state[HOST]) & ~of_run(t.takes, state) | of_run(t.makes, state)
    return int(cells | bit_of(state[OUT]) | bit_of(state[BACK]))


@inner_kernel
def must_run(t: Timed, state: Longs) -> int:
    """Mask of the nodes that must run, from now on."""
    exist = available(t, state)
    nodes = t.required & ~state[RAN]
    for v in range(t.time.size - 1, -1, -1):
        if not nodes >> v & 1:
            continue
        missing = t.needs[v] & ~exist
        while missing:
            bit = missing & -missing
            missing ^= bit
            nodes |= 1 << t.producer[_index(bit)]
    return int(nodes)


@inner_kernel
def wanted_cells(t: Timed, state: Longs) -> int:
    """Mask of the cells that are read by nodes that have not run, or from which something wanted can be made again."""
    wanted = 0
    unrun = t.required & ~state[RAN]
    for v in range(t.time.size - 1, -1, -1):
        if unrun >> v & 1 or (t.again[v] and t.makes[v] & wanted):
            wanted |= t.needs[v]
    return wanted


@inner_kernel
def _index(bit: int) -> int:
    """The position of a mask's only bit."""
    i = 0
    while bit >> i != 1:
        i += 1
    return i


@inner_kernel
def time_of(t: Timed, nodes: int) -> int:
    """Time of the nodes of a mask [ns]."""
    total = 0
    for v in range(t.time.size):
        if nodes >> v & 1:
            total += t.time[v]
    return total


@inner_kernel
def least_time(t: Timed, state: Longs, work: Longs) -> int:
    """A bound for the time of a step that comes to this state [ns]; `NEVER`: it cannot end. `work`: three entries a node."""
    nodes = must_run(t, state)
    unrun = t.required & ~state[RAN]
    for v in range(t.time.size):
        if nodes >> v & 1 and not unrun >> v & 1 and not t.again[v]:
            return NEVER
        work[v] = t.time[v] + time_of(t, unrun & t.earlier[v])
    base = max(state[NOW], state[NODE_END]) + time_of(t, nodes)
    most = max(0, state[OUT_END] - base, state[BACK_END] - base, _beyond(t, state, nodes, -1, work))
    for v in range(t.time.size):
        if unrun >> v & 1:
            most = max(most, _beyond(t, state, nodes, v, work))
    return NEVER if most >= NEVER else base + most


@inner_kernel
def _beyond(t: Timed, state: Longs, nodes: int, at: int, work: Longs) -> int:
    """Waiting and reruns beyond `nodes`, by what can be where when node `at` first starts; -1: now, whatever is live [ns]."""
    unrun = t.required & ~state[RAN]
    exist, again = available(t, state), nodes & ~unrun
    away = state[HOST] | bit_of(state[OUT])
    before, after, itself, need, over = 0, unrun, 0, 0, 0
    if at >= 0:
        before, after, itself, need = unrun & t.earlier[at], unrun & t.later[at], 1 << at, t.needs[at]
        over = t.charge[at] - t.budget
    else:
        exist &= away & ~(state[HERE] | bit_of(state[BACK]))
    free, out_rate, back_rate, head, tail, candidates = (
        0,
        _FAR,
        _FAR,
        NEVER,
        NEVER,
        0,
    )  # the least of each, over the cells
    for c in range(t.size.size):
        bit, p = 1 << c, t.producer[c]
        first = before >> p & 1
        if t.size[c] == 0 or not (exist & bit or first):
            continue
        if (need | t.kept) & bit:
            over += t.size[c]
            continue
        readers = after & t.readers[c]
        if readers == 0 or again >> p & 1:
            continue
        over += t.size[c]
        candidates |= bit
        if t.movable & bit:
            tail = min(tail, _longest(t, readers))
            back_rate = min(back_rate, t.back[c] / t.size[c])
            if away & bit and not first:
                free += t.size[c]
            else:
                out_rate = min(out_rate, t.out[c] / t.size[c])
                head = min(head, work[p] if first else 0)
    if over <= 0:
        return 0
    waits = max(0, state[NODE_END] - state[NOW])
    room_out = waits + time_of(t, nodes & ~(after | itself)) - max(head, state[OUT_END] - state[NOW])
    room_back = time_of(t, nodes & ~before) - tail
    if at < 0:
        room_back += waits - max(0, state[BACK_END] - state[NOW])
    items = _sorted_producers(t, candidates, work)
    needed = (float(over), float(max(0, over - free)))
    return _least(t, work, items, needed, (out_rate, back_rate, max(0, room_out), max(0, room_back)))


@inner_kernel
def _longest(t: Timed, readers: int) -> int:
    """The longest span of these nodes [ns]."""
    most = 0
    while readers:
        bit = readers & -readers
        readers ^= bit
        most = max(most, t.span[_index(bit)])
    return most


@inner_kernel
def _sorted_producers(t: Timed, cells: int, work: Longs) -> int:
    """The nodes that may make these cells again, by time per byte of them, and those bytes, in the rest of `work`; how many."""
    nodes = t.time.size
    count = 0
    for p in range(nodes):
        if not t.again[p]:
            continue
        both, mass = cells & t.makes[p], 0
        while both:
            bit = both & -both
            both ^= bit
            mass += t.size[_index(bit)]
        if mass == 0:
            continue
        place = count
        # as floats: bytes times nanoseconds may exceed whole numbers, and which of two like rates comes first costs nothing
        while place and float(work[2 * nodes + place - 1]) * t.time[p] < float(mass) * t.time[work[nodes + place - 1]]:
            work[nodes + place], work[2 * nodes + place] = work[nodes + place - 1], work[2 * nodes + place - 1]
            place -= 1
        work[nodes + place], work[2 * nodes + place] = p, mass
        count += 1
    return count


@inner_kernel
def _least(t: Timed, work: Longs, items: int, needed: Pair, lanes: tuple[float, float, int, int]) -> int:
    """The smallest T(y), rounded up [ns]; `NEVER`: the cells have no place."""
    nodes, y, best = t.time.size, 0.0, _longest_of(0.0, needed, lanes)
    over, carried = needed
    for i in range(items):
        if over <= 0:
            break
        rate = t.time[work[nodes + i]] / work[2 * nodes + i]  # ns per byte
        left = float(work[2 * nodes + i])
        while left > 0 and over > 0:
            part = min(left, over)
            if carried > 0:
                part = min(part, carried)
            best = min(best, _least_between(y, (over, carried), part, rate, lanes))
            y, over, carried, left = y + part * rate, over - part, max(0.0, carried - part), left - part
    out_rate, back_rate, room_out, room_back = lanes
    largest = y + room_out + room_back
    for term in (needed[1] * out_rate, needed[0] * back_rate):
        if term < _FAR:
            largest += term
    return NEVER if best >= _FAR else int(np.ceil(best - _SAFE - largest * _SHARE))


@inner_kernel
def _least_between(y: float, needed: Pair, part: float, rate: float, lanes: tuple[float, float, int, int]) -> float:
    """The smallest T where the next `part` bytes are made again, at most: at both ends, and where two of its pieces cross."""
    end = (needed[0] - part, needed[1] - part if needed[1] > 0 else 0.0)
    a, b = _pieces(y, needed, lanes), _pieces(y + part * rate, end, lanes)
    best = min(max(a[0], a[1], a[2]), max(b[0], b[1], b[2]))
    for i in range(3):
        for j in range(i):
            ahead, behind = a[i] - a[j], b[i] - b[j]
            if ahead * behind < 0:
                x = ahead / (ahead - behind)
                best = min(best, max(a[0] + x * (b[0] - a[0]), a[1] + x * (b[1] - a[1]), a[2] + x * (b[2] - a[2])))
    return best


@inner_kernel
def _longest_of(y: float, needed: Pair, lanes: tuple[float, float, int, int]) -> float:
    """T at a point."""
    a, b, c = _pieces(y, needed, lanes)
    return max(a, b, c)


@inner_kernel
def _pieces(y: float, needed: Pair, lanes: tuple[float, float, int, int]) -> tuple[float, float, float]:
    """The three numbers of which T is the largest: reruns; reruns and waiting before; all time after: linear."""
    out_rate, back_rate, room_out, room_back = lanes
    return y, y + needed[1] * out_rate - room_out, needed[0] * back_rate - room_back
