"""Rounded rows: how many large data fit, where a row of bytes alone would let a share of one more be resident.

For a row sum a·x <= b with integers a >= 0 and x in {0, 1}, a unit u and r = b mod u, every point satisfies

    sum (⌊a/u⌋ (u - r) + max(0, a mod u - r)) x <= ⌊b/u⌋ (u - r).

This is mixed-integer rounding (Nemhauser and Wolsey 1990), multiplied by u - r. With u the common size of many data it says that
no more than ⌊b/u⌋ of them are resident, which the relaxation of the row does not.
"""

from __future__ import annotations

import numpy as np

from remat.algorithms._milp.linear import Builder, Ints

_UNITS = 3  # sizes tried as units: those of which there are most bytes


def add_rounded(builder: Builder, columns: Ints, sizes: Ints, room: int) -> None:
    """Add the rounded rows of sum sizes·x <= room, x over the columns.

    Args:
        builder: of the formulation.
        columns: of 0/1 variables.
        sizes: at least 0, of each [bytes].
        room: right-hand side [bytes].
    """
    values, counts = np.unique(sizes[sizes > 0], return_counts=True)
    for unit in values[np.argsort(-values * counts, kind="stable")][:_UNITS].tolist():
        fits, rest = divmod(room, unit)
        if rest:
            rounded = sizes // unit * (unit - rest) + np.maximum(0, sizes % unit - rest)
            row = builder.rows(1, fits * (unit - rest))
            builder.entries(row, columns[rounded > 0], rounded[rounded > 0])
