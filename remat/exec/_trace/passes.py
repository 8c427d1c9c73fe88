"""Passes over a forward, and what two passes of the same call must have in common for the step to be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import define, field

from remat.errors import Uncapturable
from remat.exec._torch import rng
from remat.exec._trace.containers import Container
from remat.exec._trace.diagnosis import who_changes
from remat.exec._trace.effects import Effect
from remat.exec._trace.python_state import Snapshot
from remat.exec._trace.reads import Reads
from remat.exec._trace.structure import Layout
from remat.exec._trace.tape import Tape


@define(eq=False)
class Pass:
    """Observations of one run of the forward.

    Attributes:
        tape: its operations and what Python read of tensors.
        reads: attributes that were read.
        entry: of a second pass, the state of Python that it began in.
        exit: the state of Python after the pass.
        effects: changes; their tensors are in `effect_tensors`.
        layout, leaves: what was returned; tensors stand as None, or as `Same`.
        places: which of `leaves` are tensors.
        requires_grad: of each returned tensor, of each late read, and of each tensor of an effect.
        replaced: paths of buffers that were replaced by new tensors.
        new_memory: these paths, by the memory of the new tensors.
        through: positions of outputs that gradients may come back through.
        seeded: whether the forward set torch's generator itself, also where it put it back.
        orders: for each output, how its dimensions are permuted for the caller; None: not at all.
    """

    tape: Tape
    reads: Reads
    entry: Any = None
    exit: Snapshot | None = None
    effects: tuple[Effect, ...] = ()
    effect_tensors: list[torch.Tensor] = field(factory=list)
    layout: Layout | None = None
    leaves: tuple[Any, ...] = ()
    places: tuple[int, ...] = ()
    requires_grad: tuple[bool, ...] = ()
    through: tuple[int, ...] = ()
    replaced: tuple[str, ...] = ()
    new_memory: Mapping[Any, str] = field(factory=dict)
    seeded: bool = False
    orders: tuple[tuple[int, ...] | None, ...] = ()


def _moved_generator(before: Snapshot, after: Snapshot) -> str | None:
    """The path of the first generator whose state differs after a pass."""
    states = {container.path: container.values for container in after.containers if container.kind == "generator"}
    generators = (container for container in before.containers if container.kind == "generator")
    return next((each.path for each in generators if states.get(each.path, each.values) != each.values), None)


def check_passes(passes: list[Pass], before: Snapshot, again: Callable[[], None]) -> None:
    """Refuse what differs between two passes of the same call.

    Args:
        passes: of the same call.
        before: the state of Python at the call.
        again: traces once more, to locate a change.
    """
    first, last = passes[0], passes[-1]
    moved = None if last.exit is None else _moved_generator(before, last.exit)
    if moved is not None:
        refuse_generator(moved, before, again)
    if first.exit is not None and last.exit is not None and first.exit.token() != last.exit.token():
        _refuse_counter(first.exit, last.exit, before, again)
    if first.seeded or last.seeded:
        where = who_changes(again, lambda: last.tape.seeding.seen, before.root)
        what = "the forward sets torch's generator itself (seeds it, or takes draws back), which a captured step would not."
        fix = "seed outside the module, or draw these numbers outside, and pass them as an argument."
        raise Uncapturable("X-RANDOM", what, fix=fix, where=where)
    different = _difference(first, last)
    if different is not None:
        fix = "keep clocks, counters and random numbers of Python out of the forward, or pass them as arguments."
        raise Uncapturable(
            "X-STATE", f"{different[0]} when the same call was traced again.", fix=fix, where=different[1]
        )


def _difference(first: Pass, last: Pass) -> tuple[str, str] | None:
    """How two passes differ, and where; None: they agree."""
    ours, theirs = first.tape.instructions, last.tape.instructions
    for mine, other in zip(ours, theirs, strict=False):
        if mine.text != other.text:
            return f"{mine.text:.200} became {other.text:.200}", str(other.place)
    if len(ours) != len(theirs):
        longer = max(ours, theirs, key=len)[min(len(ours), len(theirs))]
        return f"{longer.target} ran in one of two passes only", str(longer.place)
    for read, later in zip(first.tape.reads, last.tape.reads, strict=False):
        if read.value != later.value:
            return f"Python read {read.value}, then {later.value}", str(later.place)
    if repr(first.leaves) != repr(last.leaves):
        return "the forward returned other plain values", ""
    for constant, again in zip(first.tape.constants.values(), last.tape.constants.values(), strict=False):
        if not torch.equal(constant, again):
            return "a tensor that the forward makes from Python numbers differed", ""
    return None


def check_backward(last: Pass, now: Snapshot) -> None:
    """Refuse a backward that changes Python: a hook that counts or collects, which a planned backward does not call."""
    assert last.exit is not None
    before = {entry[:2]: entry for entry in last.exit.token()}
    changed = [entry for entry in now.token() if before.get(entry[:2]) != entry]
    if changed:
        path = changed[0][0].removesuffix(".__dict__")
        what = (
            f"the backward changes {path} (a hook does, or an autograd function), which a planned backward would not."
        )
        fix = "do that outside: in a hook of the wrapped module, or of its parameters."
        raise Uncapturable("X-STATE", what, fix=fix)


def refuse_generator(name: str, before: Snapshot, again: Callable[[], None]) -> None:
    """Refuse random numbers that no plan replays."""
    container = next((entry for entry in before.containers if entry.kind == "generator" and entry.path == name), None)

    def state() -> Any:
        return rng.others()[name] if container is None else container.read()[1][0].text

    where = who_changes(again, state, before.root)
    what = f"the forward draws from {name}, which a captured step would not draw from again."
    fix = "draw with torch (`torch.rand(())`), or outside the module, and pass it as an argument."
    raise Uncapturable("X-RANDOM", what, fix=fix, where=where)


def _changed_path(container: Container, second: Snapshot) -> str:
    """The path of the first entry of a container that a pass replaced; that of the container, if it has no names."""
    path = container.path
    named = dict(zip(container.keys, container.values, strict=True)) if container.keys else {}
    pairs = zip(*_last(second, path), strict=False)
    keys = [key for key, value in pairs if key not in named or named[key] is not value]
    return f"{path.removesuffix('.__dict__')}.{keys[0]}" if keys and isinstance(keys[0], str) else path


def _refuse_counter(first: Snapshot, second: Snapshot, before: Snapshot, again: Callable[[], None]) -> None:
    """Refuse Python state that every call changes."""
    old = {entry[:2]: entry for entry in first.token()}
    changed = [entry for entry in second.token() if old.get(entry[:2]) != entry]
    path = changed[0][0] if changed else "its state"
    where = ""
    container = next((entry for entry in before.containers if entry.path == path), None)
    if container is not None:
        where = who_changes(again, lambda: list(map(id, container.read()[1])), before.root)
        path = _changed_path(container, second)
    what = f"the forward changes {path} in every call, which a captured step would not."
    fix = "keep it in a buffer that is changed in place (`self.register_buffer`, `self.count.add_(1)`), or change it outside."
    raise Uncapturable("X-STATE", what, fix=fix, where=where)


def _last(snapshot: Snapshot, path: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    container = next((entry for entry in snapshot.containers if entry.path == path), None)
    return ((), ()) if container is None else (container.keys, container.values)
