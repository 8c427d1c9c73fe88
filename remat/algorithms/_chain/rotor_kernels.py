"""The compiled kernel of Rotor and rk-Rotor.

One row of slots per sub-chain (s, t), s <= t, where t = L means: with the loss; rows are stored as a triangle and slots are
contiguous, so that every inner loop runs along memory. `row[m]` is the least time to run stages s..t forward and backward
with m slots beside the input of s, or `NEVER`. The table of a budget serves every smaller one.

Reference: Rotor (Beaumont et al., 2019, RR-9302); Rockmate, App. C, equations (1) to (3) and Algorithm 2.
"""

from __future__ import annotations

from typing import Any

from remat.algorithms._arrays.jit import inner_kernel, kernel
from remat.algorithms._chain.chain_arrays import NEVER

_NEVER = NEVER


@inner_kernel
def row_of(s: int, t: int, length: int) -> int:
    """Index of the row of sub-chain (s, t) of a chain of `length` stages."""
    return s * (length + 1) - s * (s - 1) // 2 + t - s


@kernel
def rotor_table(
    option_start: Any,
    time: Any,
    saves: Any,
    forward: Any,
    backward: Any,
    bare_time: Any,
    bare_needs: Any,
    held: Any,
    after: Any,
    before: Any,
    loss_time: Any,
    loss_needs: Any,
    table: Any,
    lowest: Any,
) -> None:
    """Fill `table` (rows of sub-chains by slots, set to NEVER) and `lowest` (first slot of each row that is not NEVER)."""
    length = len(bare_time)
    width = table.shape[1]
    least = table[0, :1].copy()
    for span in range(length + 1):
        for s in range(length + 1 - span):
            t = s + span
            here = row_of(s, t, length)
            row = table[here]
            if s == length:
                first = loss_needs + before[length]
                for m in range(first, width):
                    row[m] = loss_time
                lowest[here] = min(first, width)
                continue
            forward_held = before[s] if t == length else after[t]
            # case 1: stage s runs once, by one of its options
            top = width
            least[0] = 0
            for k in range(s, t + 1):
                if k == length:
                    least[0] += loss_time
                else:
                    quickest = time[option_start[k]]
                    for o in range(option_start[k], option_start[k + 1]):
                        quickest = min(quickest, time[o])
                    least[0] += quickest
            for o in range(option_start[s], option_start[s + 1]):
                first = max(forward[o] + forward_held, backward[o] + after[s])
                if span == 0:
                    for m in range(first, width):
                        row[m] = min(row[m], time[o])
                else:
                    rest_row = row_of(s + 1, t, length)
                    first = max(first, saves[o] + lowest[rest_row])
                    first = max(first, 0)
                    if first < width:
                        cost = time[o]
                        # a stage that frees more than it saves looks beyond the table, where nothing changes any more
                        last = min(width, width + saves[o])
                        rest = table[rest_row, first - saves[o] : last - saves[o]]
                        mine = row[first:last]
                        for m in range(len(mine)):
                            mine[m] = min(mine[m], rest[m] + cost)
                        for m in range(max(first, last), width):
                            row[m] = min(row[m], table[rest_row, width - 1] + cost)
            # from `top` on the row is at its least: nothing below can improve it
            while top > 0 and row[top - 1] == least[0]:
                top -= 1
            # case 2: stages s .. i-1 run bare, the input of i is held, and they run again later
            first = bare_needs[s] + forward_held
            cost = loss_time - loss_time
            for i in range(s + 1, t + 1):
                k = i - 1
                cost += bare_time[k]
                if k > s:
                    kept = before[k] if t == length else after[t]
                    first = max(first, held[k] + bare_needs[k] + kept)
                inner_row = row_of(i, t, length)
                outer_row = row_of(s, k, length)
                start = max(max(first, lowest[outer_row]), held[i] + lowest[inner_row])
                if start < top:
                    inner = table[inner_row, start - held[i] : top - held[i]]
                    outer = table[outer_row, start:top]
                    mine = row[start:top]
                    for m in range(len(mine)):
                        mine[m] = min(mine[m], inner[m] + outer[m] + cost)
            m = 0
            while m < width and row[m] >= _NEVER:
                m += 1
            lowest[here] = m
