"""Compute nodes, data nodes, phantoms and layers: the parts of a training step.

A node never changes; what a schedule does with it is in `schedule.py`, and what a schedule may do in `validation.py`.
"""

from __future__ import annotations

from enum import Enum

from attrs import field, fields, frozen

from remat.errors import IllFormed
from remat.ir.checks import a_flag, a_name, a_text, a_tuple, an_object, at_least
from remat.ir.option import LayerOption, Option
from remat.ir.step import Step, some_steps
from remat.units import Bytes


class Phase(Enum):
    """The part of the training step a compute node belongs to."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"


class Kind(Enum):
    """What a datum is. `INPUT` and `BUFFER` live outside the budget; a name says the rest."""

    INPUT = "input"
    BUFFER = "buffer"
    ACTIVATION = "activation"
    PHANTOM = "phantom"
    GRADIENT = "gradient"
    TANGENT = "tangent"
    PARAM_GRAD = "param_grad"
    INPUT_GRAD = "input_grad"
    OUTPUT = "output"
    UPDATED_BUFFER = "updated_buffer"
    RNG_STATE = "rng_state"


OUTSIDE = frozenset({Kind.INPUT, Kind.BUFFER})
"""Kinds that cost nothing, are always resident and are never dropped."""

KEPT = frozenset({Kind.TANGENT, Kind.PARAM_GRAD, Kind.INPUT_GRAD, Kind.OUTPUT, Kind.UPDATED_BUFFER})
"""Kinds that are always kept: what the caller of the step gets, and what autograd holds to its end."""


@frozen(kw_only=True)
class Data:
    """A datum: one storage, with everything that views it.

    Attributes:
        name: unique among data, phantoms and compute nodes.
        size: bytes on the device.
        kind: what it is.
        writers: names of the nodes that produce it. One: it is complete after a run of it. Several: gradient
            contributions, added in this order (floating-point sums depend on it); complete when each has contributed.
        keep: it must be resident and complete at the end of the step, and is never dropped once complete.
    """

    name: str = field(validator=a_name)
    size: Bytes = field(validator=at_least(0, "bytes"))
    kind: Kind = field(default=Kind.ACTIVATION, validator=an_object(Kind, "Kind.ACTIVATION"))
    writers: tuple[str, ...] = field(default=(), validator=a_tuple(str))
    keep: bool = field(validator=a_flag)

    @keep.default
    def _(self) -> bool:
        return isinstance(self.kind, Kind) and self.kind in KEPT

    def __attrs_post_init__(self) -> None:
        if self.kind in KEPT and not self.keep:
            fix = "leave `keep` out, or give another kind."
            raise IllFormed("G-KEEP", f"Data {self.name!r}: a {self.kind.value} is always kept.", fix=fix)
        if self.kind in OUTSIDE and (self.writers or self.keep):
            fix = "give it no writers and no `keep`, or another kind."
            raise IllFormed("G-INPUT", f"Data {self.name!r}: an {self.kind.value} lives outside the step.", fix=fix)
        if self.kind not in OUTSIDE and not self.writers:
            fix = "name its writers, or make it an input."
            raise IllFormed("G-WRITER", f"Data {self.name!r}: it has no writer.", fix=fix)

    @property
    def outside(self) -> bool:
        """Whether it lives outside the budget: costs nothing, always resident."""
        return self.kind in OUTSIDE


@frozen(kw_only=True)
class Compute:
    """A compute node: an operation, or a whole part of a layer.

    Attributes:
        name: unique among data, phantoms and compute nodes.
        phase: the part of the step it belongs to.
        reads, writes: names of data.
        options: the ways it may run, at least one; a schedule names one by its index.
        scope: path of the module it came from, outermost first (`layers.3.mlp`); empty: not known.
        twin: of a backward node, the forward node to whose backward it belongs; empty: not known, or none.
        signature: equal signatures are the same code on the same shapes; empty: not known.
        draws: it draws random numbers; first runs of such nodes keep the graph's order (S-ORDER).
        run_once: it may not be replayed (S-ONCE).
        after: names of nodes that run first in the captured order, without a data dependency: a hint to partitioners,
            never validated.
    """

    name: str = field(validator=a_name)
    phase: Phase = field(validator=an_object(Phase, "Phase.FORWARD"))
    reads: tuple[str, ...] = field(default=(), validator=a_tuple(str))
    writes: tuple[str, ...] = field(default=(), validator=a_tuple(str))
    options: tuple[Option, ...] = field(validator=a_tuple(Option))
    scope: str = field(default="", validator=a_text)
    twin: str = field(default="", validator=a_text)
    signature: str = field(default="", validator=a_text)
    draws: bool = field(default=False, validator=a_flag)
    run_once: bool = field(default=False, validator=a_flag)
    after: tuple[str, ...] = field(default=(), validator=a_tuple(str))

    def __attrs_post_init__(self) -> None:
        if not self.options:
            fix = "give at least Option(time=0)."
            raise IllFormed("G-OPT", f"Compute {self.name!r} has no option.", fix=fix)
        if set(self.reads) & set(self.writes):
            both = ", ".join(sorted(set(self.reads) & set(self.writes)))
            fix = "write a new datum; values never change in place."
            raise IllFormed("G-INPLACE", f"Compute {self.name!r} reads and writes {both}.", fix=fix)

    @property
    def option(self) -> Option:
        """Its only option.

        Raises:
            IllFormed: G-OPT, when it has several.
        """
        if len(self.options) != 1:
            fix = "name the option by its index."
            raise IllFormed("G-OPT", f"Compute {self.name!r} has {len(self.options)} options, not one.", fix=fix)
        return self.options[0]


@frozen(kw_only=True)
class Phantom:
    """What a layer's forward saves for its own backward, the only reader: tensors saved for backward, or residuals.

    Attributes:
        name: unique among data, phantoms and compute nodes.
        sizes: bytes under each option of the layer, in their order.
    """

    name: str = field(validator=a_name)
    sizes: tuple[Bytes, ...] = field(validator=a_tuple(int))


@frozen(kw_only=True)
class Layer:
    """One forward and one backward node of a condensed graph, and the phantom between them.

    The forward node has one option per `LayerOption`, at the same index, and one more at the end: the *no-save forward*, which
    keeps nothing. The backward node has one option per `LayerOption`; it reads the phantom of its own option.

    Attributes:
        forward, backward: names of the two compute nodes.
        phantom: name of the phantom.
        options: the pairs of options.
        no_save: the run that keeps nothing: time, and workspace beyond inputs and outputs. Left out: the fastest option's
            forward with its phantom counted as workspace, which is always allowed.
        no_save_steps: its sub-schedule, in names of the flat graph; empty: it stands for itself.
    """

    forward: str = field(validator=a_name)
    backward: str = field(validator=a_name)
    phantom: str = field(validator=a_name)
    options: tuple[LayerOption, ...] = field(validator=a_tuple(LayerOption))
    no_save: Option = field(validator=an_object(Option, "Option(time=1)"))
    no_save_steps: tuple[Step, ...] = field(default=(), validator=some_steps)

    @no_save.default
    def _(self) -> Option:
        if not isinstance(self.options, tuple) or not self.options:
            raise IllFormed("G-LAYER", f"the layer of {self.forward!r} has no option.", fix="give at least one.")
        a_tuple(LayerOption)(self, fields(Layer).options, self.options)
        quick = min(self.options, key=lambda option: (option.forward, option.forward_workspace + option.phantom))
        return Option(time=quick.forward, workspace=quick.forward_workspace + quick.phantom)

    def __attrs_post_init__(self) -> None:
        if not self.options:
            raise IllFormed("G-LAYER", f"the layer of {self.forward!r} has no option.", fix="give at least one.")

    @property
    def forward_options(self) -> tuple[Option, ...]:
        """The options of the forward node: one per layer option, then the no-save forward."""
        saving = tuple(Option(time=option.forward, workspace=option.forward_workspace) for option in self.options)
        return (*saving, self.no_save)

    @property
    def backward_options(self) -> tuple[Option, ...]:
        """The options of the backward node, one per layer option."""
        return tuple(Option(time=option.backward, workspace=option.backward_workspace) for option in self.options)
