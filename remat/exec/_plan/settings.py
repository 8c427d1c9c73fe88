"""How steps are planned: budget, solver and the rest of what `remat.exec.wrap` was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from attrs import field, frozen

from remat.algorithms import Solver
from remat.algorithms._core.startup import importing
from remat.budget import Share
from remat.exec._capture.capturing import TRACERS
from remat.exec._copy.offloading import Offloading
from remat.exec._plan.progress import Listener
from remat.exec._run.inner import Compile
from remat.ir import Link
from remat.settings import FLAG, SECONDS, SEED, Setting, either, function, instance, one_of, optional, whole
from remat.units import Bytes

COSTS = ("measure", "estimate")
DIFFERENTIABLE = ("auto", "loss", "all")
INFEASIBLE = ("raise", "best")
Budget = Bytes | Share | None
_BUDGET = Setting(
    "what `parse_budget` reads, or None",
    lambda value: value is None or isinstance(value, Share) or whole(0).accepts(value),
)


@frozen(kw_only=True)
class Settings:
    """How steps are planned; what `remat.exec.wrap` was given.

    Attributes:
        budget: as read by `parse_budget`.
        step: what is called as `step(module, *args, **kwargs)` in place of the module's forward, or None.
        differentiable: see `capture`.
        tracer: see `capture`.
        loss_reserve: bytes that a loss outside the module may hold, or None for an audited estimate.
        solver: plans; None: `remat.algorithms.plan_first`.
        seconds: deadline of one planning [s], or None. Counted from when the graph is built, without imports and compilation.
        cost: "measure" or "estimate".
        seed: of the solver.
        on_infeasible: "raise", or "best": where no plan is found, take the plan of the smallest budget that has one.
        offloading: where copies go; None: there are none.
        compiler: compiles the functions of plans; None: eager's kernels run them.
        progress: where the stages are shown, as in `stages_of`.
    """

    SETTINGS_RULE: ClassVar[str] = "X-ARG"

    budget: Budget = field(validator=_BUDGET)
    step: Callable[..., Any] | None = field(
        default=None, validator=optional(function("lambda module, x: module(x).sum()"))
    )
    differentiable: str = field(default="auto", validator=one_of(*DIFFERENTIABLE))
    tracer: str = field(default="auto", validator=one_of(*TRACERS))
    loss_reserve: Bytes | None = field(default=None, validator=optional(whole(0, "bytes")))
    solver: Solver | None = field(default=None, validator=optional(instance(Solver, "remat.algorithms.quick")))
    seconds: float | None = field(default=None, validator=optional(SECONDS))
    cost: str = field(default="measure", validator=one_of(*COSTS))
    seed: int = field(default=0, validator=SEED)
    on_infeasible: str = field(default="raise", validator=one_of(*INFEASIBLE))
    progress: bool | Listener | None = field(default=None, validator=optional(either(FLAG, function("print"))))
    offloading: Offloading | None = field(default=None, validator=optional(instance(Offloading, "Offloading(True)")))
    compiler: Compile | None = field(
        default=None, validator=optional(function("remat.exec._torch.inductor.compile_graph"))
    )

    def planner(self) -> Solver:
        """The solver, the default one where none was named; it plans copies too where the problem has a link."""
        if self.solver is not None:
            return self.solver
        with importing():
            from remat.algorithms._search.auto import plan_first  # imports compiled kernels, so only when it is needed

        return plan_first

    def link(self, device: torch.device) -> Link | None:
        """The link that copies of a step go over; it may be measured for this. None: there are no copies."""
        return None if self.budget is None or self.offloading is None else self.offloading.link(device)

    @property
    def host_budget(self) -> Bytes | None:
        """Most bytes of copies on the host; None: no limit."""
        return None if self.offloading is None else self.offloading.host_budget

    def name(self) -> str:
        """The solver, as text for reports."""
        return "plan_first" if self.solver is None else repr(self.solver)
