"""Lowering: a validated schedule becomes two flat Python functions, `forward` and `backward`, readable and compiled once.

Each run is one line (`mm = aten_mm(t, relu)`), each drop a `del`; views are made where they are read and go with their storage.
What is resident at the loss is passed from one function to the other. A replay of an operation that draws random
numbers runs with the generator state saved at its first run. Copies to the host and back are calls of the step's `copies`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from attrs import evolve, field, frozen

from remat.errors import BadArgument, RematError
from remat.exec._copy.copies import Copier
from remat.exec._program.kernels import drawn_mask, drawn_noise, noise_of
from remat.exec._program.program import A_PROGRAM, Op, Program, Role, refs
from remat.exec._program.refusals import refusing
from remat.exec._program.source import Names
from remat.exec._run.copy_scope import with_copies
from remat.exec._run.copying import Action, Arrive, CopyBack, CopyOut, Forget, Free, actions_of, host_need
from remat.exec._run.scopes import comment, with_scopes
from remat.exec._run.tangents import Tangents, called
from remat.exec._torch import rng
from remat.ir import Cost, Drop, Graph, Offload, Phase, Prefetch, Run, Schedule
from remat.ir.arguments import A_SCHEDULE
from remat.settings import takes

Tensors = tuple[torch.Tensor, ...]
Gradients = tuple[torch.Tensor | None, ...]


@frozen(kw_only=True, eq=False)
class Lowered:
    """A plan as two functions.

    Attributes:
        forward: primals in; module outputs, outputs that the backward reads, and the list of activations out.
        backward: loose primals, saved tensors (`backward_primals`, then outputs it reads), tangents and activations in;
            gradients of `grad_inputs` out. It empties the list of activations.
        source: the text of both.
        backward_primals: indices of primals that the backward reads and autograd watches for changes.
        loose_primals: indices of primals that the backward reads and that may change: buffers that the forward writes.
        written_primals: indices of primals that the forward writes.
        grad_inputs: indices of primals that get a gradient.
        tangents: makes the backward's tangents of the gradients of all outputs.
        device: where it runs.
        reruns: number of runs after the first, by node.
        copier: runs the copies; None: the plan makes none.
        inner_outputs: positions of outputs from which others are computed that get gradients.
        lone_views: positions of outputs that are views of what neither the backward nor another output looks at, with their
            dimensions in the order of the memory.
        lowered_from: program, schedule and copies.
        variants: the plan with other backwards, by what is missing among its tangents (`partial.without`).
        eager: the same plan run by eager's kernels, where these functions were compiled; None: they are that.
    """

    forward: Callable[[Tensors], tuple[Tensors, Tensors, list[torch.Tensor]]]
    backward: Callable[[Tensors, Tensors, Gradients, list[torch.Tensor]], Gradients]
    source: str = field(repr=False)
    backward_primals: tuple[int, ...]
    loose_primals: tuple[int, ...]
    written_primals: tuple[int, ...]
    grad_inputs: tuple[int, ...]
    tangents: Tangents = field(repr=False)
    device: torch.device
    reruns: dict[str, int] = field(repr=False)
    copier: Copier | None = field(default=None, repr=False)
    inner_outputs: tuple[int, ...] = ()
    lone_views: tuple[int, ...] = ()
    lowered_from: tuple[Program, Schedule, Copying | None] = field(repr=False)
    variants: dict[frozenset[int], Lowered] = field(factory=dict, repr=False)
    eager: Lowered | None = field(default=None, repr=False)

    @cached_property
    def scoped(self) -> Lowered:
        """The same under scopes for a profiler, made when they are first wanted; itself where a compiler has made it."""
        if self.eager is not None:
            return self
        functions, source = with_scopes((self.forward, self.backward), self.source)
        forward, backward = functions if self.copier is None else with_copies(self.copier, *functions)
        return evolve(self, forward=forward, backward=backward, source=source)

    @property
    def sets_generator(self) -> bool:
        """Whether a step sets the random state: a draw runs again, or compiled code has the state as data."""
        drawing = (op.name for op in self.lowered_from[0].ops if op.draws)
        return any(self.eager is not None or name in self.reruns for name in drawing)


@frozen(kw_only=True)
class Copying:
    """How a schedule with copies is run.

    Attributes:
        actions: of the schedule.
        copier: runs its copies.
    """

    actions: tuple[Action, ...]
    copier: Copier

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule, cost: Cost, copier: Copier) -> Copying | None:
        """For a schedule and its replay with a link; None where it makes no copies."""
        if not any(isinstance(step, (Offload, Prefetch)) for step in schedule.steps):
            return None
        actions = actions_of(graph, schedule, cost)
        copier.pool.expect(host_need(graph, actions))
        return cls(actions=actions, copier=copier)


@takes(rule="X-ARG", program=A_PROGRAM, schedule=A_SCHEDULE)
def lower(program: Program, schedule: Schedule, copying: Copying | None = None) -> Lowered:
    """Compile a schedule that `validate` accepts.

    Args:
        program: the captured step whose graph the schedule is for.
        schedule: runs and drops by name, and copies.
        copying: how its copies are run; None: it makes none.

    Raises:
        Uncapturable: X-STAGE, where an operation cannot be written as code.
        BadArgument: X-ARG, where the schedule does not run the loss.
        RematError: X-COPY, where the schedule makes copies and `copying` is None.
    """
    if copying is None and any(isinstance(step, (Offload, Prefetch)) for step in schedule.steps):
        fix = "give copying=Copying.of(graph, schedule, cost, copier), or plan without a link."
        raise RematError("X-COPY", "the schedule makes copies to the host, and nothing says how to run them.", fix=fix)
    loss = next(op.name for op in program.nodes if op.role is Role.LOSS)
    if all(run.node != loss for run in schedule.runs):
        fix = "give a schedule of the program's graph, and `validate` it."
        raise BadArgument("X-ARG", f"lower: the schedule does not run the loss, {loss!r:.80}.", fix=fix)
    with refusing("lowering"):
        return Lowering(program, schedule, copying).result()


class Lowering:
    """Writes the two functions of a schedule."""

    def __init__(self, program: Program, schedule: Schedule, copying: Copying | None) -> None:
        self.program, self.lowered_from = program, (program, schedule, copying)
        self.copier = None if copying is None else copying.copier
        self.steps: tuple[Action, ...] = schedule.steps if copying is None else copying.actions  # type: ignore[assignment]
        self.primals = tuple(value for value, _ in (*program.params, *program.buffers, *program.inputs))
        counts = Counter(step.node for step in schedule.steps if isinstance(step, Run))
        self.reruns = {name: n - 1 for name, n in counts.items() if n > 1}
        self.names = Names({"_save_state": rng.save, "_replay": rng.replay, "_device": program.device})
        self.views = _views_by_value(program)
        self.lines: list[str] = []
        self.bound: set[str] = set()
        self.ran: set[str] = set()
        self.used: set[str] = set()
        self.comment = ""
        ends = (*program.outputs, *program.grads.values())
        self.kept = {program.values[value].storage for value in ends}
        self.by_storage: dict[str, list[str]] = {}
        for value in program.values.values():
            self.by_storage.setdefault(value.storage, []).append(value.name)

    # -- the two functions ---------------------------------------------------------------------------------------------

    def result(self) -> Lowered:
        program = self.program
        cut = next(
            at for at, step in enumerate(self.steps)
            if isinstance(step, Run) and program.op_by_name[step.node].role is Role.LOSS
        )  # fmt: skip
        after = self.steps[cut + 1 :]
        read_outputs, activations = self.saved(cut)
        forward = self.forward(self.steps[:cut], read_outputs, activations)
        backward, watched, loose = self.backward(after, read_outputs, activations)
        source = f"{forward}\n\n{backward}\n"
        space = self.names.compiled(source, "step", program.constants)
        indices = {value: at for at, value in enumerate(self.primals)}
        grads = self.grad_sources()
        functions = space["forward"], space["backward"]
        run_forward, run_backward = functions if self.copier is None else with_copies(self.copier, *functions)
        return Lowered(
            forward=run_forward,
            backward=run_backward,
            source=source,
            backward_primals=tuple(indices[value] for value in watched),
            loose_primals=tuple(indices[value] for value in loose),
            written_primals=tuple(indices[value] for value in program.updates),
            grad_inputs=tuple(indices[value] for value in grads),
            tangents=Tangents(program),
            device=program.device,
            reruns=self.reruns,
            copier=self.copier,
            inner_outputs=program.inner_outputs,
            lone_views=self.lone_views(read_outputs),
            lowered_from=self.lowered_from,
        )

    def saved(self, cut: int) -> tuple[list[str], list[str]]:
        """The values that pass to the backward, by their roots: outputs that it reads, which autograd saves, and all others."""
        program = self.program
        resident = self.resident_after(self.steps[:cut])
        runs = [program.op_by_name[step.node] for step in self.steps[cut + 1 :] if isinstance(step, Run)]
        later = {name for op in runs for name in program.read(op)}
        returned = {program.values[value].storage for value in program.outputs}
        read_outputs = self.roots(name for name in resident if name in returned & later)
        activations = self.roots(name for name in resident if name not in returned and not self.weightless(name))
        return read_outputs, activations

    def lone_views(self, read_outputs: list[str]) -> tuple[int, ...]:
        """See `Lowered`.

        A write to a transposed output would have eager give its gradient in the order of the memory, and sum it in that order.
        """
        values, outputs = self.program.values, self.program.outputs
        looks = Counter(values[value].storage for value in (*outputs, *read_outputs))
        views = (
            at for at, value in enumerate(outputs) if values[value].view is not None and values[value].spec.in_order
        )
        return tuple(at for at in views if looks[values[outputs[at]].storage] == 1)

    def forward(self, steps: Iterable[Any], read_outputs: list[str], activations: list[str]) -> str:
        program = self.program
        self.begin(bound=[*self.primals, *program.constants])
        self.emit(steps)
        for value in program.outputs:
            self.bind(value)
        out = _tuple(program.outputs)
        self.line(f"return {out}, {_tuple(read_outputs)}, [{', '.join(activations)}]")
        head = [f"def forward(primals{self.argument}):", *self.unpack_primals(self.primals)]
        return "\n".join([*head, *self.lines])

    def backward(
        self, steps: Iterable[Any], read_outputs: list[str], activations: list[str]
    ) -> tuple[str, list[str], list[str]]:
        program = self.program
        tangents = [value for value, _ in program.tangents]
        self.begin(bound=[*self.primals, *program.constants, *read_outputs, *activations, *tangents])
        self.emit(steps)
        results = self.results()
        self.bind_all(filter(None, results))
        self.line(f"return {_tuple([value or 'None' for value in results])}")
        watched, loose = self.used_primals()
        head = [f"def backward(loose, saved, tangents, activations{self.argument}):"]
        arguments = {
            "loose": loose,
            "saved": [*watched, *read_outputs],
            "tangents": tangents,
            "activations": activations,
        }
        head += [f"    {_targets(values)} = {argument}" for argument, values in arguments.items() if values]
        head += ["    activations.clear()", "    del saved, tangents"]
        return "\n".join([*head, *self.lines]), watched, loose

    def results(self) -> list[str | None]:
        """Gradients of the primals that autograd asks gradients of."""
        return [self.program.grads.get(key) for key in self.grad_sources().values()]

    def grad_sources(self) -> dict[str, tuple[str, Any]]:
        """Primals that autograd asks gradients of, with the key of the gradient."""
        program = self.program
        named: dict[str, tuple[str, Any]] = {value: ("param", path) for value, path in program.params}
        named |= {value: ("buffer", path) for value, path in program.buffers}
        named |= {value: ("input", position) for value, position in program.inputs}
        return {value: named[value] for value in self.primals if named[value] in program.grads}

    @property
    def argument(self) -> str:
        """The last argument of both functions of a plan with copies."""
        return "" if self.copier is None else ", copies"

    def unpack_primals(self, wanted: Iterable[str]) -> list[str]:
        """Lines that bind the primals that are used."""
        wanted = set(wanted) & self.used
        return [f"    {value} = primals[{at}]" for at, value in enumerate(self.primals) if value in wanted]

    # -- residency -----------------------------------------------------------------------------------------------------

    def resident_after(self, steps: Iterable[Any]) -> list[str]:
        resident: dict[str, None] = {}
        for step in steps:
            if isinstance(step, Run):
                resident.update(dict.fromkeys(self.program.written(self.program.op_by_name[step.node])))
            elif isinstance(step, (Drop, CopyOut)):
                resident.pop(step.datum, None)
            elif isinstance(step, CopyBack):
                resident[step.datum] = None
        return list(resident)

    def weightless(self, storage: str) -> bool:
        """Whether a storage stands for something that is not a tensor of the step (a write, a state that is not replayed)."""
        maker = self.program.op_by_name.get(self.program.storages[storage].roots[0])
        return maker is not None and (
            maker.role is Role.UPDATE or (maker.role is Role.RNG and not self.replayed(maker))
        )

    def replayed(self, state: Op) -> bool:
        return state.subject in self.reruns

    def roots(self, storages: Iterable[str]) -> list[str]:
        return [value for name in storages for value in self.program.storages[name].roots]

    # -- lines ---------------------------------------------------------------------------------------------------------

    def begin(self, bound: Iterable[str]) -> None:
        self.lines, self.bound, self.used, self.comment = [], set(bound), set(), ""

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}")

    def emit(self, steps: Iterable[Any]) -> None:
        steps = list(steps)
        skipped: set[int] = set()
        for at, step in enumerate(steps):
            if at in skipped:
                continue
            if isinstance(step, Run) and (places := self.drawn_at_once(steps, at)):
                self.draw_at_once(step.node, steps[places[0]].node)
                skipped.update(places)
            elif isinstance(step, Run):
                self.run(self.program.op_by_name[step.node])
            elif isinstance(step, Drop):
                self.free(step.datum)
            elif not self.weightless(step.datum):
                self.copy(step)

    def copy(self, action: CopyOut | Free | CopyBack | Arrive | Forget) -> None:
        """A call of the step's copies."""
        datum = action.datum
        roots = self.program.storages[datum].roots
        if isinstance(action, CopyOut):
            self.line(f"copies.out({', '.join([repr(datum), *roots])})")
            self.free(datum)
        elif isinstance(action, CopyBack):
            self.line(f"{_targets(roots)} = copies.back({datum!r})")
            self.bound.update(roots)
        else:
            self.line(f"copies.{_CALLS[type(action)]}({datum!r})")

    def drawn_at_once(self, steps: list[Any], at: int) -> tuple[int, ...]:
        """Places of the steps that make noise of a mask drawn at `at` and drop the mask, if nothing runs or is copied between."""
        draw = self.program.op_by_name[steps[at].node]
        if draw.target is not drawn_mask:
            return ()
        runs = [place for place in range(at + 1, len(steps)) if isinstance(steps[place], Run)][:2]
        if not all(isinstance(step, Drop) for step in steps[at + 1 : runs[0] if runs else None]):
            return ()
        noise = self.program.op_by_name[steps[runs[0]].node] if runs else draw
        (mask,) = self.program.written(draw)
        end = runs[1] if len(runs) > 1 else len(steps)
        drops = [place for place in range(at + 1, end) if steps[place] == Drop(mask)]
        reads = noise.target is noise_of and mask in self.program.read(noise)
        return (runs[0], *drops) if reads and drops and drops[0] > runs[0] else ()

    def draw_at_once(self, draw: str, noise: str) -> None:
        """The noise without the mask, in one call."""
        mask, scale = self.program.op_by_name[draw], self.program.op_by_name[noise]
        again = draw in self.ran
        self.ran.add(draw)
        self.run(evolve(scale, target=drawn_noise, args=mask.args, draws=True, needs=mask.needs), replay=again)

    def run(self, op: Op, *, replay: bool = False) -> None:
        if op.role in (Role.LOSS, Role.RNG):
            self.save_state(op)
            return
        self.mark_scope(op.scope, recomputed=replay or op.name in self.ran)
        self.bind_all(ref.name for ref in refs((op.args, op.kwargs)))
        outputs = op.outputs
        if op.name in self.ran:
            self.unbind_views(op)
            outputs = self.remade(op)
            replay = replay or (op.draws and op.phase is Phase.FORWARD)
        self.ran.add(op.name)
        self.line(self.statement(op, outputs, replay=replay))
        if op.role is not Role.UPDATE and None in outputs:
            self.line("del _")
        self.bound.update(name for name in outputs if name is not None)
        self.add_in_place(op, outputs)

    def used_primals(self) -> tuple[list[str], list[str]]:
        """The inputs that a function uses: those that autograd watches, and the others.

        A buffer or input that the forward writes may change again before this backward: autograd must not watch it.
        """
        used = [value for value in self.primals if value in self.used]
        written = [value for value in used if value in self.program.updates]
        return [value for value in used if value not in written], written

    def save_state(self, op: Op) -> None:
        """Save the random state where a node that draws from it runs again."""
        if op.role is Role.RNG and self.replayed(op):
            self.line(f"{op.name} = _save_state(_device)")
            self.bound.add(op.name)

    def remade(self, op: Op) -> tuple[str | None, ...]:
        """The outputs of a rerun; the caller keeps the tensors it already has: a second copy would only take memory."""
        return tuple(None if name is None or self.returned(name) else name for name in op.outputs)

    def mark_scope(self, scope: str, *, recomputed: bool) -> None:
        """A comment where another module begins, or where its operations begin or cease to be recomputed."""
        text = comment(scope, recomputed=recomputed)
        if text != self.comment:
            self.comment = text
            self.line(text)

    def add_in_place(self, op: Op, outputs: Sequence[str | None]) -> None:
        """The sums that an operation's outputs are added to where they are made."""
        for into, first, second in op.adds:
            if outputs[self.program.position(op, into)] is not None:
                self.bind_all((into, first, second))
                self.line(f"{self.names.entry(torch.ops.aten.add.out)}({first}, {second}, out={into})")

    def bind_all(self, names: Iterable[str]) -> None:
        """See `bind`."""
        for name in dict.fromkeys(names):
            self.bind(name)

    def returned(self, value: str) -> bool:
        return self.program.values[value].storage in self.kept

    def statement(self, op: Op, outputs: tuple[str | None, ...], *, replay: bool = False) -> str:
        entry = self.names.entry(called(self.program, op))
        args = [self.names.text(arg) for arg in op.args] + [
            f"{key}={self.names.text(arg)}" for key, arg in op.kwargs.items()
        ]
        call = f"{entry}({', '.join(args)})"
        if replay:
            self.used.add(op.needs[-1])
            call = f"_replay(_device, {op.needs[-1]}, {', '.join([entry, *args])})"
        if op.role is Role.UPDATE:
            return call
        if op.unpack:
            return f"{_targets([name or '_' for name in outputs])} = {call}"
        return f"{outputs[0] or '_'} = {call}"

    def bind(self, value: str) -> None:
        """Make sure that a value has a name in this function: recreate it where it is a view."""
        self.used.add(value)
        if value in self.bound:
            return
        op = self.views[value]
        for name in op.reads:
            self.bind(name)
        self.line(self.statement(op, op.outputs))
        self.bound.update(name for name in op.outputs if name is not None)

    def unbind_views(self, op: Op) -> None:
        """Forget the views of outputs that are recomputed: they still refer to the old value."""
        for storage in self.program.written(op):
            roots = set(self.program.storages[storage].roots)
            if storage not in self.kept:
                self.delete(value for value in self.of(storage) if value not in roots)

    def free(self, storage: str) -> None:
        self.delete(self.of(storage))

    def of(self, storage: str) -> list[str]:
        """Bound values that look at a storage, in a fixed order."""
        return [value for value in self.by_storage.get(storage, ()) if value in self.bound]

    def delete(self, values: Iterable[str]) -> None:
        gone = list(values)
        if gone:
            self.line(f"del {', '.join(gone)}")
            self.bound.difference_update(gone)


_CALLS = {Free: "free", Arrive: "arrive", Forget: "forget"}


def _views_by_value(program: Program) -> dict[str, Op]:
    return {name: op for op in program.ops if op.role is Role.VIEW for name in op.outputs if name is not None}


def _tuple(names: Iterable[str]) -> str:
    items = list(names)
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _targets(names: Iterable[str]) -> str:
    return "".join(f"{name}, " for name in names).rstrip()
