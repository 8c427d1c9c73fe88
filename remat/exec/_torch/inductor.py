"""Inductor, by its private names: is it there, and a graph of operations compiled by it.

Inductor fuses operations, and orders its kernels anew where that lowers its own estimate of the peak. Layouts stay: what a
function returns has the strides of the trace, so that other code can read it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from remat.errors import BackendMissing

Code = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""Compiled code: takes a list of tensors, empties it, and gives what the graph returns."""

OPTIONS = {"layout_optimization": False, "comprehensive_padding": False, "shape_padding": False}
"""Of Inductor: kernels are chosen for the layouts that the plan was made for."""


def check_compiler(device: torch.device) -> None:
    """Look for what Inductor compiles with.

    Raises:
        BackendMissing: X-INNER, with what to install.
    """
    from torch._inductor import cpp_builder, exc
    from torch.utils._triton import has_triton

    if device.type != "cpu":
        if not has_triton():
            what = f"inner='inductor': Triton is not installed, with which Inductor compiles for {device.type}."
            raise BackendMissing("X-INNER", what, fix="install triton, or leave `inner` out.")
        return
    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler as error:
        what = "inner='inductor': no C++ compiler was found, with which Inductor compiles for the CPU."
        fix = "install g++ or clang, or name one in the environment variable CXX; or leave `inner` out."
        raise BackendMissing("X-INNER", what, fix=fix) from error


def traced(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """A function without effects on anything but its inputs, as a graph of the operations that Inductor knows.

    Args:
        function: takes tensors, gives a flat tuple of tensors.
        inputs: fake tensors.
    """
    import torch._inductor.lowering  # some decompositions expect it to be loaded
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        return make_fx(torch.func.functionalize(function), select_decomp_table(), tracing_mode="real")(*inputs)


def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], *, is_backward: bool) -> Code:
    """Have Inductor compile a graph."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    (result,) = graph.graph.find_nodes(op="output")
    result.meta["user_visible_output_idxs"] = list(range(len(result.args[0])))
    with config.patch(OPTIONS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code: Code = compile_fx_inner(graph, list(inputs), is_backward=is_backward)
    return code


__all__ = ["Code", "check_compiler", "compile_graph", "traced"]
