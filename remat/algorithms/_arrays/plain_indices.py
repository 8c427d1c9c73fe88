"""Array indices without numba's test for negative ones, which count from the end: kernels have none.

The test is three instructions in every access, and keeps the length of every array in a register or on the stack. Indices of
arrays are typed as unsigned here, after type inference; arithmetic with them stays signed. A negative index reads outside the
array: `NUMBA_BOUNDSCHECK=1` makes it an error.
"""

from __future__ import annotations

from typing import Any

from numba.core import ir, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.typed_passes import AnnotateTypes
from numba.core.types.containers import BaseTuple, Tuple


@register_pass(mutates_CFG=False, analysis_only=True)
class PlainIndices(AnalysisPass):  # type: ignore[misc]
    """Types the integers that index arrays as unsigned."""

    _name = "remat_plain_indices"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Change the signature of each access to an array; the instructions stay as they are."""
        for block in state.func_ir.blocks.values():
            accesses = [*block.find_exprs(op="getitem"), *block.find_insts(ir.SetItem)]
            for access in accesses:
                signature = state.calltypes[access]
                array, index, *stored = signature.args
                if isinstance(array, types.Array):
                    del state.calltypes[access]  # each entry is written once
                    state.calltypes[access] = signature.replace(args=(array, unsigned(index), *stored))
        return False


def unsigned(index: Any) -> Any:
    """The type of an index, integers in it as unsigned."""
    if isinstance(index, BaseTuple):
        return Tuple([unsigned(part) for part in index])
    return types.uintp if isinstance(index, types.Integer) else index


class KernelCompiler(CompilerBase):  # type: ignore[misc]
    """numba's compiler with `PlainIndices`."""

    def define_pipelines(self) -> list[Any]:
        """The passes of nopython mode, and ours when all types are known and nothing is rewritten any more."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(PlainIndices, AnnotateTypes)
        passes.finalize()
        return [passes]
