"""Tracing one call: the step as a function of flat tensors, what Python did meanwhile, and everything put back afterwards.

The tracer runs the forward twice under fake tensors, once for metadata and once for the graph, and both passes are watched:
what they read of tensors (`Tape`), which attributes they read (`Reads`), what they changed in Python (`Snapshot`). A second pass
that does other operations than the first, or leaves another state, shows that something besides tensors and torch's generator
decides, and is refused (`passes.py`). What a forward changes once and for all (a flag, a cached value, an attribute that holds a
tensor) is an *effect* (`effects.py`): a captured step has it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from attrs import evolve, frozen
from torch import nn

from remat.errors import Uncapturable
from remat.exec._torch import nodes, rng, torch_private
from remat.exec._torch.joint import Correction, Joint, export_joint
from remat.exec._torch.log import NotLogged
from remat.exec._torch.logged import log_joint
from remat.exec._torch.nodes import Regions
from remat.exec._torch.parametrized import own_parametrizations
from remat.exec._torch.places import Running, described
from remat.exec._torch.quiet import without_tracebacks
from remat.exec._torch.seeding import Seeding
from remat.exec._torch.stand_ins import StandIn, answering
from remat.exec._torch.unwinding import hooks_put_back
from remat.exec._trace import structure
from remat.exec._trace.caches import Caches
from remat.exec._trace.containers import TABLES, Item, Slot
from remat.exec._trace.diagnosis import refusal
from remat.exec._trace.effects import (
    buffers_of,
    check_tables,
    copy_first,
    effect_on,
    entries,
    new_memory,
    take_back_tensors,
    write_in_place,
)
from remat.exec._trace.passes import Pass, check_backward, check_passes, refuse_generator
from remat.exec._trace.python_state import Snapshot
from remat.exec._trace.reads import Reads
from remat.exec._trace.structure import Layout, Plain, Repeated
from remat.exec._trace.tape import Computed, Foreign, Origin, Scalar, Tape

_WORDS = {"param": "parameter", "buffer": "buffer"}

MOST_RESTARTS = 64
"""How often a trace begins anew because it met one more tensor from outside."""


@frozen(kw_only=True, eq=False)
class Step:
    """One call of a module, to be traced: flat tensors in, whatever it returns out.

    Attributes:
        module: the module whose parameters and buffers are lifted.
        function: what is called, with the module first.
        leaves, layout: the arguments, flat; tensors stand as None, or as `Repeated` where the call has them already.
        tensors: the tensors among the arguments, without these.
        watched: functions and objects besides the module whose state counts (a loss function).
        differentiable: "auto", "loss" or "all" (see `capture`).
        answers: values of late reads that are known already.
        tracer: "joint", "log" or "auto" (see `capture`).
    """

    module: nn.Module
    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    layout: Layout
    tensors: tuple[torch.Tensor, ...]
    watched: tuple[Any, ...] = ()
    differentiable: str = "auto"
    answers: tuple[Scalar, ...] = ()
    tracer: str = "auto"

    def run(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """Call it."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is None else self._value(leaf, tensors) for leaf in self.leaves]
        args, kwargs = structure.unflatten(leaves, self.layout)
        given = {**dict(enumerate(args)), **kwargs}
        before = {name: _form(argument) for name, argument in given.items()}
        out = self.function(self.module, *args, **kwargs)
        for name, argument in given.items():
            if _form(argument) != before[name]:
                place = f"argument {name}" if isinstance(name, int) else f"the argument {name!r}"
                what = f"the forward writes to {place}, a {type(argument).__name__}, which a captured step would not."
                raise Uncapturable("X-INPUT", what, fix="return what it writes there, or write to a copy.")
        return out

    def _value(self, leaf: Plain | Repeated, tensors: tuple[torch.Tensor, ...]) -> Any:
        """What stands for a leaf that is no tensor of its own."""
        if isinstance(leaf, Plain):
            return leaf.value
        kind, about = leaf.origin
        if kind == "input":
            return tensors[about]
        *path, name = about.split(".")
        inner = self.module
        for part in path:
            inner = inner.__dict__["_modules"][part]
        return inner.__dict__["_parameters" if kind == "param" else "_buffers"][name]

    def through(self, outputs: list[torch.Tensor], attributes: list[torch.Tensor]) -> tuple[int, ...]:
        """Positions of the outputs that gradients may come back through.

        Args:
            outputs: what the step returns.
            attributes: tensors that it leaves in attributes, which come after the outputs; a loss may be among them.
        """
        able = tuple(i for i, t in enumerate(outputs) if t.requires_grad)
        scalars = tuple(i for i in able if outputs[i].dim() == 0)
        left = tuple(i for i, t in enumerate(attributes, start=len(outputs)) if t.requires_grad)
        if self.differentiable == "all" or (self.differentiable == "auto" and len(scalars) != 1):
            return (*able, *left)
        if self.differentiable == "auto":
            return (*scalars, *(i for i in left if attributes[i - len(outputs)].dim() == 0))
        if len(scalars) != 1:
            what = f"the module returns {len(scalars)} scalars that require a gradient, so which one is the loss is not clear."
            raise Uncapturable("X-LOSS", what, fix='give differentiable="all", or return one loss.')
        return scalars


def _form(argument: Any) -> tuple[Layout, tuple[int, ...]]:
    """What an argument holds, in a form that compares; contents of tensors do not count."""
    leaves, layout = structure.flatten(argument, opaque=lambda value: isinstance(value, nn.Module))
    return layout, tuple(map(id, leaves))


@frozen
class Same:
    """A tensor that is returned as it came: a parameter, a buffer or an argument.

    Attributes:
        origin: which one.
    """

    origin: Origin


@frozen(kw_only=True, eq=False)
class Traced:
    """A traced call.

    Attributes:
        joint: the graph.
        last: the pass that it was made in.
        lifted: plain tensors that are inputs of the graph, after the arguments.
        computed: operations that run before the step, whose results are inputs after these.
        inputs: how many inputs there are before these results.
        tokens: states of Python in which the same trace results.
        cloned: positions of outputs that were cloned because they alias an input or another output.
        exported: why the joint export has made the graph and not the log; empty: the log has, or nothing else was asked for.
    """

    joint: Joint
    last: Pass
    lifted: tuple[Slot | Item, ...]
    computed: tuple[Computed, ...]
    inputs: int
    tokens: tuple[Any, ...]
    cloned: frozenset[int]
    exported: str = ""


@frozen
class Lifted:
    """What are inputs of the graph besides the arguments.

    Attributes:
        slots: plain tensors.
        computed: operations that run before the step.
    """

    slots: tuple[Slot | Item, ...] = ()
    computed: tuple[Computed, ...] = ()

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The real tensors of the sample."""
        return (
            *(slot.tensor for slot in self.slots),
            *(tensor for computed in self.computed for tensor in computed.tensors),
        )

    def __len__(self) -> int:
        return len(self.slots) + len(self.computed)


@frozen
class Terms:
    """What earlier attempts at a trace have shown that it needs.

    Attributes:
        lifted: see `Lifted`.
        cloned: positions of outputs that are cloned because they alias an input or another output.
        forget: caches of functions (`functools.lru_cache`) that are emptied before each pass, as they hold what it reads.
        copied: paths of buffers that the forward replaces: a pass has copies in their place, so that who has the old ones (the
            backward, an output, an attribute) keeps their values where the buffers are written.
    """

    lifted: Lifted = Lifted()
    cloned: frozenset[int] = frozenset()
    forget: tuple[Any, ...] = ()
    copied: frozenset[str] = frozenset()


class _Traced(nn.Module):
    """What the tracer is given, with the module inside so that its parameters are lifted."""

    def __init__(self, step: Step, before: Snapshot, terms: Terms, caches: Caches) -> None:
        super().__init__()
        self.__dict__["keeps_casts"] = torch.is_autocast_cache_enabled()
        self.inner = step.module
        running = Running()
        running.names.append(described("", step.module))
        tables = [(inner, name, entries(inner, name)) for inner in step.module.modules() for name in TABLES]
        self.__dict__.update(step=step, before=before, terms=terms, passes=[], running=running)
        self.__dict__.update(tables=tables, seeding=Seeding(), caches=caches)
        state = (step.module.named_parameters, step.module.named_buffers)
        self.__dict__["real"] = {
            (kind, name): tensor
            for kind, named in zip(("param", "buffer"), state, strict=True)
            for name, tensor in named(remove_duplicate=False)
        }

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        space = self.__dict__
        step: Step = space["step"]
        passes: list[Pass] = space["passes"]
        count = len(step.tensors)
        buffers = buffers_of(self.inner)
        copy_first(buffers, space["terms"].copied)
        self._begin(tensors)
        tape = self._tape(tensors)
        reads = Reads(space["before"].paths)
        current = Pass(tape, reads)
        if passes:
            current.entry = Snapshot(step.module, step.watched, passes[0].reads).token(passes[0].reads)
        answers = answering(self._stand_ins(tensors))
        with tape.seeding, reads, tape, answers, own_parametrizations(), nodes.autocast_regions(tape.regions):
            out = step.run(tensors[:count])
            current.seeded = tape.seeding.seen
        check_tables(space["tables"])
        current.new_memory = new_memory(buffers)
        current.replaced = write_in_place(buffers, (*self.inner.parameters(), *tensors))
        terms: Terms = space["terms"]
        if not terms.copied.issuperset(current.replaced):
            raise _Restart(evolve(terms, copied=terms.copied.union(current.replaced)))
        passes.append(current)
        returned = self._note_outputs(current, out)
        self._note_effects(current)
        self._check_held(current)
        _check_retained([*returned, *current.effect_tensors])
        late, left = [tensor.detach() for tensor in tape.late], current.effect_tensors
        through = step.through(returned, left)
        current.through = tuple(i if i < len(returned) else i + len(late) for i in through)
        outputs = [*returned, *late, *left]
        current.requires_grad = tuple(tensor.requires_grad for tensor in outputs)
        outputs = [tensor if i in current.through else tensor.detach() for i, tensor in enumerate(outputs)]
        cloned = [i for i in range(len(outputs)) if i in space["terms"].cloned]
        current.orders = _clone_as_contiguous(outputs, cloned)
        return tuple(outputs)

    def _check_held(self, current: Pass) -> None:
        """A buffer that is replaced is in no other place, before or after the call: the two would be one no longer.

        Raises:
            Uncapturable: X-STATE.
        """
        fix = "hold it in one place, or write it in place (`copy_`)."
        real, placed = self.__dict__["real"], self.__dict__["placed"]
        copies = {id(real["buffer", path]): (path, placed[id(real["buffer", path])]) for path in current.replaced}
        for slot in self.__dict__["before"].places():
            path, copy = copies.get(id(slot.tensor), ("", None))
            if copy is not None and slot.now() is copy:
                what = f"the forward replaces the buffer {path!r}, and {slot.path} keeps the old one, which is the buffer now."
                raise Uncapturable("X-STATE", what, fix=fix)
        origins: dict[int, Origin] = self.__dict__["origins"]
        for tensor in current.effect_tensors:
            kind, path = origins.get(id(tensor), ("", ""))
            if kind in _WORDS:
                what = f"the forward puts the {_WORDS[kind]} {path!r} itself in another place."
                raise Uncapturable("X-STATE", what, fix="put a clone there, or do it in `__init__`.")
            written = current.new_memory.get(torch_private.storage_key(tensor))
            if written is not None:
                what = f"the forward puts what replaces the buffer {written!r} in another place, too."
                raise Uncapturable("X-STATE", what, fix=fix)

    def _begin(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """The state of Python as at the call, but for what earlier passes set that holds no tensor; lifted tensors in place."""
        before: Snapshot = self.__dict__["before"]
        step: Step = self.__dict__["step"]
        terms: Terms = self.__dict__["terms"]
        for container in before.containers:
            if container.kind != "cache" and not container.same():
                take_back_tensors(container)
        if self.__dict__["passes"]:
            self.__dict__["caches"].forget_stand_ins()
        self.__dict__["caches"].empty(terms.forget)
        inputs = (*step.tensors, *terms.lifted.tensors)
        # what is returned as it came is recognised by these
        origins: dict[int, Origin] = {id(tensor): ("input", at) for at, tensor in enumerate(tensors)}
        self.__dict__["origins"] = origins
        placed: dict[int, Any] = {id(real): tensor for real, tensor in zip(inputs, tensors, strict=True)}
        for kind, named in (("param", self.inner.named_parameters), ("buffer", self.inner.named_buffers)):
            for name, tensor in named(remove_duplicate=False):
                placed[id(self.__dict__["real"][kind, name])] = tensor
                if kind == "param":
                    tensor._is_param = True  # for `isinstance(…, nn.Parameter)`
                if kind == "param" or name not in terms.copied:
                    origins.setdefault(id(tensor), (kind, name))
        self.__dict__["placed"] = placed
        placed |= before.iterators()
        made_anew: set[int] = set()
        for slot in before.places():
            if id(slot.tensor) in placed:
                slot.put(placed[id(slot.tensor)])
            elif id(slot.tensor) in made_anew:  # a tuple, of which an item has been put in place
                placed[id(slot.tensor)] = slot.now()
            else:
                continue
            if isinstance(slot, Item):
                made_anew.add(id(slot.outer.tensor))

    def _stand_ins(self, tensors: tuple[torch.Tensor, ...]) -> dict[int, StandIn]:
        """What the tensors of the trace stand for, by identity."""
        step: Step = self.__dict__["step"]
        inputs = (*step.tensors, *self.__dict__["terms"].lifted.tensors)
        stand_ins = {
            id(tensor): StandIn(
                f"the argument {at}" if at < len(step.tensors) else "a tensor in an attribute", real, False
            )
            for at, (tensor, real) in enumerate(zip(tensors, inputs, strict=True))
        }
        for kind, named in (("param", self.inner.named_parameters), ("buffer", self.inner.named_buffers)):
            for name, tensor in named(remove_duplicate=False):
                stand_ins[id(tensor)] = StandIn(f"the {_WORDS[kind]} {name}", self.__dict__["real"][kind, name], True)
        return stand_ins

    def _tape(self, tensors: tuple[torch.Tensor, ...]) -> Tape:
        step: Step = self.__dict__["step"]
        real: dict[Origin, torch.Tensor] = dict(self.__dict__["real"])
        lifted = self.__dict__["terms"].lifted
        inputs = (*step.tensors, *lifted.tensors)
        real.update({("input", position): tensor for position, tensor in enumerate(inputs)})
        regions = Regions(self.__dict__["keeps_casts"])
        tape = Tape(real.__getitem__, step.answers, self.__dict__["running"], regions, self.__dict__["seeding"])
        for name, parameter in self.inner.named_parameters(remove_duplicate=False):
            tape.know(parameter, ("param", name), trained=real["param", name].requires_grad)
        for name, buffer in self.inner.named_buffers(remove_duplicate=False):
            tape.know(buffer, ("buffer", name))
        for position, tensor in enumerate(tensors):
            tape.know(tensor, ("input", position))
        rest = iter(tensors[len(step.tensors) + len(lifted.slots) :])
        tape.kept = frozenset(
            id(slot.tensor)
            for slot in self.__dict__["before"].slots()
            if isinstance(slot.tensor, torch_private.FakeTensor) and id(slot.tensor) not in self.__dict__["placed"]
        )
        tape.computed = [tuple(next(rest) for _ in computed.tensors) for computed in lifted.computed]
        return tape

    def _note_outputs(self, current: Pass, out: Any) -> list[torch.Tensor]:
        """Take the outputs apart; parameters, buffers and arguments that are returned as they are stay what they are."""
        before: Snapshot = self.__dict__["before"]
        origins: dict[int, Origin] = self.__dict__["origins"]
        leaves, layout = structure.flatten(out, opaque=lambda value: id(value) in before.paths)
        returned, kept = [], []
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                if not isinstance(leaf, structure.PLAIN) and id(leaf) not in before.paths:
                    fix = "return tensors, plain values, or objects of them."
                    raise Uncapturable("X-OUTPUT", f"the module returns a {type(leaf).__name__}.", fix=fix)
                kept.append(leaf)
            elif id(leaf) in origins:
                kept.append(Same(origins[id(leaf)]))
            else:
                returned.append(leaf)
                kept.append(None)
        current.layout, current.leaves = layout, tuple(kept)
        current.places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and kept[i] is None)
        return returned

    def _note_effects(self, current: Pass) -> None:
        step: Step = self.__dict__["step"]
        before: Snapshot = self.__dict__["before"]
        effects = (
            effect_on(container, current.effect_tensors, self.__dict__["placed"]) for container in before.changed()
        )
        current.effects = tuple(effect for effect in effects if effect is not None)
        current.exit = Snapshot(step.module, step.watched)


def _check_retained(tensors: list[torch.Tensor]) -> None:
    """Nothing outside sees the gradient of a tensor inside a planned step.

    Raises:
        Uncapturable: X-RETAIN.
    """
    if any(tensor.retains_grad for tensor in tensors):
        what = "the forward calls `retain_grad` on a tensor that it returns or keeps, and a plan would leave its `grad` empty."
        raise Uncapturable(
            "X-RETAIN", what, fix="leave this module bare and wrap those beside it, or do without the gradient."
        )


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a tensor, the one with the longest stride first: permuted so, a dense tensor is contiguous."""
    strides = tensor.stride()
    return tuple(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))


def trace(step: Step, correction: Correction | None = None) -> Traced:
    """Trace a call; the module, all that it reaches and the generators are as before when this returns.

    Args:
        step: the call.
        correction: what kernels return other than their shape functions say.

    Raises:
        Uncapturable: the step cannot be one graph, or something besides tensors and torch's generator decides.
    """
    before = Snapshot(step.module, step.watched)
    caches = Caches(before.caches())
    terms = Terms()
    logs, exported = step.tracer != "joint", ""
    for _ in range(MOST_RESTARTS):
        run = _Traced(step, before, terms, caches)
        run.__dict__.update(correction=correction, tracer=log_joint if logs else export_joint)
        try:
            joint = _export(run, before)
        except NotLogged as refused:
            if step.tracer == "log":
                fix = 'leave the tracer to "auto", which exports such a step.'
                raise Uncapturable("X-TRACE", f"the log does not stand for this step: {refused}.", fix=fix) from refused
            logs, exported = False, str(refused)
            continue
        except _Restart as restart:
            terms = restart.terms
            continue
        if joint.aliased - terms.cloned:
            # An output that looks at an input or at another output gets no tangent of its own: give it its own storage.
            terms = evolve(terms, cloned=joint.aliased)
            continue
        passes: list[Pass] = run.__dict__["passes"]
        check_passes(passes, before, partial(_again, run, before))
        reads = passes[-1].reads
        for earlier in passes[:-1]:
            reads.merge(earlier.reads)
        first = Snapshot(step.module, step.watched, reads).token(reads)
        tokens = (first, *(attempt.entry for attempt in passes if attempt.entry is not None and attempt.entry != first))
        lifted = terms.lifted
        return Traced(
            joint=joint, last=passes[-1], lifted=lifted.slots, computed=lifted.computed, tokens=tokens, cloned=terms.cloned,
            inputs=len(step.tensors) + len(lifted.slots), exported=exported,
        )  # fmt: skip
    fix = "register them (`self.register_buffer(name, tensor, persistent=False)`), or pass them as arguments."
    raise Uncapturable("X-TRACE", f"the forward reads more than {MOST_RESTARTS} tensors from outside.", fix=fix)


class _Restart(Exception):
    """The trace begins anew, on other terms."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self.terms = terms


def _clone_as_contiguous(outputs: list[torch.Tensor], cloned: list[int]) -> tuple[tuple[int, ...] | None, ...]:
    """Clone outputs in place, and give for each output how to permute its dimensions back; None: not at all.

    The tracer takes gradients to be contiguous: a transposed output is cloned and returned as what it is a transpose of.
    """
    back: list[tuple[int, ...] | None] = [None] * len(outputs)
    for i in cloned:
        order = _order(outputs[i])
        outputs[i] = outputs[i].permute(order).clone()
        inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
        back[i] = None if inverse == tuple(range(len(order))) else inverse
    return tuple(back)


def _export(run: _Traced, before: Snapshot) -> Joint:
    step: Step = run.__dict__["step"]
    paths = {module: name for name, module in step.module.named_modules()}
    terms: Terms = run.__dict__["terms"]
    lifted = terms.lifted
    tensors = (*step.tensors, *lifted.tensors)
    states = rng.others()
    caches: Caches = run.__dict__["caches"]
    with hooks_put_back(), untouched(step.module, before, caches), torch.enable_grad(), without_tracebacks():
        try:
            with nodes.scopes(paths, run.__dict__["running"]):
                joint: Joint = run.__dict__["tracer"](run, tensors, run.__dict__["correction"])
            _put_back_others(run, before)
            check_backward(run.__dict__["passes"][-1], Snapshot(step.module, step.watched))
        except Foreign as foreign:
            slot = next((slot for slot in before.slots() if slot.tensor is foreign.tensor), None)
            holding = () if slot is not None else caches.with_tensor(foreign.tensor)
            if slot is None and not holding:
                raise refusal(foreign, step.module) from foreign
            if slot is None:
                raise _Restart(evolve(terms, forget=(*terms.forget, *holding))) from foreign
            raise _Restart(
                evolve(terms, lifted=evolve(lifted, slots=(*lifted.slots, *_with_its_likes(slot, before))))
            ) from foreign
        except Computed as computed:
            raise _Restart(evolve(terms, lifted=evolve(lifted, computed=(*lifted.computed, computed)))) from computed
        except (NotLogged, Uncapturable, _Restart):
            raise
        except Exception as error:
            unlifted = tuple(
                slot for slot in before.slots() if all(slot.tensor is not other for other in lifted.tensors)
            )
            if unlifted and torch_private.reader_of_real(error) is not None:  # a backward reads what nobody says
                raise _Restart(evolve(terms, lifted=evolve(lifted, slots=(*lifted.slots, *unlifted)))) from error
            if run.__dict__["tracer"] is log_joint:
                # The export is asked: what it cannot trace either it says better.
                raise NotLogged(f"{type(error).__name__}: {error}") from error
            raise refusal(error, step.module) from error
        moved = [name for name, state in rng.others().items() if states[name] != state]
    if moved:
        refuse_generator(moved[0], before, partial(_again, run, before))
    return joint


def _with_its_likes(slot: Slot | Item, before: Snapshot) -> list[Slot | Item]:
    """The place of a tensor to be lifted; that of a parameter or buffer in a module that nobody registered with all such."""
    return [other for other in before.slots() if _in_table(other)] if _in_table(slot) else [slot]


def _in_table(slot: Slot | Item) -> bool:
    return isinstance(slot, Slot) and slot.container.path.endswith(tuple(f".{table}" for table in TABLES))


def _put_back_others(run: _Traced, before: Snapshot) -> None:
    """Put parameters and buffers back where they are besides their tables, as the tracer has done with the tables.

    Not what stands for a parameter that is in no optimizer (FSDP1 has views there): such steps are refused.
    """
    real: dict[Origin, torch.Tensor] = run.__dict__["real"]
    stand_ins = {id(tensor): run.__dict__["placed"].get(id(tensor)) for tensor in real.values()}
    for slot in before.places():
        stand_in = stand_ins.get(id(slot.tensor))
        if stand_in is not None and slot.tensor.is_leaf and slot.now() is stand_in:
            slot.put(slot.tensor)


@contextmanager
def untouched(module: nn.Module, before: Snapshot, caches: Caches | None = None) -> Iterator[None]:
    """Put everything back that a trace has changed; caches of functions forget its tensors.

    Parameters are put back too: the tracer does not restore those of a module that is registered in two places.
    """
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (table, dict(table)) for inner in module.modules() for table in (inner._parameters, inner._buffers)
    ]
    caches = caches or Caches(before.caches())
    with rng.kept():
        try:
            yield
        finally:
            before.restore()
            for table, entries in tables:
                table.clear()
                table.update(entries)
            caches.forget_stand_ins()


def _again(run: _Traced, before: Snapshot) -> None:
    """Trace once more, to see where something happens."""
    step: Step = run.__dict__["step"]
    terms: Terms = run.__dict__["terms"]
    tensors = (*step.tensors, *terms.lifted.tensors)
    fresh = _Traced(step, before, terms, run.__dict__["caches"])
    fresh.__dict__["seeding"] = run.__dict__["seeding"]  # what looks for the line asks it
    with untouched(step.module, before, run.__dict__["caches"]), torch.enable_grad():
        run.__dict__["tracer"](fresh, tensors, run.__dict__["correction"])
