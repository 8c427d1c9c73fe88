"""`dtr`: a module that trains within a memory budget without a graph, by dynamic tensor rematerialization.

Kirisame et al., ICLR 2021: operations run as they come; where memory is short, what is least worth keeping is evicted, and what
is asked for and gone is computed again. For models whose steps differ from call to call; a step that can be captured is
planned better by `wrap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import define, evolve
from torch import nn

from remat.algorithms._dtr.online import LIMIT
from remat.algorithms._dtr.scores import A_SCORE, Score, score_named
from remat.budget import Share, parse_budget
from remat.errors import BadArgument
from remat.exec._dtr.keeping_all import peak_of_everything
from remat.exec._dtr.runtime import Runtime
from remat.exec._dtr.stepping import DtrReport, PartReport, device_of, report_of, run_forward
from remat.exec._module.calls import Wrapped, bare_forward, captured_step, is_bare
from remat.exec._module.plans import Plans
from remat.exec._torch.ambient import is_recorded
from remat.exec._torch.compiled import running_eagerly
from remat.exec._torch.exchange import EXCHANGE
from remat.exec._torch.unwinding import unwound
from remat.exec._trace import structure
from remat.exec.wrapping import wrapped_with
from remat.settings import SEED, instance, number, takes
from remat.units import Bytes, parse_bytes


@define(eq=False)
class DtrState:
    """Settings and runtime of a module under DTR; a copy has a runtime of its own."""

    budget: Bytes | Share
    score: Score
    limit: float
    loss: Callable[..., Any] | None
    loss_reserve: Bytes | None
    seed: int
    runtime: Runtime | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> DtrState:
        cls, settings = self.__reduce__()
        state: DtrState = cls(*settings)
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        return DtrState, (self.budget, self.score, self.limit, self.loss, self.loss_reserve, self.seed)

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the module."""
        if is_bare():
            return bare_forward(module, *args, **kwargs)
        step = self.loss if module.training else None

        def forward() -> Any:
            with EXCHANGE.reading:
                return captured_step(step, module, *args, **kwargs)

        if not torch.is_grad_enabled() or is_recorded():
            return forward()
        with EXCHANGE.planning:
            runtime = self._runtime(module, (args, kwargs), forward)

        def turn() -> Any:
            with running_eagerly(), runtime.turns:
                return run_forward(runtime, forward, module, (args, kwargs), self.loss_reserve)

        return unwound(turn, runtime.was_interrupted)

    def _runtime(self, module: nn.Module, arguments: Any, forward: Callable[[], Any]) -> Runtime:
        if self.runtime is None:
            leaves, _ = structure.flatten(arguments, opaque=lambda value: isinstance(value, nn.Module))
            tensors = [*module.parameters(), *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))]
            budget, device = self._bytes(module, arguments, forward), device_of(tensors)
            self.runtime = Runtime(budget, self.score, device, limit=self.limit, seed=self.seed)
        self.runtime = self.runtime.renewed()
        return self.runtime

    def _bytes(self, module: nn.Module, arguments: Any, forward: Callable[[], Any]) -> Bytes:
        """The budget; a share is of what this call holds with everything kept, and the same bytes from then on."""
        if isinstance(self.budget, Share):
            watched = (self.loss,) if self.loss is not None else ()
            with EXCHANGE.alone:  # it writes buffers
                peak = peak_of_everything(module, forward, arguments, watched=watched, reserve=self.loss_reserve)
            self.budget = self.budget.bytes(peak)
        return self.budget


def dtr(
    model: nn.Module,
    budget: int | str,
    score: str | Score = "h_dtr_eq",
    *,
    loss: Callable[..., Any] | None = None,
    loss_reserve: int | str | None = None,
    limit: float = LIMIT,
    seed: int = 0,
) -> nn.Module:
    """A module that computes what `model` computes, bit for bit, and whose training step holds at most `budget`, without a plan.

    Args:
        model: any module; the result shares its parameters, buffers and submodules.
        budget: most bytes the step may hold above what lived before it: an int, `"6GiB"`, or `"60%"` of what the first call holds
            with everything kept, for which its step runs once more.
        score: what is evicted first, or its name; see `remat.algorithms.dynamic`.
        loss: computes the loss, `loss(module, *args, **kwargs)`, where the module does not return it; the module is then
            called with the same arguments and, while it trains, returns what `loss` returns.
        loss_reserve: bytes that a loss outside may hold; by default twice the outputs.
        limit: cost of a step with recomputation over its cost without, above which it is given up as thrashing.
        seed: of the score `random`.

    Raises:
        BadArgument: U-SIZE, X-ARG, P-NAME, for a wrong argument. In a step: Infeasible, where it does not fit; StepError,
            where it cannot be run here.
    """
    instance(nn.Module, "nn.Linear(3, 4)").check(model, "dtr: model", rule="X-ARG")
    number(1).check(limit, "dtr: limit", rule="X-ARG")
    SEED.check(seed, "dtr: seed", rule="X-ARG")
    if isinstance(model, Wrapped):
        raise BadArgument("X-ARG", "the module is wrapped already.", fix="give the bare module.")
    size = parse_budget(budget)
    score = score_named(score) if isinstance(score, str) else score
    A_SCORE.check(score, "dtr: score", rule="X-ARG")
    reserve = None if loss_reserve is None else parse_bytes(loss_reserve)
    with wrapped_with(model, DtrState(size, score, float(limit), loss, reserve, seed)) as wrapped:
        return wrapped


@takes(rule="X-REPORT", model=instance(nn.Module, "nn.Linear(3, 4)"))
def dtr_report(model: nn.Module) -> DtrReport:
    """What the last step of a module under DTR did.

    Raises:
        BadArgument: X-REPORT, where no step of the module ran under DTR.
    """
    state = model.__dict__.get("_remat")
    runtime = state.runtime if isinstance(state, (Plans, DtrState)) else None
    if runtime is None or not isinstance(state, (Plans, DtrState)):
        raise BadArgument("X-REPORT", "no step of the module has run under DTR.", fix="run a training step.")
    if isinstance(state, DtrState):
        return report_of(runtime)
    whole, division = report_of(runtime, state.reason_for_dtr), state.division
    if division is None:
        return whole
    refused = tuple(division.refused.items())
    return evolve(whole, parts=division.reports(), rest=division.note(), refused=refused)


__all__ = ["DtrReport", "DtrState", "PartReport", "dtr", "dtr_report"]
