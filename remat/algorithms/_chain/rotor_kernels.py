"""The compiled kernel of Rotor and rk-Rotor.

One row of slots per sub-chain (s, t), s <= t, where t = L means: with the loss; rows are stored as a triangle and slots are
contiguous, so that every inner loop runs along memory. `row[m]` is the least time to run stages s..t forward and backward
with m slots on top of the input of s, or `NEVER`. The table of a budget serves every smaller one.
`before` and `after` of `ChainArrays` are what is resident anyway: in the forward, and in the backward.

Reference: Rotor (Beaumont et al., 2019, RR-9302); Rockmate, App. C, equations (1) to (3) and Algorithm 2.
"""

from __future__ import annotations

from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._chain.chain_arrays import NEVER, ChainArrays, Ints

_NEVER = NEVER


@inner_kernel
def row_of(s: int, t: int, length: int) -> int:
    """Index of the row of sub-chain (s, t) of a chain of `length` stages."""
    return s * (length + 1) - s * (s - 1) // 2 + t - s


@inner_kernel
def fastest(arrays: ChainArrays, s: int, t: int) -> int:
    """Time of stages s..t (t = L: with the loss) when each runs once, by its fastest option [ns]."""
    total = arrays.loss_time if t == len(arrays.no_save_time) else arrays.loss_time - arrays.loss_time
    for k in range(s, min(t + 1, len(arrays.no_save_time))):
        quickest = arrays.time[arrays.option_start[k]]
        for o in range(arrays.option_start[k], arrays.option_start[k + 1]):
            quickest = min(quickest, arrays.time[o])
        total += quickest
    return total


@inner_kernel
def run_once(arrays: ChainArrays, s: int, t: int, table: Ints, lowest: Ints) -> None:
    """Case 1: stage s runs once, by one of its options, then the rest of the sub-chain."""
    length, width = len(arrays.no_save_time), table.shape[1]
    row = table[row_of(s, t, length)]
    fixed = arrays.before[s] if t == length else arrays.after[t]
    for o in range(arrays.option_start[s], arrays.option_start[s + 1]):
        cost = arrays.time[o]
        first = max(arrays.forward[o] + fixed, arrays.backward[o] + arrays.after[s])
        if s == t:
            for m in range(first, width):
                row[m] = min(row[m], cost)
            continue
        rest_row = row_of(s + 1, t, length)
        first = max(max(first, arrays.saves[o] + lowest[rest_row]), 0)
        if first < width:
            # a stage that frees more than it saves looks beyond the table, where nothing changes any more
            last = min(width, width + arrays.saves[o])
            rest = table[rest_row, first - arrays.saves[o] : last - arrays.saves[o]]
            mine = row[first:last]
            for m in range(len(mine)):
                mine[m] = min(mine[m], rest[m] + cost)
            for m in range(max(first, last), width):
                row[m] = min(row[m], table[rest_row, width - 1] + cost)


@inner_kernel
def run_again(arrays: ChainArrays, s: int, t: int, table: Ints, lowest: Ints) -> None:
    """Case 2: stages s .. i-1 run without saving, the input of i is held, and they run again later."""
    length, top = len(arrays.no_save_time), table.shape[1]
    row = table[row_of(s, t, length)]
    least = fastest(arrays, s, t)
    while top > 0 and row[top - 1] == least:  # from `top` on the row is at its least: nothing can improve it
        top -= 1
    first = arrays.no_save_needs[s] + (arrays.before[s] if t == length else arrays.after[t])
    cost = arrays.loss_time - arrays.loss_time
    for i in range(s + 1, t + 1):
        k = i - 1
        cost += arrays.no_save_time[k]
        if k > s:
            fixed = arrays.before[k] if t == length else arrays.after[t]
            first = max(first, arrays.input_size[k] + arrays.no_save_needs[k] + fixed)
        inner_row, outer_row = row_of(i, t, length), row_of(s, k, length)
        start = max(max(first, lowest[outer_row]), arrays.input_size[i] + lowest[inner_row])
        if start < top:
            inner = table[inner_row, start - arrays.input_size[i] : top - arrays.input_size[i]]
            outer = table[outer_row, start:top]
            mine = row[start:top]
            for m in range(len(mine)):
                mine[m] = min(mine[m], inner[m] + outer[m] + cost)


@kernel
def rotor_table(arrays: ChainArrays, table: Ints, lowest: Ints) -> None:
    """Fill `table` (rows of sub-chains by slots, set to NEVER) and `lowest` (first slot of each row that is not NEVER)."""
    length, width = len(arrays.no_save_time), table.shape[1]
    for span in range(length + 1):
        for s in range(length + 1 - span):
            index = row_of(s, s + span, length)
            row = table[index]
            if s == length:
                for m in range(arrays.loss_needs + arrays.before[length], width):
                    row[m] = arrays.loss_time
            else:
                run_once(arrays, s, s + span, table, lowest)
                run_again(arrays, s, s + span, table, lowest)
            m = 0
            while m < width and row[m] >= _NEVER:
                m += 1
            lowest[index] = m
