"""The compiled kernel of Rotor and rk-Rotor.

One row of slots per sub-chain (s, t), s <= t, where t = L means: with the loss; rows are stored as a triangle and slots are
contiguous, so that every inner loop runs along memory. `row[m]` is the least time to run stages s..t forward and backward
with m slots beside the input of s, or `NEVER`. The table of a budget serves every smaller one.

Reference: Rotor (Beaumont et al., 2019, RR-9302); Rockmate, App. C, equations (1) to (3) and Algorithm 2.
"""

from __future__ import annotations

from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._chain.chain_arrays import NEVER, Ints, Numbers

_NEVER = NEVER


@inner_kernel
def row_of(s: int, t: int, length: int) -> int:
    """Index of the row of sub-chain (s, t) of a chain of `length` stages."""
    return s * (length + 1) - s * (s - 1) // 2 + t - s


@inner_kernel
def fastest(own: Numbers, s: int, t: int) -> int:
    """Time of stages s..t (t = L: with the loss) when each runs once, by its fastest option [ns]."""
    total = own.loss_time if t == len(own.no_save_time) else own.loss_time - own.loss_time
    for k in range(s, min(t + 1, len(own.no_save_time))):
        quickest = own.time[own.option_start[k]]
        for o in range(own.option_start[k], own.option_start[k + 1]):
            quickest = min(quickest, own.time[o])
        total += quickest
    return total


@inner_kernel
def run_once(own: Numbers, s: int, t: int, table: Ints, lowest: Ints) -> None:
    """Case 1: stage s runs once, by one of its options, then the rest of the sub-chain."""
    length, width = len(own.no_save_time), table.shape[1]
    row = table[row_of(s, t, length)]
    kept = own.before[s] if t == length else own.after[t]
    for o in range(own.option_start[s], own.option_start[s + 1]):
        cost = own.time[o]
        first = max(own.forward[o] + kept, own.backward[o] + own.after[s])
        if s == t:
            for m in range(first, width):
                row[m] = min(row[m], cost)
            continue
        rest_row = row_of(s + 1, t, length)
        first = max(max(first, own.saves[o] + lowest[rest_row]), 0)
        if first < width:
            # a stage that frees more than it saves looks beyond the table, where nothing changes any more
            last = min(width, width + own.saves[o])
            rest = table[rest_row, first - own.saves[o] : last - own.saves[o]]
            mine = row[first:last]
            for m in range(len(mine)):
                mine[m] = min(mine[m], rest[m] + cost)
            for m in range(max(first, last), width):
                row[m] = min(row[m], table[rest_row, width - 1] + cost)


@inner_kernel
def run_again(own: Numbers, s: int, t: int, table: Ints, lowest: Ints) -> None:
    """Case 2: stages s .. i-1 run without saving, the input of i is held, and they run again later."""
    length, top = len(own.no_save_time), table.shape[1]
    row = table[row_of(s, t, length)]
    least = fastest(own, s, t)
    while top > 0 and row[top - 1] == least:  # from `top` on the row is at its least: nothing can improve it
        top -= 1
    first = own.no_save_needs[s] + (own.before[s] if t == length else own.after[t])
    cost = own.loss_time - own.loss_time
    for i in range(s + 1, t + 1):
        k = i - 1
        cost += own.no_save_time[k]
        if k > s:
            kept = own.before[k] if t == length else own.after[t]
            first = max(first, own.held[k] + own.no_save_needs[k] + kept)
        inner_row, outer_row = row_of(i, t, length), row_of(s, k, length)
        start = max(max(first, lowest[outer_row]), own.held[i] + lowest[inner_row])
        if start < top:
            inner = table[inner_row, start - own.held[i] : top - own.held[i]]
            outer = table[outer_row, start:top]
            mine = row[start:top]
            for m in range(len(mine)):
                mine[m] = min(mine[m], inner[m] + outer[m] + cost)


@kernel
def rotor_table(own: Numbers, table: Ints, lowest: Ints) -> None:
    """Fill `table` (rows of sub-chains by slots, set to NEVER) and `lowest` (first slot of each row that is not NEVER)."""
    length, width = len(own.no_save_time), table.shape[1]
    for span in range(length + 1):
        for s in range(length + 1 - span):
            here = row_of(s, s + span, length)
            row = table[here]
            if s == length:
                for m in range(own.loss_needs + own.before[length], width):
                    row[m] = own.loss_time
            else:
                run_once(own, s, s + span, table, lowest)
                run_again(own, s, s + span, table, lowest)
            m = 0
            while m < width and row[m] >= _NEVER:
                m += 1
            lowest[here] = m
