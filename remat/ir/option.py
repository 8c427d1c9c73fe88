"""Options: the ways one compute node may run; what a lower level of a hierarchy offers to the level above.

Reference: H-ILP's R[i, o, t] (HiRemate, App. B); Rockmate's block budgets. Nothing here knows how an option was found.
"""

from __future__ import annotations

from attrs import field, frozen

from remat.errors import IllFormed
from remat.ir.checks import a_tuple, at_least
from remat.ir.step import Step, some_steps
from remat.units import Bytes, Ns


@frozen(kw_only=True)
class Option:
    """One way to run a compute node.

    Attributes:
        time: how long a run takes [ns].
        workspace: memory the run needs beyond what is resident and beyond its outputs [bytes].
    """

    time: Ns = field(validator=at_least(0, "ns"))
    workspace: Bytes = field(default=0, validator=at_least(0, "bytes"))


@frozen(kw_only=True)
class Moment:
    """One run of a sub-schedule as the level above sees it: the correction terms of H-ILP (HiRemate, App. B.4).

    Attributes:
        live: bytes live inside the layer during the run: what is interior, the phantom so far, and border data (reads and
            writes of the layer's node) that the sub-schedule holds [bytes].
        absent: names of border data that it does not hold: reads that are not needed any more, writes not made before. The
            bytes of such a datum come on top of `live` if the level above holds it by itself: a read that stays resident
            after the layer's run, a write that was resident before it.
    """

    live: Bytes = field(validator=at_least(0, "bytes"))
    absent: tuple[str, ...] = field(default=(), validator=a_tuple(str))


@frozen(kw_only=True)
class LayerOption:
    """One way to run a layer forward and, later, backward.

    Attributes:
        forward, backward: times of the two parts, replays included [ns].
        phantom: what the forward leaves for its backward under this option [bytes]; 0 keeps nothing.
        forward_workspace, backward_workspace: most memory beyond inputs, outputs and phantom while the part runs [bytes].
        backward_reads: data of the level above that the backward reads under this option only.
        forward_profile, backward_profile: the memory of the sub-schedules step by step (see `Moment`); empty: not known.
        forward_steps, backward_steps: the sub-schedules, in names of the flat graph; empty: the option stands for itself.

    Raises:
        IllFormed: G-OPT, when one part has a sub-schedule and the other has none.
    """

    forward: Ns = field(validator=at_least(0, "ns"))
    backward: Ns = field(validator=at_least(0, "ns"))
    phantom: Bytes = field(validator=at_least(0, "bytes"))
    forward_workspace: Bytes = field(default=0, validator=at_least(0, "bytes"))
    backward_workspace: Bytes = field(default=0, validator=at_least(0, "bytes"))
    backward_reads: tuple[str, ...] = field(default=(), validator=a_tuple(str))
    forward_profile: tuple[Moment, ...] = field(default=(), validator=a_tuple(Moment))
    backward_profile: tuple[Moment, ...] = field(default=(), validator=a_tuple(Moment))
    forward_steps: tuple[Step, ...] = field(default=(), validator=some_steps)
    backward_steps: tuple[Step, ...] = field(default=(), validator=some_steps)

    def __attrs_post_init__(self) -> None:
        if bool(self.forward_steps) != bool(self.backward_steps):
            raise IllFormed(
                "G-OPT", "one part has a sub-schedule and the other has none.", fix="give both, or neither."
            )
