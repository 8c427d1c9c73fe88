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


@pytest.mark.parametrize(("decorator", "compiles"), [(inner_kernel, False), (allocating_kernel, True)])
def test_only_allocating_kernels_allocate(decorator, compiles):
    def doubled_sum(values: Longs) -> int:
        return int((values * 2).sum())

    inner = decorator(doubled_sum)

    @kernel
    def outer(values):
        return inner(values)

    if compiles:
        assert outer(np.arange(4)) == 12
    else:
        with pytest.raises(NumbaError):
            outer(np.arange(4))
