"""`wrap`: a module that trains within a memory budget and is otherwise the module it was.

The wrapped module is of a class derived from the module's own, shares its parameters, buffers and submodules, and plans a step
for each new combination of shapes, types, `requires_grad`, autocast, and whatever else its forward lets decide (`plans.py`). It
is another object, but where something that the module reaches refers to the module: then it is the module itself.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from remat._warn import RematWarning, warn
from remat.algorithms import Solver
from remat.algorithms._core.startup import importing
from remat.budget import parse_budget
from remat.errors import BadArgument, Uncapturable
from remat.exec._copy.offloading import WHERE, Offloading
from remat.exec._cost.optimizers import Maker
from remat.exec._module.calls import ADDED, INSTANCE_FORWARD, Wrapped, make_opaque, planned_call, set_forward, take_as
from remat.exec._module.plans import Plans
from remat.exec._module.preparation import plan_sample, prepare_all
from remat.exec._module.ranks import Ranks
from remat.exec._module.samples import call_of, in_training, samples_of
from remat.exec._module.saved import saved_plans
from remat.exec._module.state import MOST_PLANS
from remat.exec._plan.automatic import AUTO, auto_budget
from remat.exec._plan.progress import Listener
from remat.exec._plan.settings import Settings
from remat.exec._torch.compiled import inside_compiled
from remat.exec._torch.groups import WORLD, is_group
from remat.exec._torch.sharded import share_state
from remat.exec._trace.diagnosis import refusal
from remat.exec._trace.walk import place_of_itself
from remat.ir import Link, PlanFile
from remat.settings import FLAG, Setting, either, instance, one_of, optional, whole
from remat.units import parse_bytes

logger = logging.getLogger(__name__)

UNCAPTURABLE = ("raise", "bare", "dtr")
STALE = ("raise", "plan")
GROUP = optional(Setting('"world", a process group', is_group))


def wrap(
    model: nn.Module,
    sample: Any = None,
    budget: int | str | None = None,
    *,
    shapes: Iterable[Any] | None = None,
    loss: Callable[..., Any] | None = None,
    loss_reserve: int | str | None = None,
    solver: Solver | None = None,
    seconds: float | None = None,
    cost: str = "measure",
    differentiable: str = "auto",
    tracer: str = "auto",
    on_uncapturable: str | None = None,
    on_infeasible: str = "raise",
    rehearse: bool = True,
    family: bool = True,
    most_plans: int = MOST_PLANS,
    plan: str | os.PathLike[str] | PlanFile | None = None,
    on_stale: str = "raise",
    group: Any = WORLD,
    progress: bool | Listener | None = None,
    optimizer: str | Maker | Optimizer | None = None,
    offload: bool | str | Link = False,
    host_budget: int | str | None = None,
    seed: int = 0,
) -> nn.Module:
    """A module that computes what `model` computes, bit for bit, and whose training step holds at most `budget`.

    Args:
        model: any module; the result shares its parameters, buffers and submodules, and it can still be called bare.
        sample: a call to plan for: a tensor, a tuple of arguments, or a mapping of keyword arguments. Its values decide which
            branches are planned where the forward asks for values of tensors. None: the first training call is planned for.
        budget: most bytes the step may hold above what lived before it (parameters, inputs, buffers, gradients already
            there): an int, `"6GiB"`, `"40%"` of what the first step planned holds if it keeps everything, `"auto"`: what the
            device has free now, less what `optimizer` will take, or None: plan nothing, report only.
        shapes: further calls to plan for now, each as `sample`: what the training will bring, of other batch sizes or lengths.
            Where some have no plan within the budget, all of these are named in one error.
        loss: computes the loss from the module and the sample, `loss(module, *args, **kwargs)`, where the module does not
            return it; the wrapped module is then called with the same arguments and, while it trains, returns what `loss`
            returns.
        loss_reserve: bytes that a loss outside the wrapped module may hold besides its gradients; by default twice the outputs
            are assumed, audited at the first step, and the step is planned again if that was too little.
        solver: plans; by default `remat.algorithms.plan_first`.
        seconds: deadline of each planning.
        cost: "measure" times and workspaces on this machine, once per kind of operation, or "estimate" them from shapes
            (quick and repeatable; workspaces are then taken as nothing, so the budget may be passed by them).
        differentiable: "loss": gradients come through the one 0-dim output; "all": through all outputs; "auto": through the
            loss where there is exactly one 0-dim output that requires a gradient, else through all.
        tracer: "log" writes down what one forward and backward under fake tensors call; "joint" is torch's joint export, which
            gives the same program and takes about three times as long; "auto": the log, and the export for steps that the log
            does not stand for (the report says why).
        on_uncapturable: where the step cannot be captured: "dtr" (the default where there is a budget): warn and run it under
            dynamic rematerialization, within the budget (see `dtr`); submodules that can be captured run by plans of their own
            from the third step on, where these fit. A budget that is a share is then one of what the sample's step holds with
            everything kept, which is run for it; "raise"; or "bare": warn and run the bare module, without a budget (the
            default where there is none).
        on_infeasible: where no plan within the budget is found: "raise", or "best": warn and run within the smallest budget
            that a plan was found for.
        rehearse: run each new plan twice on the sample before the first real step, to measure its peak and time for the
            report; buffers, gradients and generators are as before. Plans from other sizes are not rehearsed.
        family: where a step of the same structure was planned before (another batch size or length), plan from the plans made so
            far, in tenths of a second; False: plan every shape on its own. With a `solver` of yours every shape is.
        most_plans: how many plans are kept, one for each combination of shapes (and of values that decide branches); the least
            recently used is forgotten first and made anew when it is needed.
        plan: plans that `save_plan` wrote, as a path or as `load_plan` read them: a step that they hold a plan of is not planned
            again; its times are measured again only on another machine. Without a budget, the one they were made for.
        on_stale: where the first step is none that `plan` is for, or does not fit the budget here: "raise", or "plan": warn and
            plan it. Later steps of other shapes are planned as ever.
        group: processes that train the module together and agree on its plans at their first training call: "world", all of
            `torch.distributed` where it is initialized; a process group; or None: this process plans alone.
        progress: who sees the stages of planning, the best plan so far and its gap: None: a terminal on the error stream; True:
            the error stream in any case; False: nobody; or a function that is called with what is said. The log always does.
        optimizer: for `budget="auto"`: yours, or as for `remat.estimate`; "none": none, or one whose states are there already.
        offload: whether data may also be copied out of the device and back: True: to host memory, at the speed measured here;
            "disk": to files (for modules on the CPU); or a `remat.ir.Link`: to host memory, planned for that speed.
        host_budget: with `offload`: most bytes of host buffers (or files), of the module and its deep copies together; None: no
            limit.
        seed: of the solver.

    Raises:
        Infeasible: no plan within the budget was found; it says the smallest that was found, and below what there is none.
        Uncapturable: the step cannot be captured, and may not or cannot run under DTR; it names the module, the line and what to
            change.
        StalePlan: `plan` is not for this step, this torch or this budget; it says what differs.
        MalformedFile: `plan` is damaged.
        GroupError: the processes of the group differ, one refused, or one did not come.
        BadArgument: an argument is not one of its values.
    """
    one_of(*STALE).check(on_stale, "wrap: on_stale", rule="X-ARG")
    saved = None if plan is None else saved_plans(plan, on_stale)
    shapes = None if shapes is None else samples_of(shapes, "wrap: shapes")
    if budget is None and saved is not None:
        budget = saved.file.budget
    offloading = _offloading(offload, host_budget, budget)
    on_uncapturable = on_uncapturable or ("bare" if budget is None else "dtr")
    one_of(*UNCAPTURABLE).check(on_uncapturable, "wrap: on_uncapturable", rule="X-ARG")
    if on_uncapturable == "dtr" and budget is None:
        raise BadArgument("X-ARG", 'wrap: on_uncapturable="dtr" without a budget.', fix="give a budget in bytes.")
    instance(nn.Module, "nn.Linear(3, 4)").check(model, "wrap: model", rule="X-ARG")
    FLAG.check(rehearse, "wrap: rehearse", rule="X-ARG")
    FLAG.check(family, "wrap: family", rule="X-ARG")
    whole(1).check(most_plans, "wrap: most_plans", rule="X-ARG")
    GROUP.check(group, "wrap: group", rule="X-ARG")
    model = _uncompiled(model)
    if optimizer is not None and budget != AUTO:
        raise BadArgument("X-ARG", 'wrap: optimizer goes with budget="auto" alone.', fix="leave it out.")
    if isinstance(model, Wrapped):
        raise BadArgument("X-ARG", "the module is wrapped already.", fix="wrap the bare module.")
    try:
        _check_module(model)
    except Uncapturable as error:
        raise refusal(error, model) from None
    if budget == AUTO:
        budget = auto_budget(model, optimizer)
    reserve = None if loss_reserve is None else parse_bytes(loss_reserve)
    settings = Settings(
        budget=None if budget is None else parse_budget(budget), loss_reserve=reserve, step=loss, solver=solver, seconds=seconds,
        cost=cost, differentiable=differentiable, tracer=tracer, seed=seed, on_infeasible=on_infeasible, progress=progress,
        offloading=offloading,
    )  # fmt: skip
    if budget is not None and solver is None and (saved is None or on_stale == "plan"):
        _compile_meanwhile()
    if sample is None:  # a capture does the same
        make_opaque()
    state = Plans(
        settings=settings, on_uncapturable=on_uncapturable, rehearse=rehearse, most_plans=most_plans, saved=saved,
        family=family, ranks=Ranks(None if budget is None else group),
    )  # fmt: skip
    with wrapped_with(model, state) as wrapped:
        if sample is not None:
            plan_sample(state, wrapped, sample)
        if shapes is not None:
            prepare_all(state, wrapped, shapes).check()
    return wrapped


def _offloading(offload: bool | str | Link, host_budget: int | str | None, budget: object) -> Offloading | None:
    """Where copies go; None: there are none.

    Raises:
        BadArgument: X-ARG, also where there is no budget to plan for.
    """
    either(FLAG, WHERE).check(offload, "wrap: offload", rule="X-ARG")
    if offload is False:
        if host_budget is not None:
            raise BadArgument("X-ARG", "wrap: host_budget goes with offload alone.", fix="give offload=True.")
        return None
    if budget is None:
        raise BadArgument("X-ARG", "wrap: offload without a budget.", fix="give a budget: nothing is planned without.")
    return Offloading(offload, None if host_budget is None else parse_bytes(host_budget))


def _compile_meanwhile() -> None:
    """On an empty cache, have other processes compile the planner's kernels while this one captures and measures."""
    with importing():
        from remat.algorithms._search.kernel_prefetch import prefetch

        prefetch()  # may bring in the compiler


def _uncompiled(model: nn.Module) -> nn.Module:
    """The module inside a compiled one, with a word: its plan runs in place of the compiled code."""
    inner = inside_compiled(model)
    if inner is None and model._compiled_call_impl is None:
        return model
    what = (
        f"the {type(inner or model).__name__} is compiled, and a plan is of eager operations: it is planned in place of the "
        'compiled code. To have both, compile the bare module with backend="remat", options={"budget": …}.'
    )
    warn(what, RematWarning)
    return model if inner is None else inner


def _check_module(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise Uncapturable("X-MODULE", "a ScriptModule has no Python forward to trace.", fix="wrap the eager module.")
    for path, inner in model.named_modules():
        if isinstance(inner, torch.jit.ScriptModule):
            what = f"{path} is a ScriptModule, which has no Python forward to trace."
            raise Uncapturable("X-MODULE", what, fix="put the eager module in its place.")
        if isinstance(inner, nn.modules.lazy.LazyModuleMixin) and inner.has_uninitialized_params():  # type: ignore[misc]
            what = f"{path or 'the module'} ({type(inner).__name__}) is lazy: its parameters have no shapes yet."
            raise Uncapturable("X-LAZY", what, fix="call the module once (under torch.no_grad()) before you wrap it.")


@contextlib.contextmanager
def wrapped_with(model: nn.Module, state: Any) -> Iterator[nn.Module]:
    """The module with a state: another object, which shares everything with `model`; or `model` itself where it is referred to.

    What a hook, a child or a closure that refers to the module reads and writes of it would not be the other object's. Where the
    block fails, the module is what it was.
    """
    where = place_of_itself(model)
    if where is None:
        yield with_state(model, state)
        return
    logger.info("%s is wrapped in place: %s refers to it", type(model).__name__, where)
    become_wrapped(model, state)
    try:
        yield model
    except BaseException:
        become_bare(model)
        raise


def become_wrapped(model: nn.Module, state: Any) -> None:
    """Make the module itself a wrapped one, with a state."""
    forward = model.__dict__.pop("forward", None)
    model.__dict__.pop("_compiled_call_impl", None)
    model.__class__ = _class_of(type(model))  # type: ignore[arg-type]  # as in `_rebuild`
    model.__dict__["_remat"] = state
    if forward is not None:  # set on the instance, by a stack: it is what will be planned
        model.forward = forward


def become_bare(model: nn.Module) -> None:
    """Make a module that was wrapped in place what it was."""
    del model.__dict__["_remat"]
    forward = model.__dict__.pop(INSTANCE_FORWARD, None)
    model.__dict__.pop("forward", None)
    model.__class__ = type(model).__mro__[2]
    if forward is not None:
        model.__dict__["forward"] = forward


def with_state(model: nn.Module, state: Any) -> nn.Module:
    """A module of the wrapped class that shares everything with `model`."""
    wrapped = _rebuild(type(model))
    wrapped.__dict__.update(model.__dict__)
    _share_slots(model, wrapped)
    wrapped.__dict__["_remat"] = state
    wrapped.__dict__.pop("_compiled_call_impl", None)  # of `module.compile()`: it would be called past the plan
    share_state(model, wrapped)
    instance = wrapped.__dict__.pop("forward", None)
    if instance is not None:
        bound = isinstance(instance, types.MethodType) and instance.__self__ is model
        set_forward(wrapped, types.MethodType(instance.__func__, wrapped) if bound else instance)
    return wrapped


def _share_slots(model: nn.Module, wrapped: nn.Module) -> None:
    """Give the wrapped module what the module keeps in slots of its class."""
    for kind in type(model).__mro__:
        for slot in vars(kind).values():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # it is empty
                    slot.__set__(wrapped, slot.__get__(model))


# -- the wrapped class -----------------------------------------------------------------------------------------------------


def _reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
    base: Any = type(self).__mro__[2]
    if _says_how_it_is_copied(base):
        reduced = base.__reduce_ex__(self, protocol)
        if isinstance(reduced, tuple) and len(reduced) == 2:
            return _rewrapped, (self.__dict__["_remat"], *reduced)
    added = {name: self.__dict__[name] for name in ADDED if name in self.__dict__}
    state = self.__getstate__()  # the module's class may say what of it is copied
    if INSTANCE_FORWARD in added and isinstance(state, dict):
        state = {name: value for name, value in state.items() if name != "forward"}  # `__setstate__` makes it anew
    return _rebuild, (type(self).__mro__[2],), (added, state)


def _says_how_it_is_copied(kind: type) -> bool:
    """Whether a class that is not torch's says by which call its objects are made again."""
    kinds = [base for base in kind.__mro__[:-1] if not base.__module__.startswith("torch.")]
    return any(name in vars(base) for base in kinds for name in ("__reduce__", "__reduce_ex__"))


def _rewrapped(state: Any, rebuild: Callable[..., nn.Module], args: tuple[Any, ...]) -> nn.Module:
    """A copy as the class of the module makes it, wrapped with a copy of the state."""
    return with_state(rebuild(*args), state)


@functools.cache
def _class_of(base: type[nn.Module]) -> type[nn.Module]:
    """The wrapped class of a module class."""

    @functools.wraps(base.forward)
    def forward(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return planned_call(self, args, kwargs)

    if isinstance(inspect.getattr_static(base, "forward"), (staticmethod, classmethod)):
        take_as(forward, base.forward)

    @functools.wraps(base.__init__)
    def __init__(self: nn.Module, /, *args: Any, **kwargs: Any) -> None:
        # a module that is made by a call of the class (`wrapped[:3]`, `type(wrapped)(config)`) is a new one: it is bare
        if type(self) is kind and "_remat" not in self.__dict__:
            self.__class__ = base
        base.__init__(self, *args, **kwargs)

    # The name stays: libraries write it into checkpoints and look it up there.
    names = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": _reduce,
        "__init__": __init__,
        "forward": forward,
    }
    kind = type(base.__name__, (Wrapped, base), names)
    return kind


def _rebuild(base: type[nn.Module]) -> nn.Module:
    kind = _class_of(base)  # type: ignore[arg-type]  # mypy takes the hash of its objects for that of the class
    return object.__new__(kind)  # a sharded class makes instances of the class it was


__all__ = ["RematWarning", "become_bare", "become_wrapped", "call_of", "in_training", "wrap", "wrapped_with"]
