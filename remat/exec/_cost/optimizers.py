"""What an optimizer takes: its states, and what a step of it needs for itself, found by running it on tensors without memory.

No table of optimizers: the optimizer's own code makes its states and temporaries on the meta device, where they are counted.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from attrs import frozen
from torch import nn
from torch.optim import Optimizer

from remat.errors import BadArgument
from remat.exec._torch import torch_private
from remat.exec._torch.live_bytes import LiveBytes, meta_like_accelerator
from remat.units import Bytes

Maker = Callable[[Iterable[nn.Parameter]], Optimizer]
"""Makes an optimizer of parameters: a class such as `torch.optim.AdamW`, or a function."""

_WAY_OUT = (
    'give e.g. "adamw", "sgd(momentum=0.9)", "package.module:Class", a class, a function of the parameters, or None.'
)


@frozen(kw_only=True)
class OptimizerMemory:
    """What an optimizer holds and needs, beside parameters and gradients.

    Attributes:
        name: of its class.
        states: what it keeps from step to step, on the device of the parameters [bytes].
        scratch: the most that one step of it takes for itself [bytes].
        by_parameter: states of each parameter, by the parameter's path [bytes].
        guesses: how many values it read of tensors in a step; each was taken as 1 here.
    """

    name: str
    states: Bytes
    scratch: Bytes
    by_parameter: Mapping[str, Bytes]
    guesses: int = 0


NO_OPTIMIZER = OptimizerMemory(name="none", states=0, scratch=0, by_parameter={})


def optimizer_memory(
    optimizer: str | Maker | Optimizer | None,
    parameters: Mapping[str, torch.Tensor],
    *,
    trained: Iterable[str],
    granule: Bytes | None = None,
) -> OptimizerMemory:
    """Run two steps of an optimizer on tensors without memory, and count.

    Args:
        optimizer: its name in `torch.optim`, in any case and with settings as in `"sgd(momentum=0.9)"`; `"module:Class"`; what
            makes one of parameters; an optimizer of these parameters, which is not touched; or None: nothing.
        parameters: by path, with or without memory.
        trained: paths of those that get a gradient.
        granule: blocks of an accelerator's allocator [bytes], where optimizers work on many tensors at a time and keep counts on
            the host; None: the CPU.

    Raises:
        BadArgument: X-OPTIMIZER, when there is none of that name, or it does not run on tensors without memory.
    """
    if optimizer is None or optimizer == "none":
        return NO_OPTIMIZER
    twins = {path: _without_memory(parameter) for path, parameter in parameters.items()}
    for path in trained:
        twins[path].grad = torch.empty_like(twins[path])
    live = LiveBytes(functools.partial(_charge, granule=granule))
    as_there = contextlib.nullcontext() if granule is None else meta_like_accelerator()
    try:
        with as_there, live:
            twin = _optimizer_of(optimizer, twins, parameters)
            _step_first(twin, optimizer)
            for leaf in _states(twin, twins.values()):
                live.count(leaf.untyped_storage())
            states = live.live
            live.peak, live.guesses = states, 0
            twin.step()
    except BadArgument:
        raise
    except Exception as error:  # of code that is not ours
        first = (str(error).strip().splitlines() or [""])[0]
        what = f"the optimizer {_name(optimizer)} does not run on tensors without memory: {type(error).__name__}: {first:.200}"
        fix = "give a function that makes one that takes these parameters and steps without a closure, or None."
        raise BadArgument("X-OPTIMIZER", what, fix=fix) from error
    return OptimizerMemory(
        name=type(twin).__name__,
        states=states,
        scratch=live.peak - states,
        by_parameter={
            path: sum(live.charge(state.untyped_storage()) for state in _states(twin, [parameter]))
            for path, parameter in twins.items()
        },
        guesses=live.guesses,
    )


def states_now(optimizer: Optimizer) -> Bytes:
    """Bytes of the states that an optimizer has already, on the devices of its parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    devices = {parameter.device for parameter in parameters}
    states = _states(optimizer, parameters)
    return sum(state.untyped_storage().nbytes() for state in states if state.device in devices)


def _without_memory(parameter: torch.Tensor) -> nn.Parameter:
    empty = torch.empty_strided(tuple(parameter.shape), parameter.stride(), dtype=parameter.dtype, device="meta")
    return nn.Parameter(empty, requires_grad=parameter.requires_grad)


def _charge(storage: torch.UntypedStorage, granule: Bytes | None) -> Bytes:
    """What a storage takes on the device; what an optimizer keeps on the host takes nothing of an accelerator."""
    if granule is None:
        return storage.nbytes()
    return -(-storage.nbytes() // granule) * granule if storage.device.type == "meta" else 0


def _states(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """The tensors that an optimizer keeps for parameters, besides these and their gradients."""
    tensors: dict[int, torch.Tensor] = {}
    for parameter in parameters:
        leaves, _ = torch_private.flatten(dict(optimizer.state.get(parameter, {})))
        of_the_step = [parameter] if parameter.grad is None else [parameter, parameter.grad]
        outside = set(map(torch_private.storage_key, of_the_step))
        states = {torch_private.storage_key(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
        tensors |= {key: state for key, state in states.items() if key not in outside}
    return list(tensors.values())


def _optimizer_of(
    optimizer: str | Maker | Optimizer, twins: Mapping[str, nn.Parameter], parameters: Mapping[str, torch.Tensor]
) -> Optimizer:
    """The optimizer of tensors without memory."""
    if isinstance(optimizer, Optimizer):
        return _twin(optimizer, {id(parameters[path]): twin for path, twin in twins.items()})
    make = find_optimizer(optimizer) if isinstance(optimizer, str) else optimizer
    wanted = [twin for twin in twins.values() if twin.requires_grad]
    result = make(wanted) if callable(make) else make
    if not isinstance(result, Optimizer):
        what = f"{_name(optimizer)} makes a {type(result).__name__}, not a torch.optim.Optimizer."
        raise BadArgument("X-OPTIMIZER", what, fix=_WAY_OUT)
    return result


def _twin(optimizer: Optimizer, twins: Mapping[int, nn.Parameter]) -> Optimizer:
    """An optimizer with the same settings, of tensors without memory, without states."""
    twin: Optimizer = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin.state = defaultdict(dict)
    strangers = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if id(parameter) not in twins
    ]
    if strangers:
        what = f"the optimizer has {len(strangers)} parameters that are not of the module."
        raise BadArgument("X-OPTIMIZER", what, fix="give the optimizer of this module's parameters.")
    twin.param_groups = [
        {**group, "params": [twins[id(parameter)] for parameter in group["params"]]} for group in optimizer.param_groups
    ]
    return twin


def _step_first(twin: Optimizer, optimizer: object) -> None:
    """The first step, with the states of the optimizer where it makes them when it is made (`Adagrad` of torch 2.11)."""
    try:
        twin.step()
        return
    except Exception:  # of code that is not ours
        if not isinstance(optimizer, Optimizer) or not optimizer.state:
            raise
    twin.state = defaultdict(dict)
    for ours, theirs in zip(twin.param_groups, optimizer.param_groups, strict=True):
        for parameter, original in zip(ours["params"], theirs["params"], strict=True):
            state = optimizer.state.get(original, {})
            twin.state[parameter] = {name: _state_without_memory(value) for name, value in state.items()}
    twin.step()


def _state_without_memory(state: Any) -> Any:
    """A state as it is, or a tensor like it; numbers on the host keep their values, which optimizers read."""
    if not isinstance(state, torch.Tensor):
        return state
    return state.clone() if state.dim() == 0 and state.device.type == "cpu" else torch.empty_like(state, device="meta")


def find_optimizer(text: str) -> Maker:
    """What makes the optimizer that a text names: `adamw`, `SGD(momentum=0.9)`, `package.module:Class(beta=0.5)`.

    Raises:
        BadArgument: X-OPTIMIZER, when the text names none.
    """
    name, bracket, settings = text.strip().partition("(")
    keywords = _keywords(text, "(" + settings) if bracket else {}
    module, colon, attribute = name.strip().partition(":")
    target: Any = None
    if colon:
        with contextlib.suppress(ImportError, AttributeError):
            target = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    else:
        classes = {key.lower(): value for key, value in vars(torch.optim).items() if _is_optimizer(value)}
        target = classes.get(name.strip().lower())
    if not callable(target):
        raise BadArgument("X-OPTIMIZER", f"{text!r} names no optimizer.", fix=_WAY_OUT)
    return functools.partial(target, **keywords) if keywords else target


def _is_optimizer(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer


def _keywords(text: str, call: str) -> dict[str, Any]:
    """The settings in `(momentum=0.9, nesterov=True)`, each a literal."""
    try:
        parsed = ast.parse(f"f{call}", mode="eval").body
        if isinstance(parsed, ast.Call) and not parsed.args and all(keyword.arg for keyword in parsed.keywords):
            return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in parsed.keywords}
    except (SyntaxError, ValueError):
        pass
    raise BadArgument("X-OPTIMIZER", f"{text!r} is not an optimizer with settings.", fix=_WAY_OUT)


def _name(optimizer: object) -> str:
    if isinstance(optimizer, str):
        return optimizer
    return getattr(optimizer, "__name__", type(optimizer).__name__)


__all__ = ["NO_OPTIMIZER", "Maker", "OptimizerMemory", "find_optimizer", "optimizer_memory", "states_now"]
