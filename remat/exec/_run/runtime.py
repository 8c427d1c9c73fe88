"""What runs in training: one `autograd.Function` around the two generated functions of a plan.

Parameters and inputs go through `save_for_backward`, so that autograd notices if they are changed in between; activations lie
in a list on the context that the backward empties as it goes: what `save_for_backward` holds lives until backward returns.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from attrs import define, evolve, frozen

from remat.errors import RematError
from remat.exec._program.kernels import no_autocast
from remat.exec._run.anomaly import NanWatch, has_nan, is_watched
from remat.exec._run.handing import Handing, handing_of, in_groups
from remat.exec._run.lowering import Lowered, Tensors
from remat.exec._run.partial import without
from remat.exec._torch.ambient import in_cuda_graph, is_batched
from remat.exec._torch.recording import profiled
from remat.exec._torch.wrappers import over, view_form


class StepError(RematError, RuntimeError):
    """A use of a wrapped step that it does not support; the message says which and what to do (rules `X-…`)."""


class Meter(Protocol):
    """Notified where the parts of a step begin and end."""

    def forward_begins(self) -> None:
        """Before the generated forward."""

    def forward_ended(self, *, part: bool) -> Any:
        """After it, before the caller has the outputs; `part`: the inputs come out of trained operations."""

    def backward_begins(self, token: Any) -> None:
        """When autograd arrives with gradients of the outputs; with what `forward_ended` returned for this step."""

    def backward_pauses(self) -> None:
        """Where autograd gets some of the gradients before the backward goes on."""

    def backward_resumes(self) -> None:
        """Where it goes on."""

    def backward_ended(self) -> None:
        """After the generated backward, before autograd has the last gradients."""


@frozen(kw_only=True, eq=False)
class Call:
    """One call of a planned step.

    Attributes:
        lowered: the generated functions.
        requires_grad: for each tensor output, whether the bare module's output requires a gradient.
        differentiable: positions of outputs through which gradients may come back.
        meter: notified where the parts begin and end.
        name: module and line of its forward, for messages.
        gate: called before the backward hands on its gradients; what it raises, the backward raises.
    """

    lowered: Lowered
    requires_grad: tuple[bool, ...]
    differentiable: tuple[int, ...]
    meter: Meter | None = None
    name: str = "the step"
    gate: Callable[[], None] | None = None


def run_step(call: Call, primals: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Run the forward of a planned step; the outputs carry its backward.

    Args:
        call: what to run.
        primals: parameters, buffers and inputs, in the order the functions expect.

    Raises:
        StepError: X-GRAPH, where a CUDA graph records the step and could not repeat it.
    """
    if in_cuda_graph():
        call = _recorded(call)
    leaves = [primals[at] for at in call.lowered.grad_inputs]
    handing = handing_of(call.lowered) if is_awaited(leaves) else None
    if handing is None:
        outputs: tuple[torch.Tensor, ...] = Step.apply(call, primals, None, *leaves)  # type: ignore[no-untyped-call]
    else:
        first, *later = handing.groups
        run, token = Run(handing), None
        for group in reversed(later):
            token = Later.apply(call, run, token, *(leaves[at] for at in group))  # type: ignore[no-untyped-call]
        outputs = Step.apply(call, primals, run, *(leaves[at] for at in first), token)  # type: ignore[no-untyped-call]
    _guard(call, outputs)
    return outputs


def _recorded(call: Call) -> Call:
    """The call as a CUDA graph records it: unmetered, since a meter waits for the device."""
    lowered, why = call.lowered, ""
    if lowered.copier is not None:
        why, fix = "the host takes part in copies", "plan without `offload`"
    elif lowered.sets_generator and lowered.eager is not None:
        why, fix = "the random state is data of compiled code", "leave `inner` out"
    elif lowered.sets_generator:
        why, fix = (
            "draws run again, with the random state set back",
            "give a budget under which dropout is not recomputed",
        )
    if why:
        what = f"{call.name}: a CUDA graph records the step, and could not repeat it: {why}."
        raise StepError("X-GRAPH", what, fix=f"{fix}, or run the step without a graph.")
    return evolve(call, meter=None)


def is_awaited(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether somebody waits for single gradients: other processes, or hooks that run when one was accumulated."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return True
    return any(leaf._post_accumulate_grad_hooks for leaf in leaves)


@define(eq=False)
class Run:
    """A step whose gradients are handed on in groups.

    Attributes:
        handing: the groups, and the backward that gives them.
        rest: gives the gradients of the groups that are left; None: the backward has not begun.
        missing: whether outputs got no gradient.
        left: number of these groups.
    """

    handing: Handing
    rest: Iterator[list[torch.Tensor | None]] | None = None
    missing: bool = False
    left: int = 0

    def begin(self, lowered: Lowered, parts: tuple[Any, ...], name: str) -> None:
        """Begin the backward, or run all of it where it is not the plan's own or somebody watches its lines."""
        self.left = len(self.handing.groups)
        if handing_of(lowered) is self.handing and not is_watched() and not profiled():
            self.rest = self.handing.backward(*parts)
        else:
            self.rest = in_groups(_grads(lowered, parts, name), self.handing.groups)

    def next(self, call: Call) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the next group."""
        assert self.rest is not None
        with no_autocast(call.lowered.device):
            handed = next(self.rest)
        grads = tuple(handed)
        handed.clear()
        self.left -= 1
        if not self.left:
            self.rest = iter(())
        return grads


class Step(torch.autograd.Function):
    """The planned step as autograd sees it: tensors that need gradients in, module outputs out."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, primals: tuple[torch.Tensor, ...], run: Run | None, *leaves: torch.Tensor
    ) -> tuple[Any, ...]:
        """Run the generated forward and hold what the plan keeps.

        Args:
            ctx: of autograd.
            call: what to run.
            primals: parameters, buffers and inputs.
            run: where gradients are handed on in groups; the leaves are then those of the first, and the token of the others.
            leaves: what gets gradients.
        """
        lowered = call.lowered.scoped if profiled() else call.lowered
        if call.meter is not None:
            call.meter.forward_begins()
        with no_autocast(lowered.device):
            outputs, read_outputs, activations = lowered.forward(primals)
        ctx.save_for_backward(*(primals[at] for at in lowered.backward_primals), *read_outputs)
        ctx.call, ctx.run = call, run
        ctx.loose = tuple(primals[at] for at in lowered.loose_primals)
        ctx.activations = activations
        ctx.set_materialize_grads(False)
        outputs = _separated(_no_views(outputs, lowered.lone_views), call.requires_grad)
        plain = [output for output, wanted in zip(outputs, call.requires_grad, strict=True) if not wanted]
        ctx.mark_non_differentiable(*plain)
        ctx.token = None
        if call.meter is not None:
            ctx.token = call.meter.forward_ended(part=any(leaf.grad_fn is not None for leaf in leaves))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Run the generated backward once."""
        call: Call = ctx.call
        _check_backward(ctx, call, gradients)
        whole = call.lowered
        if whole.eager is not None and is_watched():  # compiled code does not show where nan comes from
            whole = whole.eager
        missing = whole.tangents.missing(gradients)
        lowered = without(whole, missing)
        lowered = lowered.scoped if profiled() else lowered
        if call.meter is not None:
            call.meter.backward_begins(ctx.token)
        activations, ctx.activations = ctx.activations, None
        parts = (ctx.loose, _unwritten(ctx, call), lowered.tangents.arrived(gradients), activations)
        run: Run | None = ctx.run
        if run is None:
            grads = _grads(lowered, parts, call.name)
            return (None, None, None, *_handed(ctx, call, grads, missing=bool(missing), last=True))
        run.missing = bool(missing)
        run.begin(lowered, parts, call.name)
        del parts, activations
        grads = _handed(ctx, call, run.next(call), missing=run.missing, last=False)
        return (None, None, None, *grads, _stand_in())


class Later(torch.autograd.Function):
    """A node that goes on with a backward which another one has begun; its output is a token without elements."""

    @staticmethod
    def forward(ctx: Any, call: Call, run: Run, _token: torch.Tensor | None, *_leaves: torch.Tensor) -> torch.Tensor:
        """Only the place in the graph counts."""
        ctx.call, ctx.run, ctx.last = call, run, _token is None
        ctx.set_materialize_grads(False)
        return _stand_in()

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Run the generated backward to the next gradients."""
        call, run = ctx.call, ctx.run
        if call.meter is not None:
            call.meter.backward_resumes()
        grads = _handed(ctx, call, run.next(call), missing=run.missing, last=ctx.last)
        return (None, None, None if ctx.last else _stand_in(), *grads)


def _stand_in() -> torch.Tensor:
    """What stands for a node of a chain, and for its gradient: on one device, whatever the default device is then."""
    return torch.empty(0, device="cpu")


def _grads(lowered: Lowered, parts: tuple[Any, ...], name: str) -> tuple[torch.Tensor | None, ...]:
    """All gradients, by the whole backward."""
    with no_autocast(lowered.device):
        return _watched_backward(lowered, name, parts) if is_watched() else lowered.backward(*parts)


def _handed(
    ctx: Any, call: Call, grads: tuple[torch.Tensor | None, ...], *, missing: bool, last: bool
) -> tuple[torch.Tensor | None, ...]:
    """Gradients that autograd is about to get."""
    if missing:
        _check_hooks(ctx, call, grads)
    if call.meter is not None:
        if last:
            call.meter.backward_ended()
        else:
            call.meter.backward_pauses()
    if call.gate is not None:
        call.gate()
    return grads


def check_single(name: str, gradients: Iterable[torch.Tensor | None]) -> None:
    """Check that each gradient of an output is one.

    Raises:
        StepError: X-TRANSFORM, where it stands for many.
    """
    if any(gradient is not None and is_batched(gradient) for gradient in gradients):
        what = f"{name}: many gradients of an output arrive at once (is_grads_batched=True, vectorize=True, or torch.vmap)."
        raise StepError(
            "X-TRANSFORM", what, fix="call the module and the backward for each, or use the bare module there."
        )


def _guard(call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
    """Hooks of an output from which the step computes others would miss the gradient that comes from these.

    The first hook of such an output looks for further ones, before autograd calls them.
    """
    for position in call.lowered.inner_outputs:
        output = outputs[position]
        if call.requires_grad[position] and not output._backward_hooks:  # one tensor may be several outputs
            output.register_hook(partial(_alone, call, position, weakref.ref(output)))


def _alone(call: Call, position: int, reference: weakref.ref[torch.Tensor], _gradient: object) -> None:
    """See `_guard`.

    Raises:
        StepError: X-OUTPUT.
    """
    output = reference()
    if output is not None and (output.retains_grad or len(_hooks_of(output)) > 1):
        what = (
            f"{call.name}: output {position} has a hook or retains its gradient, and other outputs of the step are "
            "computed from it: the gradient that comes from these is not visible outside."
        )
        fix = "compute what follows from it outside the wrapped module, or register the hook in the forward."
        raise StepError("X-OUTPUT", what, fix=fix)


def _hooks_of(tensor: torch.Tensor) -> list[Any]:
    """The hooks of a tensor for its gradient, but for those of this library that only hand it on."""
    hooks = (tensor._backward_hooks or {}).values()
    return [hook for hook in hooks if not getattr(hook, "keeps_the_gradient", False)]


def _check_hooks(ctx: Any, call: Call, grads: tuple[torch.Tensor | None, ...]) -> None:
    """Autograd calls a leaf's hooks with None where the step has no gradient for it; unplanned, it would not call them.

    Raises:
        StepError: X-OUTPUT.
    """
    leaves = ctx.next_functions if len(ctx.next_functions) == len(grads) else _without_token(ctx)
    for (node, _), grad in zip(leaves, grads, strict=True):
        leaf = getattr(node, "variable", None)
        if grad is None and leaf is not None and (_hooks_of(leaf) or leaf._post_accumulate_grad_hooks):
            what = (
                f"{call.name}: outputs of the step got no gradient, so a parameter of shape {tuple(leaf.shape)} gets none, "
                "and its hooks would be called all the same."
            )
            raise StepError("X-OUTPUT", what, fix="remove the hooks, or have the loss planned too: wrap with loss=.")


def _without_token(ctx: Any) -> tuple[Any, ...]:
    """The nodes after one of a chain, without the next one of the chain."""
    return tuple(edge for edge in ctx.next_functions if not isinstance(edge[0], Later._backward_cls))


def _watched_backward(lowered: Lowered, name: str, parts: tuple[Any, ...]) -> tuple[torch.Tensor | None, ...]:
    """The generated backward under anomaly detection.

    Raises:
        StepError: X-NAN, when a gradient is nan; it names the first operation that made nan, and its module.
    """
    with NanWatch(lowered.backward, lowered.source) as watch:
        grads = lowered.backward(*parts)
    if has_nan(grads):
        first = "it came with the gradient of an output" if watch.first is None else f"first made by {watch.first}"
        what = f"{name}: the backward returned nan, {first}."
        raise StepError("X-NAN", what, fix="look at what this operation is given.")
    return grads


def _no_views(outputs: tuple[torch.Tensor, ...], lone: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """The same tensors; those that `lone` names are no views: autograd lets nobody write to a view that a function returns."""
    return tuple(
        over(output, view_form(output)) if at in lone and output._is_view() else output
        for at, output in enumerate(outputs)
    )


def _separated(outputs: tuple[torch.Tensor, ...], requires_grad: tuple[bool, ...]) -> tuple[torch.Tensor, ...]:
    """One tensor that is returned with a gradient and, detached, without one becomes two that share their memory."""
    able = {id(tensor) for tensor, wanted in zip(outputs, requires_grad, strict=True) if wanted}
    return tuple(
        tensor.detach() if not wanted and id(tensor) in able else tensor
        for tensor, wanted in zip(outputs, requires_grad, strict=True)
    )


def _unwritten(ctx: Any, call: Call) -> Tensors:
    """Inputs, parameters, buffers and outputs that the backward reads.

    Raises:
        StepError: X-WRITE, where autograd sees that one was written since the forward.
    """
    try:
        return ctx.saved_tensors  # type: ignore[no-any-return]
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        shape = re.search(r"\[\S+ (\[[\d, ]*\])\]", str(error))
        what = (
            f"{call.name}: an input, parameter, buffer or output of the step{f' of shape {shape[1]}' if shape else ''} has been "
            "modified by an inplace operation between forward and backward, and the plan computes from it in the backward."
        )
        raise StepError("X-WRITE", what, fix="write to it after the backward, or give the module a clone.") from error


def _check_backward(ctx: Any, call: Call, gradients: tuple[torch.Tensor | None, ...]) -> None:
    if torch.is_grad_enabled():
        what = f"{call.name}: backward was called with create_graph=True, and a planned step has no second derivative."
        raise StepError("X-DOUBLE", what, fix="use the bare module where gradients of gradients are needed.")
    if ctx.activations is None:
        what = f"{call.name}: backward ran a second time through one forward, and its activations are gone."
        raise StepError("X-TWICE", what, fix="call the module again, or sum the losses and call backward once.")
    check_single(call.name, gradients)
    for position, gradient in enumerate(gradients):
        if gradient is not None and position not in call.differentiable:
            what = (
                f"{call.name}: a gradient arrived through output {position}, and the plan was made for the loss alone."
            )
            raise StepError("X-OUTPUT", what, fix='wrap with differentiable="all".')
