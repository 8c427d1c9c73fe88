"""What the decorators of the kernels refuse: without counts of references arrays may be neither made nor returned."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import NumbaError

from remat.algorithms._arrays.graph_arrays import Longs
from remat.algorithms._arrays.jit import allocating_kernel, inlined_kernel, inner_kernel, kernel


def itself(values: Longs) -> Longs:
    return values


@pytest.mark.parametrize("decorator", [inner_kernel, inlined_kernel])
def test_an_inner_kernel_returns_numbers(decorator):
    with pytest.raises(TypeError, match=r"itself returns Longs.*allocating_kernel"):
        decorator(itself)


def test_an_inner_kernel_that_allocates_does_not_compile():
    @inner_kernel
    def doubled_sum(values: Longs) -> int:
        return int((values * 2).sum())

    @kernel
    def with_doubled_sum(values):
        return doubled_sum(values)

    with pytest.raises(NumbaError):
        with_doubled_sum(np.arange(4))


def test_an_allocating_kernel_does():
    @allocating_kernel
    def tripled_sum(values: Longs) -> int:
        return int((values * 3).sum())

    @kernel
    def with_tripled_sum(values):
        return tripled_sum(values)

    assert with_tripled_sum(np.arange(4)) == 18
