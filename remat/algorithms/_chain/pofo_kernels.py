"""The compiled kernels of POFO: the backward table C and the forward search over (stage, x, A, dF, dB).

All memory is in slots. What a link moves while a node runs is counted in whole slots too, rounded on cumulated times, so that
the error does not grow with the number of nodes; where bandwidth times time is whole, nothing is rounded. A is the memory that
held inputs of stages take; dF and dB are the slots that copies to and from the host still have to move.

States satisfy A + dF <= M and A + dB <= M: the block of A holds (M - A + 1)^2 pairs (dF, dB), the row of A in C holds
M - A + 1 values of Delta. Reference: POFO (Beaumont, Eyraud-Dubois, Shilova, 2021), App. B.1 to B.3, Table 2 and Lemma 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._chain.chain_arrays import ChainArrays, Ints

INFINITE = 1e300

Floats = NDArray[np.float64]


class Moves(NamedTuple):
    """What one lane of the link moves.

    Attributes:
        forward, backward: slots, while one stage runs.
        no_save: `no_save[i]`: slots, while the stages before i run without saving.
        loss: slots, while the loss runs. per_slot: time of one slot [ns].
    """

    forward: Ints
    backward: Ints
    no_save: Ints
    loss: int
    per_slot: float


class Lanes(NamedTuple):
    """What may be done: `copies` over the lanes to the host (`out`) and back, `recompute`: recomputation."""

    out: Moves
    back: Moves
    copies: bool
    recompute: bool


class Table(NamedTuple):
    """The backward table C, pairs of stages by (A, Delta): the least time, and the slots the link can move meanwhile."""

    value: Floats
    moved: NDArray[np.int32]


class States(NamedTuple):
    """The states of the forward search.

    Attributes:
        cost: the least time to a state so far. came: the state before it on that path, -1: none.
        least: of the states of one (stage, x), the least cost of one that holds and owes no more: others are dominated.
    """

    cost: Floats
    came: Ints
    least: Floats


class State(NamedTuple):
    """A state (stage, x, A, dF, dB) of the forward search.

    Attributes:
        size: slots of the input of the stage, with what the stage before saved. a_with_input: A with it.
        at: index of the state. cost: the least time of a path to it.
    """

    stage: int
    a: int
    df: int
    db: int
    size: int
    a_with_input: int
    at: int
    cost: float


@inner_kernel
def pair_of(i: int, j: int, length: int) -> int:
    """Index of the pair of stages i <= j."""
    return i * length - i * (i - 1) // 2 + j - i


@inner_kernel
def row_start(a: int, slots: int) -> int:
    """Where the row of A = `a` starts in a table over (A, Delta) with A + Delta <= slots."""
    return a * (slots + 1) - a * (a - 1) // 2


@inner_kernel
def saving_first(arrays: ChainArrays, back: Moves, table: Table, i: int, j: int, deltas: int) -> None:
    """C(i, j) where stage i runs once, saving all that its backward reads."""
    slots, pair = arrays.slots, pair_of(i, j, arrays.no_save_time.size)
    need_f, need_b = arrays.forward[i] + arrays.after[j], arrays.backward[i] + arrays.after[i]
    once = arrays.forward_time[i] + arrays.backward_time[i]
    for a in range(slots - max(need_b, need_f) + 1):
        row = row_start(a, slots)
        deep = a + arrays.saves[i]
        for delta in range(min(deltas, slots - a) + 1):
            best, most = INFINITE, 0
            wait_b = max(need_b + a + delta - slots, 0)
            if i == j:
                wait = max(wait_b, need_f - back.backward[i] + a + delta - slots)
                best = once + wait * back.per_slot
                most = back.forward[i] + back.backward[i] + wait
            elif deep <= slots:
                rest = max(delta - back.backward[i] - wait_b, 0)
                inner, at = pair_of(i + 1, j, arrays.no_save_time.size), row_start(deep, slots) + rest
                if rest <= slots - deep and table.value[inner, at] < INFINITE:
                    moved = table.moved[inner, at]
                    wait = wait_b + max(need_f + a + max(rest - moved, 0) - slots, 0)
                    best = once + table.value[inner, at] + wait * back.per_slot
                    most = back.forward[i] + back.backward[i] + moved + wait
            table.value[pair, row + delta] = best
            table.moved[pair, row + delta] = most


class Split(NamedTuple):
    """A way to begin C(i, j): stages i..k run without saving, cost `cost`, need `needed` slots, and are `behind` the link."""

    i: int
    j: int
    k: int
    cost: float
    needed: int
    behind: int


@inner_kernel
def recompute_first(arrays: ChainArrays, back: Moves, table: Table, split: Split, deltas: int) -> None:
    """C(i, j) where stages i..k run without saving, the input of k + 1 is held, then k + 1..j runs, then i..k once more."""
    length, slots, k, kept = arrays.no_save_time.size, arrays.slots, split.k, arrays.input_size[split.k + 1]
    pair = pair_of(split.i, split.j, length)
    first, second = pair_of(split.i, k, length), pair_of(k + 1, split.j, length)
    for a in range(slots - max(split.needed, kept) + 1):
        row, deep = row_start(a, slots), row_start(a + kept, slots)
        for delta in range(min(deltas, slots - a) + 1):
            early = table.value[first, row + delta]
            rest = max(delta - table.moved[first, row + delta], 0)
            if early >= INFINITE or rest > slots - a - kept:
                continue
            late = table.value[second, deep + rest]
            if late >= INFINITE:
                continue
            left = max(rest - table.moved[second, deep + rest], 0)
            wait = max(split.behind + a + left - slots, 0)
            total = split.cost + early + late + wait * back.per_slot
            if total < table.value[pair, row + delta]:
                table.value[pair, row + delta] = total
                moved = back.no_save[k + 1] - back.no_save[split.i] + wait
                table.moved[pair, row + delta] = (
                    moved + table.moved[first, row + delta] + table.moved[second, deep + rest]
                )


@kernel
def add_span(arrays: ChainArrays, back: Moves, deltas: int, table: Table, span: int) -> None:
    """App. B.3: for stages i..i + span, the least time C after the loss, and the slots the link can move meanwhile.

    From the smaller spans; before the first, `table` is INFINITE and 0. A includes the input of stage i. `deltas`: the largest
    Delta (0 without a link).
    """
    length = arrays.no_save_time.size
    for i in range(length - span):
        j = i + span
        saving_first(arrays, back, table, i, j, deltas)
        cost = 0.0
        needed: int = 0
        behind: int = 0
        # behind: the most needed so far, less what the link moves from there to the end of the no-save forwards
        for k in range(i, j):
            cost += arrays.no_save_time[k]
            need = arrays.no_save_needs[k] + arrays.after[j] + (arrays.input_size[k] if k > i else 0)
            needed = max(needed, need)
            behind = max(behind - (back.no_save[k + 1] - back.no_save[k]), need) if k > i else need
            recompute_first(arrays, back, table, Split(i, j, k, cost, needed, behind), deltas)


@inner_kernel
def block_start(a: int, slots: int) -> int:
    """Where the block of A = `a` starts among the states of one (stage, x)."""
    n = slots + 1
    before = n - a
    return n * (n + 1) * (2 * n + 1) // 6 - before * (before + 1) * (2 * before + 1) // 6


@inner_kernel
def state_of(layer: int, a: int, df: int, db: int, slots: int) -> int:
    """Index of a state; `layer` is 2 * stage + x."""
    return layer * block_start(slots + 1, slots) + block_start(a, slots) + df * (slots - a + 1) + db


class Step(NamedTuple):
    """A step of the forward phase: the layer it leads to, slots moved out and dB meanwhile, and the time of the path."""

    layer: int
    moved: int
    owed: int
    total: float


@inner_kernel
def follow(states: States, slots: int, s: State, step: Step, stays: bool, leaves: bool) -> None:
    """Paths by a step after which the input of the stage stays, and by one after which it leaves over the link.

    Kept where no path to that state is faster so far. In one function: passing `states` on would count its references once more.
    """
    cost, came = states.cost, states.came
    df = max(s.df - step.moved, 0)
    if stays and s.a_with_input + max(df, step.owed) <= slots:
        at = state_of(step.layer, s.a_with_input, df, step.owed, slots)
        if step.total < cost[at]:
            cost[at], came[at] = step.total, s.at
    df, db = max(s.df + s.size - step.moved, 0), step.owed + s.size
    if leaves and s.size > 0 and s.a + max(df, db) <= slots:
        at = state_of(step.layer, s.a, df, db, slots)
        if step.total < cost[at]:
            cost[at], came[at] = step.total, s.at


@inner_kernel
def run_saving(arrays: ChainArrays, lanes: Lanes, states: States, s: State) -> None:
    """The stage runs once, saving all that its backward reads."""
    i, slots, out, back = s.stage, arrays.slots, lanes.out, lanes.back
    need_f, need_b = arrays.forward[i] + arrays.before[i], arrays.backward[i] + arrays.after[i]
    if max(need_f, need_b) + s.a_with_input > slots:
        return
    wait_f = max(need_f + s.a_with_input + s.df - slots, 0)
    wait_b = max(need_b + s.a_with_input + s.db - slots, 0)
    total = s.cost + arrays.forward_time[i] + arrays.backward_time[i] + wait_f * out.per_slot + wait_b * back.per_slot
    owed = max(s.db - back.backward[i] - wait_b, 0)
    step = Step(2 * i + 3, out.forward[i] + wait_f, owed, total)
    follow(states, slots, s, step, True, lanes.copies)


@inner_kernel
def run_without_saving(arrays: ChainArrays, lanes: Lanes, table: Table, states: States, s: State) -> None:
    """The stage and any number of stages after it run without saving, and once more after the loss."""
    i, slots, length, per_slot = s.stage, arrays.slots, arrays.no_save_time.size, lanes.out.per_slot
    if s.a_with_input + s.db > slots:
        return
    # arrays of a tuple are counted references: taken once, and not in each round of the loop
    times, needs, before, inputs = arrays.no_save_time, arrays.no_save_needs, arrays.before, arrays.input_size
    no_save, value, moves = lanes.out.no_save, table.value, table.moved
    row = row_start(s.a_with_input, slots) + s.db
    spent = 0.0
    most: int = 0  # of the no-save forwards after the first
    ahead: int = 0  # what they need, less what the link moves before
    for j in range(i, length):
        spent += times[j]
        need = needs[j] + before[j] + (inputs[j] if j > i else 0)
        if j == i:
            if need + s.a_with_input > slots:
                break
            ahead = need
        else:
            most = max(most, need)
            ahead = max(ahead, need - (no_save[j] - no_save[i]))
            if most + s.a > slots or (not lanes.copies and most + s.a_with_input > slots):
                break
        pair = pair_of(i, j, length)
        back = value[pair, row]
        if back >= INFINITE:
            continue
        wait = max(ahead + s.a_with_input + s.df - slots, 0)
        moved = no_save[j + 1] - no_save[i] + wait
        step = Step(2 * (j + 1), moved, max(s.db - moves[pair, row], 0), s.cost + spent + wait * per_slot + back)
        follow(states, slots, s, step, most + s.a_with_input <= slots, lanes.copies)


@inner_kernel
def at_loss(arrays: ChainArrays, lanes: Lanes, s: State) -> float:
    """The time of a path that ends with the loss and all copies done; INFINITE where it does not fit."""
    need = arrays.loss_needs + arrays.before[arrays.no_save_time.size] + s.a_with_input
    if need > arrays.slots:
        return INFINITE
    wait = max(need + s.df - arrays.slots, 0)
    left = max(s.df - lanes.out.loss - wait, 0)
    return float(s.cost + arrays.loss_time + (wait + left) * lanes.out.per_slot + s.db * lanes.back.per_slot)


@kernel
def search_layer(
    arrays: ChainArrays, lanes: Lanes, table: Table, states: States, aside: int, layer: int
) -> tuple[float, int]:
    """App. B.1 and B.2 as a shortest path from (first stage, x=0, aside, 0, 0); the cost of a path is the sum over its states.

    Follows the paths on from the states of a layer, after those of the layers before it; before the first, all costs but that
    of the first state are INFINITE. `aside`: slots that are not to be used: the table of a budget serves every smaller one.
    Returns, from the last two layers, the least time and its state before the loss; else INFINITE and -1.
    """
    length, slots, cost, least = arrays.no_save_time.size, arrays.slots, states.cost, states.least
    result, result_state = INFINITE, -1
    deltas, per_layer = slots if lanes.copies else 0, block_start(slots + 1, slots)
    i, x = layer // 2, layer % 2
    size = arrays.input_size[i] if x == 0 else (arrays.saves[i - 1] if i > 0 else 0)
    for a in range(aside, slots - size + 1):
        # indices are counted here and not by `state_of`: almost all states are dominated, and are told so in a few operations
        below, block, width = block_start(a - 1, slots), block_start(a, slots), slots - a + 1
        for df in range(min(deltas, slots - a) + 1):
            for db in range(min(deltas, slots - a) + 1):
                at = block + df * width + db
                undercut: float = INFINITE  # the least cost of a state of the same (stage, x) that holds or owes less
                if a > aside:
                    undercut = least[below + df * (width + 1) + db]
                if df > 0:
                    undercut = min(undercut, least[at - width])
                if db > 0:
                    undercut = min(undercut, least[at - 1])
                so_far = cost[layer * per_layer + at]
                least[at] = min(so_far, undercut)
                if so_far >= undercut or so_far >= result:
                    continue
                s = State(i, a, df, db, size, a + size, layer * per_layer + at, so_far)
                if i < length:
                    run_saving(arrays, lanes, states, s)
                    if lanes.recompute:
                        run_without_saving(arrays, lanes, table, states, s)
                    continue
                total = at_loss(arrays, lanes, s)
                if total < result:
                    result, result_state = total, s.at
    return result, result_state
