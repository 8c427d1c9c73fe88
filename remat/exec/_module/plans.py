"""The plans of a wrapped module: which one a call runs, and what the call then does."""

from __future__ import annotations

from typing import Any

import torch
from attrs import define
from torch import nn

from remat.algorithms._dtr.online import LIMIT
from remat.algorithms._dtr.scores import h_dtr_eq
from remat.errors import RematError
from remat.exec._dtr.runtime import Runtime
from remat.exec._dtr.stepping import device_of, run_forward
from remat.exec._module import making
from remat.exec._module.after import answered, do_effects, learnt, undone_by, warn_of_many, wrong_answers
from remat.exec._module.binding import extra_inputs
from remat.exec._module.calls import Arguments, bare_forward, captured_step, chain_tensors, is_bare
from remat.exec._module.division import Division
from remat.exec._module.entries import Bare, Dynamic, Ready
from remat.exec._module.state import State
from remat.exec._run import outside as outside_loss
from remat.exec._run.runtime import run_step
from remat.exec._torch.ambient import is_recorded
from remat.exec._torch.compiled import running_eagerly
from remat.exec._torch.exchange import EXCHANGE
from remat.exec._torch.unwinding import unwound
from remat.exec._torch.wrappers import outside_modes
from remat.exec._trace import structure
from remat.exec._trace.tape import Scalar


@define(eq=False)
class Plans(State):
    """The state of a wrapped module, with what its calls do.

    Attributes:
        division: of the calls that run under DTR, into parts with plans and the rest.
    """

    division: Division | None = None

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the wrapped module."""
        if is_bare():
            return bare_forward(module, *args, **kwargs)
        if is_recorded():
            self.ran = "the call is recorded (torch.jit.trace, torch.export)"
            return self.bare(module, args, kwargs)
        outside_loss.end(seen=True)
        if not torch.is_grad_enabled():
            self.ran = "no gradients are recorded (torch.no_grad)"
            return self.bare(module, args, kwargs)
        self.ranks.check()
        with EXCHANGE.reading if self.ranks.shared else EXCHANGE.planning:
            call = self.arguments(module, args, kwargs)
            ready = None if self.ranks.shared else self.planned_for(call)
        if ready is None:
            # processes that agree on plans wait for each other: a thread of theirs must not wait for that too
            ready = self.planned_for(call)
        self.last = ready
        if isinstance(ready, Bare) or ready.call is None:
            return self.unplanned(call, ready)
        self.ran = "plan"
        return self.run(call, ready)

    def bare(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the bare module, or the loss function around it."""
        with EXCHANGE.reading:
            return captured_step(self.step_of(module), module, *args, **kwargs)

    def unplanned(self, call: Arguments, entry: Ready | Bare) -> Any:
        """Run the bare module as it is, or under DTR."""
        self.last, self.ran = entry, entry.ran if isinstance(entry, Bare) else "no budget was given"
        if isinstance(entry, Ready) or entry.has_run:
            return self._unplanned(call, entry)
        try:
            out = self._unplanned(call, entry)
        except RematError:
            entry.tell()
            raise
        except Exception:
            self.plans.forget(entry)  # the module itself refuses this call, which says nothing of others
            raise
        entry.has_run = True
        entry.tell()
        return out

    def _unplanned(self, call: Arguments, entry: Ready | Bare) -> Any:
        if isinstance(entry, Dynamic):
            return self.dynamic(call)
        return self.bare(call.module, call.args, call.kwargs)

    def dynamic(self, call: Arguments) -> Any:
        """Run the bare module under DTR."""
        budget = self.settings.budget
        assert isinstance(budget, int)
        with EXCHANGE.planning:
            if self.runtime is None:
                device = device_of(tensor for tensors in call.tensors.values() for tensor in tensors)
                self.runtime = Runtime(budget, h_dtr_eq, device, limit=LIMIT, seed=self.settings.seed)
            self.runtime = self.runtime.renewed()
            if self.division is None or self.division.module is not call.module:
                self.division = Division(call.module, self.settings)
        runtime, division = self.runtime, self.division

        def forward() -> Any:
            return self.bare(call.module, call.args, call.kwargs)

        def turn() -> Any:
            with running_eagerly(), runtime.turns, division.running(runtime):
                return run_forward(runtime, forward, call.module, (call.args, call.kwargs), self.settings.loss_reserve)

        return unwound(turn, runtime.was_interrupted)

    def planned_for(self, call: Arguments, answers: tuple[Scalar, ...] = ()) -> Ready | Bare:
        """The plan for a call; it is made if there is none yet.

        Args:
            call: the call.
            answers: what the first late reads gave, where a run has shown them already.
        """
        for entry in self.plans.of(call.key):
            if isinstance(entry, Ready):
                extra = (
                    extra_inputs(entry, call, self.watched(call.module)) if answered(entry.captured, answers) else None
                )
                if extra is None:
                    continue
                call.extra = extra
                if (outside := learnt(entry.planned, entry.meter)) is not None:
                    with self.ranks.planning(), outside_modes():
                        again = making.planned_again(self, call, entry, outside)
                    self.plans.forget(entry)
                    return self.used(call, again)
            return self.used(call, entry)
        tensors = chain_tensors(call)
        if not any(tensor.requires_grad for tensor in tensors):
            entry = Bare("nothing requires a gradient")
        else:
            # what a mode of the caller changes, counts or writes down is the step alone, which runs under it
            with self.ranks.planning(), outside_modes():
                entry = making.captured_and_planned(self, call, answers)
        self.used(call, entry)
        warn_of_many([ready.captured for ready in self.plans.of(call.key) if isinstance(ready, Ready)])
        return entry

    def run(self, call: Arguments, ready: Ready) -> Any:
        """Run a plan; where a late read shows that the call takes another branch, run the plan of that branch."""
        while True:
            captured = ready.captured
            assert ready.call is not None
            if ready.replaced_places:
                call.renew_buffers(ready.replaced_places)
            primals = call.at(ready.places, call.extra)
            with undone_by(captured, ready.call.lowered, primals) as undo:
                with EXCHANGE.reading:
                    outputs = run_step(ready.call, primals)
                answers = wrong_answers(captured, outputs)
                if answers is not None:
                    del outputs
                    undo()
            if answers is None:
                return self.finished(call, ready, outputs)
            other = self.planned_for(call, answers)
            if isinstance(other, Bare) or other.call is None:
                return self.unplanned(call, other)
            ready = self.last = other

    def finished(self, call: Arguments, ready: Ready, outputs: tuple[torch.Tensor, ...]) -> Any:
        """What the bare module would return, with its effects on Python done."""
        captured = ready.captured
        if captured.effects:
            do_effects(captured, ready.watch, outputs[len(captured.places) + len(captured.late) :])
        rest = (
            tensor if order is None else tensor.permute(order)
            for tensor, order in zip(outputs, captured.orders, strict=True)
        )
        leaves = [
            next(rest) if leaf is None and i in captured.tensor_leaves else leaf
            for i, leaf in enumerate(captured.out_leaves)
        ]
        if ready.same_places:
            for at, place in ready.same_places:
                (leaves[at],) = call.at((place,), call.extra)
        return structure.unflatten(leaves, captured.layout)
