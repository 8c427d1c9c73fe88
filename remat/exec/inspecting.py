"""`wrapped.remat`: what a wrapped module has planned, to look at from where one is."""

from __future__ import annotations

import os
from typing import Any

from attrs import frozen
from torch import nn

from remat.exec._module.calls import Wrapped
from remat.exec._module.entries import Bare, Ready
from remat.exec._module.state import State, state_of
from remat.exec.plan_files import save_plan
from remat.exec.reporting import Report, report, report_of
from remat.ir import PlanFile
from remat.ir.json_document import write_whole


@frozen(eq=False)
class Inspection:
    """The plans of a wrapped module.

    Attributes:
        module: the wrapped module.
    """

    module: nn.Module

    @property
    def state(self) -> State:
        """Its settings and plans."""
        return state_of(self.module)

    def report(self) -> Report:
        """Of the plan that the last call ran; errors as of `remat.exec.report`."""
        return report(self.module)

    @property
    def plans(self) -> tuple[Report, ...]:
        """A report of each plan, one for each combination of shapes and of what decides branches."""
        return tuple(report_of(self.state, entry) for entry in self.state.entries if isinstance(entry, Ready))

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Why calls ran without a plan, each reason once, of the last call first; one that ran under DTR begins with "DTR: "."""
        reasons = [entry.ran for entry in self.state.entries if isinstance(entry, Bare)]
        if self.state.ran != "plan" and self.state.last is not None:
            reasons.insert(0, self.state.ran)
        return tuple(dict.fromkeys(reasons))

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw the memory of the last plan over time, by kind, with its budget (PNG, SVG, PDF); needs matplotlib."""
        from remat.viz.pictures import draw_memory
        from remat.viz.residency import residency

        last = self.report()
        limit = None if last.budget is None else last.budget - last.overhead
        memory = residency(last.graph, last.schedule, last.cost)
        draw_memory(memory, path, budget=limit, title=last.graph.name)

    def page(self, path: str | os.PathLike[str]) -> None:
        """Write the last plan as one interactive page of HTML: hover over a tensor to see whose it is and why it stays."""
        from remat.viz.page import print_page
        from remat.viz.residency import residency

        last = self.report()
        limit = None if last.budget is None else last.budget - last.overhead
        text = print_page(residency(last.graph, last.schedule, last.cost), budget=limit)
        write_whole(path, text.encode())

    def save(self, path: str | os.PathLike[str]) -> PlanFile:
        """Write the plans to a file; as `remat.exec.save_plan`."""
        return save_plan(self.module, path)

    def __str__(self) -> str:
        return str(self.report())


class _Accessor:
    """`module.remat`, where the module has nothing of that name itself."""

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        for table in ("_parameters", "_buffers", "_modules"):
            if "remat" in module.__dict__[table]:
                return module.__dict__[table]["remat"]
        return Inspection(module)


type.__setattr__(Wrapped, "remat", _Accessor())

__all__ = ["Inspection"]
