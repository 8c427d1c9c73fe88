"""The decorators of the kernels: without counts of references arrays may be neither made nor returned; indices do not wrap."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from numba.core.errors import NumbaError

from remat.algorithms._arrays.graph_arrays import Longs
from remat.algorithms._arrays.jit import allocating_kernel, inlined_kernel, inner_kernel, kernel
from remat.algorithms._arrays.plain_indices import KernelCompiler


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


@pytest.mark.parametrize("at", [-1, np.int32(-1)])
@pytest.mark.parametrize("access", ["read", "write", "read in a table", "write in a table"])
def test_a_negative_index_does_not_count_from_the_end(access, at):
    """It is outside the array, which numba checks where it is asked to."""

    def touched(values, table, i):
        if access == "read":
            return values[i]
        if access == "write":
            values[i] = 7
        elif access == "read in a table":
            return table[0, i]
        else:
            table[0, i] = 7
        return 7

    def arguments(i):
        return np.full(3, 7), np.full((2, 3), 7), i

    assert njit(touched)(*arguments(at)) == 7, "numba counts from the end"
    compiled = njit(touched, pipeline_class=KernelCompiler, boundscheck=True)
    assert compiled(*arguments(type(at)(1))) == 7
    with pytest.raises(IndexError):
        compiled(*arguments(at))


def test_slices_and_constant_indices_are_as_before():
    @kernel
    def ends(values, n):
        return values[:n].sum() + values[-1] + values[1:][0]

    assert ends(np.arange(5), 3) == 3 + 4 + 1
    assert ends(np.arange(5), -1) == 6 + 4 + 1
