"""The state of a wrapped module: settings, plans by the form of a call, measured costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from attrs import define, field
from torch import nn

from remat._collector import old_objects_apart
from remat.algorithms import Outcome
from remat.errors import BadArgument
from remat.exec._cost.cost import OpCost
from remat.exec._dtr.runtime import Runtime
from remat.exec._module.calls import INSTANCE_FORWARD, Arguments, attributes, leaf_key, order_of
from remat.exec._module.entries import Bare, Dynamic, Ready, fresh
from remat.exec._module.live import Tensors, Watch, autocast
from remat.exec._module.plan_table import PlanTable
from remat.exec._module.ranks import Ranks
from remat.exec._module.saved import SavedPlans
from remat.exec._module.shape_bill import ShapeBill
from remat.exec._plan.families import Families
from remat.exec._plan.planned import Planned
from remat.exec._plan.raising import with_raised_bound
from remat.exec._plan.settings import Settings
from remat.exec._sizes.captures import Sizes
from remat.exec._sizes.stencil import Stencil
from remat.exec._torch.ambient import settings, transform_around
from remat.exec._trace import structure


def state_of(model: object, rule: str = "X-REPORT") -> State:
    """The state of a wrapped module.

    Raises:
        BadArgument: with the rule, where it is not wrapped, or runs under DTR alone.
    """
    state = attributes(model).get("_remat") if isinstance(model, nn.Module) else None
    if isinstance(state, State):
        return state
    fix = "give what `remat.exec.wrap` returned."
    if not isinstance(model, nn.Module):
        raise BadArgument(rule, f"{model!r:.80} is no module.", fix=fix)
    if state is not None:
        raise BadArgument(rule, "the module runs under DTR alone, without plans.", fix="ask `remat.exec.dtr_report`.")
    raise BadArgument(rule, "the module is not wrapped.", fix=fix)


MOST_PLANS = 64
"""How many plans a wrapped module keeps by default."""

MOST_COSTS = 2000
"""How many measured costs it keeps for each of them: a step of a thousand operations has a few hundred signatures."""


@define(eq=False)
class State:
    """Settings and plans of a wrapped module; a copy of the module keeps the plans, a pickle does not.

    Attributes:
        settings: how to plan.
        on_uncapturable: "raise", "bare" or "dtr".
        rehearse: whether new plans are rehearsed on the call they were made for.
        most_plans: how many plans are kept; the least recently used is forgotten first.
        saved: plans of a file, which are run where they fit.
        family: whether steps of a known structure are planned from plans of other sizes.
        ranks: what is agreed with the other processes of a group.
        plans: by key.
        costs: measured costs by signature, the most recently used last; at most `MOST_COSTS` for each plan that may be kept.
        library: plans by digest of the program, of the programs that `plans` has; calls with equal programs share a plan.
        raised: likewise, outcomes whose bounds were raised after planning, with the outcome that each comes from.
        families: run sequences of plans by the structure of the step, for steps of other sizes.
        sizes: captures by the form of a call without its sizes, from which programs of other sizes are filled in.
        watches: what the steps that come from a stencil watch of the state of Python.
        bill: what new shapes have cost.
        last: the plan of the last call.
        ran: "plan" if the last call ran its plan, else why not; where it ran under DTR, that begins with "DTR: ".
        sample: names and shapes of the tensors of the first call planned for.
        runtime: of the calls that run under DTR, once there are any.
    """

    settings: Settings
    on_uncapturable: str
    rehearse: bool = True
    most_plans: int = MOST_PLANS
    saved: SavedPlans | None = None
    family: bool = True
    ranks: Ranks = field(factory=Ranks)
    plans: PlanTable[Ready | Bare] = field(init=False)
    costs: dict[str, OpCost] = field(factory=dict)
    library: dict[str, Planned] = field(factory=dict)
    raised: dict[str, tuple[Outcome, Outcome]] = field(factory=dict)
    families: Families = field(factory=Families)
    sizes: Sizes = field(factory=Sizes)
    watches: WeakKeyDictionary[Stencil, Watch] = field(factory=WeakKeyDictionary)
    bill: ShapeBill = field(factory=ShapeBill)
    last: Ready | Bare | None = None
    ran: str = "plan"
    sample: tuple[tuple[str, tuple[int, ...]], ...] = ()
    runtime: Runtime | None = None
    _tensors: Tensors | None = None

    def __attrs_post_init__(self) -> None:
        self.plans = PlanTable(self.most_plans)

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        cls, (*settings, _) = self.__reduce__()
        costs, library = dict(self.costs), dict(self.library)
        state: State = cls(*settings, self.ranks.copied(), costs=costs, library=library, sample=self.sample)
        state.plans, state.families = self.plans.copied(fresh), self.families.copied()
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        settings = (self.settings, self.on_uncapturable, self.rehearse, self.most_plans, self.saved, self.family)
        return type(self), (*settings, self.ranks.pickled())

    @property
    def entries(self) -> list[Ready | Bare]:
        """All plans."""
        return list(self.plans)

    @property
    def reason_for_dtr(self) -> str:
        """Why calls run under DTR: that of the last call if it did, else of one that did."""
        entries = [self.last, *self.plans]
        return next((entry.reason for entry in entries if isinstance(entry, Dynamic)), "")

    def step_of(self, module: nn.Module) -> Callable[..., Any] | None:
        """The loss function around the module, where there is one and the module trains."""
        return self.settings.step if module.training else None

    def watched(self, module: nn.Module) -> tuple[Any, ...]:
        """Functions besides the module whose state counts."""
        functions = (self.step_of(module), attributes(module).get(INSTANCE_FORWARD))
        return tuple(function for function in functions if function is not None)

    def arguments(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """A call, its tensors and its key; keywords in the order of the signature, however the call spells them."""
        if len(kwargs) > 1:
            order = order_of(self.step_of(module) or type(module).forward)
            kwargs = dict(sorted(kwargs.items(), key=lambda item: order.get(item[0], len(order))))
        if self._tensors is None or not self._tensors.current(module):
            self._tensors = Tensors(module)
        forms = self._tensors.fetch()
        leaves, layout = structure.flatten((args, kwargs), opaque=lambda value: isinstance(value, nn.Module))
        params = self._tensors.params
        inputs, repeated = structure.distinct(leaves, self._tensors.origins)
        around = (settings(), autocast(params, inputs), transform_around([*params, *inputs]))
        key = (layout, tuple(map(leaf_key, leaves)), forms, around, self.step_of(module) is None, *repeated.items())
        tensors = {"param": params, "buffer": self._tensors.buffers, "input": inputs}
        return Arguments(
            module=module, args=args, kwargs=kwargs, layout=layout, leaves=leaves, key=key, tensors=tensors,
            repeated=tuple(repeated),
        )  # fmt: skip

    def used(self, call: Arguments, entry: Ready | Bare) -> Ready | Bare:
        """Note the entry as the most recently used and return it; with too many, the least recently used is evicted."""
        if self.plans.use(call.key, entry):
            digests = {other.digest for other in self.plans if isinstance(other, Ready)}
            self.library = {digest: planned for digest, planned in self.library.items() if digest in digests}
            self.raised = {digest: pair for digest, pair in self.raised.items() if digest in digests}
        return entry

    def outcome_of(self, ready: Ready) -> Outcome:
        """What is known of a plan, with its bound as it was raised last."""
        planned, raised = self.raised.get(ready.digest, (None, None))
        return raised if raised is not None and planned is ready.planned.outcome else ready.planned.outcome

    def raise_bound(self, ready: Ready) -> None:
        """Compute the bounds that planning left out; the plan stays. Nothing is computed twice."""
        outcome = self.outcome_of(ready)
        if outcome is ready.planned.outcome:
            with old_objects_apart():
                self.raised[ready.digest] = (outcome, with_raised_bound(ready.planned, self.settings.seed))

    def forget_costs(self) -> None:
        """Remove the least recently used costs that are too many."""
        for text in list(self.costs)[: max(0, len(self.costs) - MOST_COSTS * self.most_plans)]:
            del self.costs[text]
