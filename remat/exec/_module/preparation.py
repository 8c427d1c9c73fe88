"""Plans for many shapes before the training: which fit the budget, and below what those that do not never will."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from attrs import evolve, frozen
from torch import nn

from remat.errors import Infeasible
from remat.exec._module.entries import Bare, Dynamic, Ready
from remat.exec._module.plans import Plans
from remat.exec._module.samples import call_of, in_training, samples_of
from remat.exec._plan.progress import Listener, progress_bar
from remat.exec._torch.sharded import gathered
from remat.units import Bytes, Ns, format_bytes

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@frozen(kw_only=True)
class ShapeFit:
    """Whether a call of some shapes has a plan within the budget.

    Attributes:
        shapes: names and shapes of the tensors among the arguments.
        fits: whether it has.
        peak: most bytes it holds by prediction; None: it has no plan.
        time, store_all_time: predicted time of a step, and of one that keeps everything [ns].
        provenance: where the plan comes from, as in `Report.provenance`.
        smallest: where it does not fit: the smallest budget that a plan was found for [bytes].
        floor: where it does not fit: no plan exists below this many bytes.
        reason: why it runs without a plan, where it does.
    """

    shapes: Shapes
    fits: bool
    peak: Bytes | None = None
    time: Ns = 0
    store_all_time: Ns = 0
    provenance: str = ""
    smallest: Bytes | None = None
    floor: Bytes | None = None
    reason: str = ""

    def __str__(self) -> str:
        named = ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes) or "no tensors"
        if self.smallest is not None and self.floor is not None:
            return (
                f"{named}: does not fit; the smallest budget a plan was found for is {self.smallest} B, and none exists below "
                f"{self.floor} B"
            )
        if self.peak is None:
            return f"{named}: runs without a plan: {self.reason}"
        more = self.time / self.store_all_time - 1 if self.store_all_time else 0.0
        return f"{named}: {format_bytes(self.peak)}, {more:+.1%} time ({self.provenance})"


@frozen(kw_only=True)
class Preparation:
    """What was found for each of the prepared calls, in the order in which they were given; `str` gives a table.

    Attributes:
        budget: of all [bytes]; None: there is none.
        fits: one for each distinct combination of shapes.
    """

    budget: Bytes | None
    fits: tuple[ShapeFit, ...]

    @property
    def unfit(self) -> tuple[ShapeFit, ...]:
        """Those that have no plan within the budget."""
        return tuple(fit for fit in self.fits if not fit.fits)

    def __str__(self) -> str:
        return "\n".join(map(str, self.fits))

    def check(self) -> None:
        """Raise where a call has no plan within the budget.

        Raises:
            Infeasible: naming all of these, with the smallest budget that has a plan for each and the largest floor.
        """
        unfit = [fit for fit in self.unfit if fit.smallest is not None and fit.floor is not None]
        if not unfit or self.budget is None:
            return
        smallest = max(fit.smallest or 0 for fit in unfit)
        floor = max(fit.floor or 0 for fit in unfit)
        what = f"{len(unfit)} of {len(self.fits)} shapes have no plan within {self.budget} B. {'; '.join(map(str, unfit))}."
        fix = f"give at least {smallest} bytes, or leave these shapes out."
        raise Infeasible(what, budget=self.budget, smallest=smallest, floor=floor, fix=fix)


def plan_sample(state: Plans, module: nn.Module, sample: Any) -> Ready | Bare:
    """Plan a call as in training, without running it.

    Raises:
        Infeasible: it has no plan within the budget.
        Uncapturable: it cannot be captured, and may not run otherwise.
    """
    args, kwargs = call_of(sample)
    with in_training(module), torch.inference_mode(False), torch.enable_grad(), gathered(module):
        entry = state.planned_for(state.arguments(module, args, kwargs))
    if isinstance(entry, Bare):
        entry.tell()
    return entry


def prepare_all(
    state: Plans, module: nn.Module, samples: Iterable[Any], progress: bool | Callable[[ShapeFit], None] | None = None
) -> Preparation:
    """Plan every sample: the first one first where the budget is a share, whose size it decides; then the largest first.

    Args:
        state: of the wrapped module.
        module: the wrapped module.
        samples: each as `wrap` takes one.
        progress: a bar on the error stream: None: if that is a terminal; True: in any case; False: none; or a function that is
            called with each `ShapeFit`.
    """
    calls = [(call_of(sample), sample) for sample in samples_of(samples, "prepare")]
    settled = state.settings.budget is None or isinstance(state.settings.budget, int)
    order = sorted(range(len(calls)), key=lambda at: (settled or at > 0, -_elements(calls[at][0])))
    fits: dict[int, ShapeFit] = {}
    with _listened(progress, len(calls)) as hear, _quiet(state):
        for at in order:
            fits[at] = _fit(state, module, calls[at][1])
            hear(fits[at])
    state.bill.restart(time.monotonic())
    distinct = dict.fromkeys(fits[at] for at in range(len(calls)))
    budget = state.settings.budget
    return Preparation(budget=budget if isinstance(budget, int) else None, fits=tuple(distinct))


def _fit(state: Plans, module: nn.Module, sample: Any) -> ShapeFit:
    args, kwargs = call_of(sample)
    named = [(f"argument {at}", value) for at, value in enumerate(args)] + list(kwargs.items())
    shapes = tuple((name, tuple(value.shape)) for name, value in named if isinstance(value, torch.Tensor))
    try:
        entry = plan_sample(state, module, sample)
    except Infeasible as error:
        return ShapeFit(shapes=shapes, fits=False, smallest=error.smallest, floor=error.floor)
    if isinstance(entry, Bare):
        return ShapeFit(shapes=shapes, fits=isinstance(entry, Dynamic), reason=entry.reason)
    planned = entry.planned
    cost = planned.outcome.cost
    assert cost is not None
    return ShapeFit(
        shapes=shapes,
        fits=planned.asked is None,
        peak=cost.peak + planned.captured.overhead,
        time=cost.time,
        store_all_time=planned.graph.time,
        provenance=planned.provenance,
    )


def _elements(call: tuple[tuple[Any, ...], dict[str, Any]]) -> int:
    """How many numbers the tensors of a call have."""
    args, kwargs = call
    return sum(value.numel() for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))


@contextlib.contextmanager
def _quiet(state: Plans) -> Iterator[None]:
    """Without the lines of single plannings: there is one bar for all."""
    shown: bool | Listener | None = state.settings.progress
    state.settings = evolve(state.settings, progress=shown if callable(shown) else False)
    try:
        yield
    finally:
        state.settings = evolve(state.settings, progress=shown)


@contextlib.contextmanager
def _listened(progress: bool | Callable[[ShapeFit], None] | None, total: int) -> Iterator[Callable[[ShapeFit], None]]:
    """What is called with each shape that was planned."""
    if callable(progress):
        yield progress
        return
    with progress_bar("shapes", shown=progress) as bar:
        task = bar.add_task("", total=total)
        yield lambda fit: bar.update(task, description=f"{fit!s:.60}", advance=1)


__all__ = ["Preparation", "ShapeFit", "plan_sample", "prepare_all"]
