"""What a wrapped module keeps for a form of its calls: a planned step bound to its tensors, or why there is none."""

from __future__ import annotations

from attrs import define, evolve, frozen

from remat._warn import RematWarning, warn
from remat.exec._capture.capturing import Captured
from remat.exec._module.live import Watch
from remat.exec._plan.planned import Planned
from remat.exec._run.meter import StepMeter
from remat.exec._run.rehearsal import Rehearsal
from remat.exec._run.runtime import Call


@define(eq=False)
class Bare:
    """A combination of shapes falls back to the unwrapped module, and why.

    Attributes:
        reason: why.
        untold: the warning that such a call is to give once it has run; empty: it was given, or there is none.
        has_run: whether a call has run: before that, it may be one that the unwrapped module refuses.
    """

    reason: str
    untold: str = ""
    has_run: bool = False

    def tell(self) -> None:
        """Give the warning, if it was not given."""
        if self.untold:
            what, self.untold = self.untold, ""
            warn(what, RematWarning)

    @property
    def ran(self) -> str:
        """What the report says of a call."""
        return self.reason


@define(eq=False)
class Dynamic(Bare):
    """A combination of shapes runs under DTR, within the budget, and why."""

    @property
    def ran(self) -> str:
        """What the report says of a call."""
        return f"DTR: {self.reason}"


@frozen(kw_only=True, eq=False)
class Ready:
    """A planned step bound to the places of its tensors.

    Attributes:
        planned: what was planned.
        digest: of its program.
        watch: the states of Python it was planned for.
        places: for each primal, ("param" or "buffer" or "input", index in the order in which a call has them).
        guard_places, prologue_places: likewise for each tensor that the guards and the prologue look at.
        call: what to run; None: nothing was planned, the bare module runs.
        meter: times and audit.
        rehearsal: what a rehearsal of the plan measured.
        shared_writes: places of tensors that the step writes, each with that of another tensor in the same memory.
        replaced_places: of buffers that the forward replaces, in the order in which a call has its buffers.
        same_places: of tensors that are returned unchanged: position among the flat outputs, and place.
    """

    planned: Planned
    digest: str
    watch: Watch
    places: tuple[tuple[str, int], ...]
    guard_places: tuple[tuple[str, int], ...]
    prologue_places: tuple[tuple[str, int], ...]
    call: Call | None
    meter: StepMeter
    rehearsal: Rehearsal | None = None
    same_places: tuple[tuple[int, tuple[str, int]], ...] = ()
    replaced_places: tuple[int, ...] = ()
    shared_writes: frozenset[tuple[tuple[str, int], tuple[str, int]]] = frozenset()

    @property
    def captured(self) -> Captured:
        """The trace."""
        return self.planned.captured


def fresh(entry: Ready | Bare) -> Ready | Bare:
    """The same for a copy of the module, which has not run yet."""
    if isinstance(entry, Bare):
        return entry
    meter = StepMeter(entry.meter.device, wanted=entry.meter.wanted)
    call = None if entry.call is None else evolve(entry.call, meter=meter, gate=None)
    return evolve(entry, meter=meter, call=call, watch=entry.watch.copy())
