"""One budget for a model that is planned block by block, as `fully_shard` per block asks for: `apply_budget`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch import nn

from remat.algorithms._core.startup import importing
from remat.budget import Share, parse_budget
from remat.errors import BadArgument, Infeasible
from remat.exec._capture.capturing import capture
from remat.exec._cost.audit import measure_step
from remat.exec._cost.cost import OpCost
from remat.exec._module.ranks import Ranks
from remat.exec._module.saved import file_of, plan_to_save
from remat.exec._plan.costing import cost_step
from remat.exec._plan.dividing import BlockOption, divide, option_of, peak_of, undominated
from remat.exec._plan.planning import plan_captured
from remat.exec._plan.settings import Settings
from remat.exec._torch import rng
from remat.exec._torch.groups import WORLD
from remat.exec._torch.sharded import is_sharded
from remat.exec._trace import structure
from remat.exec.in_place import unwrap, wrap_in_place
from remat.exec.wrapping import call_of, in_training
from remat.ir import PlanFile, parse_plans, print_plans
from remat.settings import MANY, instance, takes
from remat.units import Bytes, format_bytes, parse_bytes

POINTS = 6
"""Budgets that each block is planned for."""
TRIES = 4
"""Divisions that are measured, before the smallest one is taken."""


@frozen(kw_only=True)
class Division:
    """How a budget was divided.

    Attributes:
        budget: of the step [bytes]. peak: measured on the sample [bytes].
        budgets: of the blocks, in their order [bytes].
        classes: number of blocks that differ.
    """

    budget: Bytes
    peak: Bytes
    budgets: tuple[Bytes, ...]
    classes: int


@takes(rule="X-ARG", model=instance(nn.Module, "nn.Linear(3, 4)"), blocks=MANY)
def apply_budget(
    model: nn.Module,
    sample: Any,
    budget: int | str,
    *,
    blocks: Iterable[nn.Module],
    loss: Callable[..., Any] | None = None,
    reserve: int | str = 0,
    group: Any = WORLD,
    **settings: Any,
) -> Division:
    """Divide a budget among blocks of a model and wrap each in place, so that `fully_shard` may take each block afterwards.

    Each kind of block is planned for a few budgets; a dynamic program takes the fastest plans that fit together; steps on the
    sample are measured until one is within the budget. The model and the blocks stay the objects they are. Weights, gradients,
    buffers and generators are as before.

    Args:
        model: the whole model, not sharded yet, on its device.
        sample: a call of it, as of `wrap`; the largest of the training, whose shares later calls of each block get too.
        budget: most bytes that a step of the model may hold above what lived before it: an int, `"6GiB"`, or `"40%"` of what
            it holds if the blocks keep everything.
        blocks: parts of the model that run one after another, each once in a step.
        loss: `loss(model, *args, **kwargs)`, where the model does not return its loss.
        reserve: bytes of the budget to leave for what sharding will hold: gathered parameters of two blocks and gradients of
            one, say.
        group: as of `wrap`; all its processes call this, and take the division of its first.
        settings: `solver`, `seconds`, `cost` and `seed` of `wrap`.

    Raises:
        Infeasible: the smallest plans of all blocks are measured above the budget; it says by how much.
        BadArgument: a block is sharded or wrapped, or did not run just once. Uncapturable, GroupError: as of `wrap`.
    """
    unknown = settings.keys() - {"solver", "seconds", "cost", "seed"}
    if unknown:
        what = f"apply_budget: {', '.join(sorted(unknown))} is no setting of it."
        raise BadArgument("X-ARG", what, fix="give solver, seconds, cost or seed.")
    divider = _Divider(
        model=model, blocks=tuple(blocks), sample=sample, loss=loss,
        settings=Settings(budget=None, loss_reserve=0, **settings), keywords=settings,
    )  # fmt: skip
    divider.check()
    ranks = Ranks(group)
    with ranks.planning():
        division = divider.division(budget, parse_bytes(reserve))
        files = divider.files()
        if ranks.shared:
            texts = ranks.adopt(
                [str(number) for number in (division.budget, division.peak)] + [print_plans(f) for f in files]
            )
            files = [parse_plans(text) for text in texts[2:]]
            budgets = tuple(file.budget for file in files)
            division = evolve(division, budget=int(texts[0]), peak=int(texts[1]), budgets=budgets)
    divider.wrap(files, group)
    return division


@define
class _Divider:
    """The work of `apply_budget`."""

    model: nn.Module
    blocks: tuple[nn.Module, ...]
    sample: Any
    loss: Callable[..., Any] | None
    settings: Settings
    keywords: dict[str, Any]
    kinds: dict[int, Hashable] = field(factory=dict)
    options: dict[Hashable, tuple[BlockOption, ...]] = field(factory=dict)
    costs: dict[str, OpCost] = field(factory=dict)
    chosen: tuple[BlockOption, ...] = ()

    def check(self) -> None:
        if not self.blocks:
            raise BadArgument("X-ARG", "apply_budget: there are no blocks.", fix="give e.g. blocks=model.layers.")
        for block in (self.model, *self.blocks):
            if is_sharded(block) or "_remat" in block.__dict__:
                what = f"apply_budget: a {type(block).__name__} is wrapped or sharded already."
                raise BadArgument("X-ARG", what, fix="call it before `wrap` and `fully_shard`.")

    # -- the division --------------------------------------------------------------------------------------------------

    def division(self, budget: int | str, reserve: Bytes) -> Division:
        """Plan each kind of block, divide, and measure."""
        self.plan_blocks()
        options = [self.options[self.kinds[at]] for at in range(len(self.blocks))]
        smallest = [min(of_block, key=lambda option: option.peak) for of_block in options]
        least = self.measured(smallest)
        outside = max(0, least - peak_of(smallest))
        asked = parse_budget(budget)
        if isinstance(asked, Share):
            asked = asked.bytes(
                outside + peak_of([max(of_block, key=lambda option: option.saved) for of_block in options])
            )
        allowed = asked - reserve
        if least > allowed:
            what = (
                f"no division of {format_bytes(asked)} ({asked} B) was found: with the smallest plans of all blocks the step "
                f"holds {format_bytes(least)} ({least} B), and {reserve} B are reserved."
            )
            raise Infeasible(
                what, budget=asked, smallest=least + reserve, floor=0, fix=f"give at least {least + reserve} bytes."
            )
        for _ in range(TRIES):
            chosen = divide(options, allowed - outside)
            if chosen is None:
                break
            peak = self.measured(chosen)
            if peak <= allowed:
                return self.result(asked, peak, chosen)
            outside += peak - allowed
        return self.result(asked, least, smallest)

    def result(self, asked: Bytes, peak: Bytes, chosen: Sequence[BlockOption]) -> Division:
        self.chosen = tuple(chosen)
        budgets = tuple(option.peak for option in chosen)
        return Division(budget=asked, peak=peak, budgets=budgets, classes=len(self.options))

    def plan_blocks(self) -> None:
        """Run the model once without gradients, and plan each kind of block when it is called."""
        numbers = {id(block): at for at, block in enumerate(self.blocks)}
        args, kwargs = call_of(self.sample)
        given = {id(leaf) for leaf in structure.flatten((args, kwargs))[0]}

        def called(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            at = numbers[id(block)]
            if at in self.kinds:
                what = f"apply_budget: block {at}, a {type(block).__name__}, runs more than once in a step."
                raise BadArgument("X-ARG", what, fix="leave it out.")
            leaves, layout = structure.flatten((args, kwargs))
            leaves = [_as_in_training(leaf, id(leaf) in given) for leaf in leaves]
            kind = _kind(block, leaves, layout)
            self.kinds[at] = kind
            if kind not in self.options:
                with torch.enable_grad():
                    self.options[kind] = self.planned(block, *structure.unflatten(leaves, layout))

        hooks = [block.register_forward_pre_hook(called, with_kwargs=True) for block in self.blocks]
        try:
            with self.as_before(), torch.no_grad():
                self.step()
        finally:
            for hook in hooks:
                hook.remove()
        if len(self.kinds) < len(self.blocks) or list(self.kinds) != sorted(self.kinds):
            what = "apply_budget: the blocks do not run once each, in the order in which they are given."
            raise BadArgument("X-ARG", what, fix="give those that the sample calls, in their order.")

    def planned(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BlockOption, ...]:
        """Options of a block, from its lowest budget to one that keeps everything."""
        with importing():
            from remat.algorithms._curves.budget_sweep import quick_lowest_budget  # imports compiled kernels
        captured = capture(block, args, kwargs)
        costed = cost_step(captured, self.settings, self.costs)
        low = quick_lowest_budget(costed.graph, self.settings.solver, seed=self.settings.seed).point.budget
        low, high = low + captured.overhead, costed.peak + captured.overhead
        options = []
        for point in range(POINTS):
            settings = evolve(self.settings, budget=low + (high - low) * point // (POINTS - 1))
            with suppress(Infeasible):
                options.append(option_of(plan_captured(captured, settings, known_costs=self.costs)))
        return undominated(options)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self) -> Any:
        """The forward of a step on the sample, with its loss."""
        args, kwargs = call_of(self.sample)
        out = self.model(*args, **kwargs) if self.loss is None else self.loss(self.model, *args, **kwargs)
        out = getattr(out, "loss", out)
        if not isinstance(out, torch.Tensor) or out.ndim:
            what = "apply_budget: the model does not return a loss of one number."
            raise BadArgument("X-ARG", what, fix="give loss=lambda model, *args: …")
        return out

    def measured(self, chosen: Sequence[BlockOption]) -> Bytes:
        """The peak of a whole step with these plans, the second of two."""
        self.chosen = tuple(chosen)
        device = next(self.model.parameters()).device
        try:
            self.wrap(self.files(), None)
            with self.as_before():
                self.step().backward()
                self.model.zero_grad(set_to_none=True)
                return measure_step(lambda: self.step().backward(), device=device).peak
        finally:
            for block in self.blocks:
                if "_remat" in block.__dict__:
                    unwrap(block)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """In training, without gradients; all is put back at the end."""
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.model.buffers()]
        grads = [(param, param.grad) for param in self.model.parameters()]
        self.model.zero_grad(set_to_none=True)
        try:
            with rng.kept(), in_training(self.model), torch.inference_mode(False), torch.enable_grad():
                yield
        finally:
            for param, grad in grads:
                param.grad = grad
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)

    # -- plans ---------------------------------------------------------------------------------------------------------

    def files(self) -> list[PlanFile]:
        """The plan of each block as a file."""
        files = []
        for option in self.chosen:
            planned = option.planned
            assert planned is not None
            settings = evolve(self.settings, budget=option.peak)
            plan = plan_to_save(evolve(planned, budget=option.peak), settings)
            costs = self.costs if self.settings.cost == "measure" else None
            files.append(file_of([plan], planned.captured.program, settings, costs))
        return files

    def wrap(self, files: Sequence[PlanFile], group: Any) -> None:
        """Wrap each block in place, with its plan."""
        for block, file in zip(self.blocks, files, strict=True):
            wrap_in_place(
                block,
                file.budget,
                plan=file,
                on_stale="plan",
                loss_reserve=0,
                group=group,
                rehearse=False,
                **self.keywords,
            )


def _kind(block: nn.Module, leaves: list[Any], layout: Any) -> Hashable:
    """What blocks with the same options share; a plan is compared with the captured step again before it runs."""
    state = (*block.parameters(), *block.buffers(), *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)))
    forms = tuple((tuple(t.shape), t.stride(), t.dtype, str(t.device), t.requires_grad) for t in state)
    return type(block), repr(block), repr(layout), forms


def _as_in_training(leaf: Any, given: bool) -> Any:
    """An argument as it arrives in training: what the model has computed carries gradients."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    computed = not given and (leaf.is_floating_point() or leaf.is_complex())
    return leaf.detach().requires_grad_(computed or leaf.requires_grad)


__all__ = ["Division", "apply_budget"]
