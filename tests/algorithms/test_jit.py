"""What the decorators of the kernels refuse: without counts of references arrays may be neither made nor returned."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import NumbaError

from remat.algorithms._arrays.graph_arrays import Longs
from remat.algorithms._arrays.jit import allocating_kernel, inlined_kernel, inner_kernel, kernel


def itself(values: Longs) -> Longs:
    return values


def doubled_sum(values: Longs) -> int:
    return int((values * 2).sum())


@pytest.mark.parametrize("decorator", [inner_kernel, inlined_kernel])
def test_an_inner_kernel_returns_numbers(decorator):
    with pytest.raises(TypeError, match=r"itself returns Longs.*allocating_kernel"):
        decorator(itself)


def test_an_inner_kernel_that_allocates_does_not_compile():
    inner, allocating = inner_kernel(doubled_sum), allocating_kernel(doubled_sum)

    @kernel
    def refused(values):
        return inner(values)

    @kernel
    def accepted(values):
        return allocating(values)

    assert accepted(np.arange(4)) == 12
    with pytest.raises(NumbaError):
        refused(np.arange(4))
