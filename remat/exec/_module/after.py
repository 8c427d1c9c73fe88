"""What follows the run of a plan: late reads and what undoes a wrong branch, effects on Python, and what users are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from remat._warn import RematWarning, warn
from remat.errors import Uncapturable
from remat.exec._capture.capturing import Captured
from remat.exec._module.calls import attributes
from remat.exec._module.live import Watch
from remat.exec._plan.costing import Outside, is_loss_inside
from remat.exec._plan.planned import Planned
from remat.exec._run.lowering import Lowered
from remat.exec._run.meter import StepMeter
from remat.exec._torch import rng
from remat.exec._torch.ambient import hooks_of_all_modules
from remat.exec._trace import structure
from remat.exec._trace.effects import Effect
from remat.exec._trace.tape import Scalar
from remat.units import format_bytes

MANY_PLANS = 8
"""Number of plans for one combination of shapes from which a warning says what they depend on."""


def answered(captured: Captured, answers: tuple[Scalar, ...]) -> bool:
    """Whether a plan was traced with these values of its first late reads."""
    return tuple(read.value for read in captured.late[: len(answers)]) == answers


def wrong_answers(captured: Captured, outputs: tuple[torch.Tensor, ...]) -> tuple[Scalar, ...] | None:
    """The late reads up to the first that is not as in the trace; None: all are."""
    values: list[Scalar] = []
    for read, output in zip(captured.late, outputs[len(captured.places) :], strict=False):
        values.append(output.item())
        if values[-1] != read.value:
            return tuple(values)
    return None


@contextmanager
def undone_by(captured: Captured, lowered: Lowered, primals: tuple[torch.Tensor, ...]) -> Iterator[Callable[[], None]]:
    """Gives what puts back buffers and generators after a run that took the wrong branch."""
    if not captured.late:
        yield lambda: None
        return
    device = captured.program.device
    states = {place: rng.save(place) for place in {torch.device("cpu"), device}}
    written = [(primals[at], primals[at].detach().clone()) for at in lowered.written_primals]

    def undo() -> None:
        with torch.no_grad():
            for tensor, value in written:
                tensor.copy_(value)
        for place, state in states.items():
            rng.restore(place, state)

    yield undo


def do_effects(captured: Captured, watch: Watch, tensors: tuple[torch.Tensor, ...]) -> None:
    """Change in Python what the bare forward would have changed."""
    rest = iter(tensors)
    changed = False
    for effect in captured.effects:
        leaves = [next(rest) if leaf is None else leaf.value for leaf in effect.leaves]
        changed = _do(watch, effect, structure.unflatten(leaves, effect.layout)) or changed
    if changed:
        watch.renew()


def _do(watch: Watch, effect: Effect, values: list[Any]) -> bool:
    container = watch.container(effect.path)
    if container is None:
        raise Uncapturable(
            "X-STATE", f"{effect.path}, which the forward changes, is gone.", fix="wrap the module again."
        )
    keys, old = container.read()
    if effect.keys is None:
        if len(old) == len(values) and all(map(lambda first, second: first is second, old, values)):
            return False
        watch.write(container, (), tuple(values))
        return True
    new = dict(zip(keys, old, strict=True))
    before = dict(new)
    new.update(zip(effect.keys, values, strict=True))
    for key in effect.removed:
        new.pop(key, None)
    if new.keys() == before.keys() and all(new[key] is before[key] for key in new):
        return False
    watch.write(container, tuple(new), tuple(new.values()))
    return True


def learnt(planned: Planned, meter: StepMeter) -> Outside | None:
    """What steps have shown to be held outside the plan, where it assumed less: by a loss outside, by copies of gradients."""
    meter.settle()
    if is_loss_inside(planned.captured) or planned.lowered is None:
        return None
    gradients = planned.lowered.tangents
    audit = None if planned.audited else meter.audit
    if audit is None:
        retained = planned.retained + max(0, gradients.excess - planned.excess)
        reserve = max(0, planned.reserve + planned.retained - retained)
    else:
        retained = max(0, audit.left + gradients.copied - gradients.size)
        reserve = max(0, audit.peak - gradients.size - retained)
    if retained <= planned.retained and reserve + retained <= planned.reserve + planned.retained:
        return None
    measured = planned.audited or audit is not None
    outside = Outside(reserve, retained, measured=measured, excess=gradients.excess)
    warn(_more(planned, outside, audited=audit is not None), RematWarning)
    return outside


def _more(planned: Planned, outside: Outside, *, audited: bool) -> str:
    """What is held outside the plan, and what to do about it."""
    both = outside.reserve + outside.retained
    of_copies = (
        f"gradients of outputs came in another memory layout than traced, and take {format_bytes(outside.excess)} more"
    )
    of_loss = (
        f"the loss outside the module held {format_bytes(both)} at its peak and {format_bytes(outside.retained)} during the "
        f"backward, and the plan had {format_bytes(planned.reserve)} for it"
    )
    causes = [*([of_loss] if audited else []), *([of_copies] if outside.excess else [])]
    fix = "Give loss=" if outside.excess else f"Give loss=, or loss_reserve={both},"
    return f"{'; '.join(causes)}; the step is planned again. {fix} to have the first step within the budget too."


def warn_of_hooks(module: nn.Module) -> None:
    """Say that hooks of submodules ran once, for the capture."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooked = [path for path, inner in module.named_modules() if path and any(attributes(inner)[name] for name in names)]
    if hooks_of_all_modules():
        hooked.insert(0, "all of them")
    if hooked:
        what = (
            f"hooks of submodules ({', '.join(hooked[:3])}{', …' if len(hooked) > 3 else ''}) ran once, while the "
            "step was captured: what they do to tensors is in the plan, what else they do will not happen again."
        )
        warn(what, RematWarning)


def warn_of_many(plans: list[Captured]) -> None:
    """Say what many plans for calls of one form depend on, once there are `MANY_PLANS`.

    Args:
        plans: the steps, that captured last first.
    """
    if len(plans) != MANY_PLANS:
        return
    reads = (*plans[0].guards.reads, *plans[0].late)
    if changed := changed_state(plans[1].tokens[0], plans[0].tokens[0]):
        cause, fix = f"{changed} differs", "Make it a tensor (a 0-dim buffer or argument), or change it seldom."
    elif reads:
        cause = f"what Python reads of tensors differs from call to call: {reads[-1].place}"
        fix = "Keep that value a tensor, or pass it as a plain argument."
    else:
        return
    warn(f"{MANY_PLANS} plans were made for calls of one form, because {cause}. {fix}", RematWarning)


def changed_state(first: tuple[Any, ...], second: tuple[Any, ...]) -> str:
    """The path of something in which two tokens of a state differ (see `Snapshot.token`); empty: nothing that both have."""
    contents = {path: items for path, _, *items in first}
    differ = ((path, items) for path, _, *items in second if contents.get(path, items) != items)
    path, items = next(differ, ("", []))
    entries = (_key(new) for new, old in zip(items, contents.get(path, ()), strict=False) if new != old)
    return ".".join(filter(None, (path.removesuffix(".__dict__"), next(entries, ""))))


def _key(entry: Any) -> str:
    """The name in an entry of a token, of an attribute or of a text in a dict; empty: it has none."""
    key = entry[0] if isinstance(entry, tuple) and entry else ""
    key = key[1] if isinstance(key, tuple) and key[0] == "str" else key
    return key if isinstance(key, str) else ""
