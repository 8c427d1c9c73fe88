"""The two functions of a plan through a compiler: what is saved and what is recomputed is the plan's, the kernels are not.

Each function is traced into a graph of its own, with every run in its place and the random state as data. The compiler may fuse
operations and order them anew, so the peak is its own: it has to be measured (`rehearse`).
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from attrs import evolve, frozen

from remat.exec._program.kernels import drawn_noise
from remat.exec._program.program import Program
from remat.exec._program.refusals import refusing
from remat.exec._program.source import Names
from remat.exec._run.drawing import Draws
from remat.exec._run.lowering import Gradients, Lowered, Tensors
from remat.exec._run.tangents import called
from remat.exec._torch import inductor, rng
from remat.exec._torch.torch_private import FakeTensorMode, OpOverload, entry


class Compile(Protocol):
    """A compiler of graphs."""

    def __call__(
        self, graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], *, is_backward: bool
    ) -> inductor.Code:
        """Compile a graph for inputs like those given."""


def through(lowered: Lowered, compiler: Compile) -> Lowered:
    """A plan whose functions were compiled.

    Args:
        lowered: as `lower` gave it; it makes no copies to the host.
        compiler: compiles a graph.

    Raises:
        Uncapturable: X-STAGE, where the compiler does not take the plan.
    """
    with refusing("compiling the plan"):
        return _Through(lowered, compiler).result()


@frozen(eq=False)
class _Piece:
    """A compiled function.

    Attributes:
        code: takes the state of the generator, if there are draws, then what the function takes, then constants.
        places: for each result, its place among what the code returns; None: it is None.
        state: the place of the generator's state after it; None: it draws nothing.
        examples: of the results.
    """

    code: inductor.Code
    places: tuple[int | None, ...]
    state: int | None
    examples: tuple[torch.Tensor, ...]


class _Through:
    def __init__(self, lowered: Lowered, compiler: Compile) -> None:
        self.lowered, self.compiler = lowered, compiler
        self.program: Program = lowered.lowered_from[0]
        self.device = self.program.device
        self.draws = Draws(self.device)
        self.random = any(op.draws for op in self.program.ops)
        self.constants = tuple(self.program.constants)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def result(self) -> Lowered:
        program, lowered = self.program, self.lowered
        space = self.functions()
        primals = [value for value, _ in (*program.params, *program.buffers, *program.inputs)]
        with self.mode:
            examples = [self.example(value) for value in primals]
            counts: list[int] = []

            def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
                outputs, read, activations = space["forward"](tensors)
                counts[:] = [len(outputs), len(read)]
                return (*outputs, *read, *activations)

            first = self.piece(forward, examples, is_backward=False)
            outputs, read = counts
            loose = [examples[at] for at in lowered.loose_primals]
            saved = [*(examples[at] for at in lowered.backward_primals), *first.examples[outputs : outputs + read]]
            tangents = [self.example(value) for value, _ in program.tangents]
            sizes = [len(loose), len(saved), len(tangents), len(first.examples) - outputs - read]

            def backward(*tensors: torch.Tensor) -> Gradients:
                rest = iter(tensors)
                parts = [tuple(itertools.islice(rest, size)) for size in sizes]
                grads: Gradients = space["backward"](*parts[:3], list(parts[3]))
                return grads

            activations = first.examples[outputs + read :]
            second = self.piece(backward, [*loose, *saved, *tangents, *activations], is_backward=True)
        return evolve(
            lowered,
            forward=self.running_forward(first, outputs, read),
            backward=self.running_backward(second),
            tangents=evolve(lowered.tangents, fixed=True),
            eager=lowered,
            variants={},
        )

    # -- tracing -------------------------------------------------------------------------------------------------------

    def functions(self) -> dict[str, Any]:
        """The generated functions again, with draws that take the generator's state as data."""
        lowered, program = self.lowered, self.program
        targets = {called(program, op) for op in program.ops if op.draws} | {drawn_noise}
        entries = {entry(target) if isinstance(target, OpOverload) else target for target in targets}
        names = {
            name: value
            for function in (lowered.forward, lowered.backward)
            for name, value in inspect.unwrap(function).__globals__.items()
        }
        drawing = {name: self.draws.drawing(value, name) for name, value in names.items() if _among(value, entries)}
        as_data = {"_save_state": self.draws.save, "_replay": self.draws.replay}
        self.space = Names(names | drawing | as_data).compiled(lowered.source, "step for a compiler")
        return self.space

    def example(self, value: str) -> torch.Tensor:
        spec = self.program.values[value].spec
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)

    def piece(
        self,
        function: Callable[..., Sequence[torch.Tensor | None]],
        inputs: Sequence[torch.Tensor],
        *,
        is_backward: bool,
    ) -> _Piece:
        """Trace and compile a function."""
        before = (
            [torch.empty(rng.state_bytes(self.device) or 16, dtype=torch.uint8, device="cpu")] if self.random else []
        )
        constants = [_like(self.program.constants[name]) for name in self.constants]
        missing: list[bool] = []

        def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            rest = iter(tensors)
            if self.random:
                self.draws.state = next(rest)
            given = [next(rest) for _ in inputs]
            globals_of = self.space["forward"].__globals__
            globals_of.update(zip(self.constants, rest, strict=True))
            results = list(function(*given))
            missing[:] = [result is None for result in results]
            return (*(result for result in results if result is not None), *([self.draws.state] if self.random else []))

        everything = [*before, *inputs, *constants]
        graph = inductor.traced(flat, everything)
        nodes, at = _distinct_results(graph)
        drawn = self.random and not (len(nodes) and graph.graph.find_nodes(op="placeholder")[0] is nodes[at[-1]])
        examples = [nodes[place].meta["val"] for place in at]
        present = iter(at)
        places = tuple(None if gone else next(present) for gone in missing)
        return _Piece(
            code=self.compiler(graph, everything, is_backward=is_backward),
            places=places,
            state=at[-1] if drawn else None,
            examples=tuple(_like(example) for example in examples[: len(missing)]),
        )

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, piece: _Piece, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Run a compiled function; `inputs` is emptied."""
        if self.random:
            inputs.insert(0, rng.save(self.device))
        inputs.extend(self.program.constants.values())
        results = piece.code(inputs)
        if piece.state is not None:
            rng.restore(self.device, results[piece.state])
        return [None if place is None else results[place] for place in piece.places]

    def running_forward(self, piece: _Piece, outputs: int, read: int) -> Any:
        def forward(primals: Tensors) -> tuple[Tensors, Tensors, list[torch.Tensor]]:
            results: list[Any] = self.run(piece, list(primals))
            return tuple(results[:outputs]), tuple(results[outputs : outputs + read]), results[outputs + read :]

        return forward

    def running_backward(self, piece: _Piece) -> Any:
        def backward(loose: Tensors, saved: Tensors, tangents: Gradients, activations: list[torch.Tensor]) -> Gradients:
            inputs: list[Any] = [*loose, *saved, *tangents, *activations]
            activations.clear()
            del saved, tangents
            return tuple(self.run(piece, inputs))

        return backward


def _among(value: Any, entries: set[Any]) -> bool:
    try:
        return value in entries
    except TypeError:  # not hashable: no function
        return False


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _distinct_results(graph: torch.fx.GraphModule) -> tuple[list[torch.fx.Node], list[int]]:
    """Have a graph return each node once: what it returns then, and the place of each result among these."""
    (output,) = graph.graph.find_nodes(op="output")
    (results,) = output.args
    nodes = list(dict.fromkeys(results))
    output.args = (tuple(nodes),)
    graph.recompile()
    places = {node: at for at, node in enumerate(nodes)}
    return nodes, [places[node] for node in results]


__all__ = ["Compile", "through"]
