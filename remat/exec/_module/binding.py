"""A planned step bound to the places of its tensors in a call, and rehearsed there."""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve

from remat.errors import Uncapturable
from remat.exec._capture.capturing import is_leaf
from remat.exec._module.calls import Arguments
from remat.exec._module.entries import Ready
from remat.exec._module.live import Watch, named
from remat.exec._module.state import State
from remat.exec._plan.costing import is_loss_inside
from remat.exec._plan.families import ALONE
from remat.exec._plan.planned import Planned
from remat.exec._plan.settings import Settings
from remat.exec._program.program import Program
from remat.exec._run.meter import StepMeter
from remat.exec._run.rehearsal import rehearse
from remat.exec._run.runtime import Call
from remat.exec._torch.places import forward_of
from remat.exec._torch.torch_private import storage_key
from remat.exec._trace.tape import Origin
from remat.exec._trace.tracing import Same


def extra_inputs(ready: Ready, call: Arguments, watched: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """The inputs besides the arguments, or None where a call takes other branches than the plan was traced on."""
    if not ready.watch.holds(call.module, watched):
        return None
    captured = ready.captured
    device = captured.program.device
    extra = ready.watch.lifted(captured.lifted)
    inputs = (*call.tensors["input"], *extra)
    if _shared_writes(captured.program, ready.places, call, inputs) != ready.shared_writes:
        return None
    if any(is_leaf(inputs[at]) != leaf for at, leaf in captured.leaves):
        return None
    if captured.prologue is not None:
        results = captured.prologue.results(call.at(ready.prologue_places, extra), device)
        if results is None:
            return None
        extra = [*extra, *results]
    guards = captured.guards
    if guards.reads and not guards.holds(call.at(ready.guard_places, extra), device):
        return None
    return extra


def _shared_writes(
    program: Program, places: tuple[tuple[str, int], ...], call: Arguments, inputs: tuple[torch.Tensor, ...]
) -> frozenset[tuple[tuple[str, int], tuple[str, int]]]:
    """The places of tensors that a step writes, each with that of another tensor of the call in the same memory."""
    if not program.updates:
        return frozenset()
    primals = (*program.params, *program.buffers, *program.inputs)
    written = [place for (value, _), place in zip(primals, places, strict=True) if value in program.updates]
    tensors = {**call.tensors, "input": list(inputs)}
    kinds = ("param", "buffer", "input") if any(kind == "input" for kind, _ in written) else ("input",)
    sharing: dict[int, list[tuple[str, int]]] = {storage_key(tensors[kind][at]): [] for kind, at in written}
    for kind in kinds:
        for at, tensor in enumerate(tensors[kind]):
            if (others := sharing.get(storage_key(tensor))) is not None and tensor.numel():
                others.append((kind, at))
    pairs = ((place, other) for place in written for other in sharing[storage_key(tensors[place[0]][place[1]])])
    return frozenset((place, other) for place, other in pairs if place != other)


def bound(state: State, call: Arguments, planned: Planned, digest: str, watch: Watch | None = None) -> Ready:
    """A plan bound to the places of its tensors, and rehearsed; with what watches the state of Python for its program."""
    captured, module = planned.captured, call.module
    program = captured.program
    index = {"param": named(module, "_parameters"), "buffer": named(module, "_buffers")}

    def place(origin: Origin) -> tuple[str, int]:
        kind, about = origin
        return kind, index[kind][about] if kind in index else about

    roles = (("param", program.params), ("buffer", program.buffers), ("input", program.inputs))
    places = tuple(place((kind, about)) for kind, values in roles for _, about in values)
    guarded = tuple(map(place, captured.guards.origins))
    early = tuple(map(place, captured.prologue.origins if captured.prologue is not None else ()))
    replaced = tuple(index["buffer"][path] for path in captured.replaced)
    same = tuple((i, place(leaf.origin)) for i, leaf in enumerate(captured.out_leaves) if isinstance(leaf, Same))
    watch = watch or Watch(captured.tokens, captured.reads)
    if not watch.holds(module, state.watched(module)):
        what = "the state of Python that the forward reads does not compare equal to itself."
        raise Uncapturable("X-STATE", what, fix="keep objects with an odd `__eq__` out of the module's attributes.")
    inputs = (*call.tensors["input"], *watch.lifted(captured.lifted))
    meter = StepMeter(program.device, wanted=_guesses_reserve(state.settings, planned))
    step = rehearsal = None
    if planned.lowered is not None:
        step = Call(
            lowered=planned.lowered, requires_grad=captured.requires_grad, differentiable=captured.differentiable,
            meter=meter, name=str(forward_of(module)), gate=state.ranks.gate if state.ranks.shared else None,
        )  # fmt: skip
    ready = Ready(
        planned=planned, digest=digest, watch=watch, places=places, guard_places=guarded, prologue_places=early, call=step,
        meter=meter, same_places=same, replaced_places=replaced,
        shared_writes=_shared_writes(program, places, call, inputs),
    )  # fmt: skip
    extra = extra_inputs(ready, call, state.watched(module))
    if extra is None:
        what = "what the forward asks of the tensors of this call has another answer when it is asked again."
        fix = "keep operations that differ from run to run out of what decides."
        raise Uncapturable("X-READ", what, fix=fix, where=str(forward_of(module)))
    call.extra = extra
    alone = (
        planned.provenance in ALONE and not program.structure
    )  # what was filled in is like a step that was rehearsed
    if state.rehearse and planned.lowered is not None and alone:
        rehearsal = planned.rehearsed or rehearse(planned.lowered, call.at(places, extra), planned.excess)
    return evolve(ready, rehearsal=rehearsal)


def _guesses_reserve(settings: Settings, planned: Planned) -> bool:
    """Whether the bytes for a loss outside were estimated, and no step has been audited yet."""
    return not is_loss_inside(planned.captured) and not planned.audited and settings.loss_reserve is None
