"""The compiled kernels of POFO: the backward table C and the forward search over (stage, x, A, dF, dB).

All memory is in slots. What a link moves while a node runs is counted in whole slots too, rounded on cumulated times, so that
the error does not grow with the number of nodes; where bandwidth times time is whole, nothing is rounded.

States satisfy A + dF <= M and A + dB <= M: the block of A holds (M - A + 1)^2 pairs (dF, dB), the row of A in C holds
M - A + 1 values of Delta. Reference: POFO (Beaumont, Eyraud-Dubois, Shilova, 2021), App. B.1 to B.3, Table 2 and Lemma 1.
"""

from __future__ import annotations

from typing import Any

from remat.algorithms._arrays.jit import inner_kernel, kernel

INFINITE = 1e300


@inner_kernel
def pair_of(i: int, j: int, length: int) -> int:
    """Index of the pair of stages i <= j."""
    return i * length - i * (i - 1) // 2 + j - i


@inner_kernel
def row_start(held: int, slots: int) -> int:
    """Where the row of A = `held` starts in a table over (A, Delta) with A + Delta <= slots."""
    return held * (slots + 1) - held * (held - 1) // 2


@kernel
def backward_table(
    forward_time: Any,
    backward_time: Any,
    bare_time: Any,
    forward: Any,
    backward: Any,
    bare_needs: Any,
    saves: Any,
    held: Any,
    after: Any,
    forward_moves: Any,
    backward_moves: Any,
    bare_moved: Any,
    per_slot: float,
    slots: int,
    deltas: int,
    value: Any,
    moved: Any,
) -> None:
    """App. B.3: the least time C of stages i..j after the loss, and the slots the link can move meanwhile.

    `value` and `moved` are tables of pairs by (A, Delta), set to INFINITE and 0; A includes the input of stage i. `deltas`: the
    largest Delta (0 without a link). `bare_moved[i]`: slots moved while stages before i run bare.
    """
    length = len(bare_time)
    for span in range(length):
        for i in range(length - span):
            j = i + span
            here = pair_of(i, j, length)
            need_f, need_b = forward[i] + after[j], backward[i] + after[i]
            for a in range(slots - max(need_b, need_f) + 1):
                row = row_start(a, slots)
                for delta in range(min(deltas, slots - a) + 1):
                    best, most = INFINITE, 0
                    wait_b = max(need_b + a + delta - slots, 0)
                    if span == 0:
                        wait = max(wait_b, need_f - backward_moves[i] + a + delta - slots)
                        best = forward_time[i] + backward_time[i] + wait * per_slot
                        most = forward_moves[i] + backward_moves[i] + wait
                    elif a + saves[i] <= slots:
                        rest = max(delta - backward_moves[i] - wait_b, 0)
                        inner_row = row_start(a + saves[i], slots)
                        if rest <= slots - a - saves[i]:
                            at = inner_row + rest
                            inner = pair_of(i + 1, j, length)
                            if value[inner, at] < INFINITE:
                                left = max(rest - moved[inner, at], 0)
                                wait = wait_b + max(need_f + a + left - slots, 0)
                                best = forward_time[i] + backward_time[i] + value[inner, at] + wait * per_slot
                                most = forward_moves[i] + backward_moves[i] + moved[inner, at] + wait
                    value[here, row + delta] = best
                    moved[here, row + delta] = most
            if span == 0:
                continue
            cost = 0.0
            needed = 0
            behind = (
                0  # the most that is needed so far, less what the link moves from there to the end of the bare runs
            )
            for k in range(i, j):
                cost += bare_time[k]
                need = bare_needs[k] + after[j] + (held[k] if k > i else 0)
                needed = max(needed, need)
                behind = max(behind - (bare_moved[k + 1] - bare_moved[k]), need) if k > i else need
                first = pair_of(i, k, length)
                second = pair_of(k + 1, j, length)
                kept = held[k + 1]
                for a in range(slots - max(needed, kept) + 1):
                    row = row_start(a, slots)
                    deep = row_start(a + kept, slots)
                    room = slots - a - kept
                    for delta in range(min(deltas, slots - a) + 1):
                        early = value[first, row + delta]
                        if early >= INFINITE:
                            continue
                        rest = max(delta - moved[first, row + delta], 0)
                        if rest > room:
                            continue
                        late = value[second, deep + rest]
                        if late >= INFINITE:
                            continue
                        left = max(rest - moved[second, deep + rest], 0)
                        wait = max(behind + a + left - slots, 0)
                        total = cost + early + late + wait * per_slot
                        if total < value[here, row + delta]:
                            value[here, row + delta] = total
                            moved[here, row + delta] = (
                                bare_moved[k + 1]
                                - bare_moved[i]
                                + moved[first, row + delta]
                                + moved[second, deep + rest]
                                + wait
                            )


@inner_kernel
def block_start(held: int, slots: int) -> int:
    """Where the block of A = `held` starts among the states of one (stage, x)."""
    n = slots + 1
    before = n - held
    return n * (n + 1) * (2 * n + 1) // 6 - before * (before + 1) * (2 * before + 1) // 6


@inner_kernel
def state_of(layer: int, a: int, df: int, db: int, slots: int) -> int:
    """Index of a state; `layer` is 2 * stage + x."""
    return layer * block_start(slots + 1, slots) + block_start(a, slots) + df * (slots - a + 1) + db


@inner_kernel
def _offer(cost: Any, came: Any, layer: int, a: int, df: int, db: int, slots: int, total: float, origin: int) -> None:
    if a + df > slots or a + db > slots:
        return
    at = state_of(layer, a, df, db, slots)
    if total < cost[at]:
        cost[at] = total
        came[at] = origin


@kernel
def forward_search(
    forward_time: Any,
    backward_time: Any,
    bare_time: Any,
    forward: Any,
    backward: Any,
    bare_needs: Any,
    saves: Any,
    held: Any,
    after: Any,
    before: Any,
    forward_moves: Any,
    backward_moves: Any,
    bare_moved: Any,
    loss_time: int,
    loss_needs: int,
    loss_moves: int,
    per_slot_f: float,
    per_slot_b: float,
    slots: int,
    copies: bool,
    bare: bool,
    aside: int,
    value: Any,
    moved: Any,
    cost: Any,
    came: Any,
    least: Any,
) -> tuple[float, int]:
    """App. B.1 and B.2 as a shortest path from (first stage, x=0, aside, 0, 0); what a path costs is known state by state.

    `aside`: slots that are not to be used: the tables of a budget serve every smaller one. `cost` and `came` are tables of
    states, filled here; `least` is one of the states of one (stage, x): the least cost of a state that holds and owes no more,
    by which others are dominated. Returns the least time and its state before the loss.
    """
    length = len(bare_time)
    cost[:] = INFINITE
    came[:] = -1
    cost[state_of(0, aside, 0, 0, slots)] = 0.0
    result, result_state = INFINITE, -1
    deltas = slots if copies else 0
    for i in range(length + 1):
        for x in range(2):
            layer = 2 * i + x
            own = held[i] if x == 0 else (saves[i - 1] if i > 0 else 0)
            for a in range(aside, slots - own + 1):
                for df in range(min(deltas, slots - a) + 1):
                    for db in range(min(deltas, slots - a) + 1):
                        origin = state_of(layer, a, df, db, slots)
                        so_far = cost[origin]
                        better = INFINITE
                        if a > aside:
                            better = least[state_of(0, a - 1, df, db, slots)]
                        if df > 0:
                            better = min(better, least[state_of(0, a, df - 1, db, slots)])
                        if db > 0:
                            better = min(better, least[state_of(0, a, df, db - 1, slots)])
                        least[state_of(0, a, df, db, slots)] = min(so_far, better)
                        if so_far >= better or so_far >= result:
                            continue
                        base = a + own
                        if i == length:
                            need = loss_needs + before[length]
                            if need + base <= slots:
                                wait = max(need + base + df - slots, 0)
                                left = max(df - loss_moves - wait, 0)
                                total = so_far + loss_time + (wait + left) * per_slot_f + db * per_slot_b
                                if total < result:
                                    result, result_state = total, origin
                            continue
                        need_f, need_b = forward[i] + before[i], backward[i] + after[i]
                        if max(need_f, need_b) + base <= slots:
                            wait_f = max(need_f + base + df - slots, 0)
                            wait_b = max(need_b + base + db - slots, 0)
                            total = (
                                so_far + forward_time[i] + backward_time[i] + wait_f * per_slot_f + wait_b * per_slot_b
                            )
                            gone_f = forward_moves[i] + wait_f
                            rest_b = max(db - backward_moves[i] - wait_b, 0)
                            _offer(
                                cost,
                                came,
                                layer + (3 if x == 0 else 2),
                                base,
                                max(df - gone_f, 0),
                                rest_b,
                                slots,
                                total,
                                origin,
                            )
                            if copies and own > 0:
                                rest_f = max(df + own - gone_f, 0)
                                _offer(
                                    cost,
                                    came,
                                    layer + (3 if x == 0 else 2),
                                    a,
                                    rest_f,
                                    rest_b + own,
                                    slots,
                                    total,
                                    origin,
                                )
                        if not bare:
                            continue
                        spent = 0.0
                        most = 0  # of the bare runs behind the first
                        ahead = 0  # what they need, less what the link moves before
                        row = row_start(base, slots) + db
                        if base + db > slots:
                            continue
                        for j in range(i, length):
                            spent += bare_time[j]
                            need = bare_needs[j] + before[j] + (held[j] if j > i else 0)
                            if j == i:
                                if need + base > slots:
                                    break
                                ahead = need
                            else:
                                most = max(most, need)
                                ahead = max(ahead, need - (bare_moved[j] - bare_moved[i]))
                                if most + a > slots or (not copies and most + base > slots):
                                    break
                            pair = pair_of(i, j, length)
                            back = value[pair, row]
                            if back >= INFINITE:
                                continue
                            wait = max(ahead + base + df - slots, 0)
                            gone_f = bare_moved[j + 1] - bare_moved[i] + wait
                            rest_b = max(db - moved[pair, row], 0)
                            total = so_far + spent + wait * per_slot_f + back
                            target = 2 * (j + 1)
                            if most + base <= slots:
                                _offer(cost, came, target, base, max(df - gone_f, 0), rest_b, slots, total, origin)
                            if copies and own > 0:
                                rest_f = max(df + own - gone_f, 0)
                                _offer(cost, came, target, a, rest_f, rest_b + own, slots, total, origin)
    return result, result_state
