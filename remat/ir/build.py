"""The one mutable class: a `GraphBuilder` collects nodes and data in any order of data, and builds a `Graph`."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from remat.errors import IllFormed
from remat.ir.graph import Graph
from remat.ir.node import Compute, Data, Kind, Layer, Phase
from remat.ir.option import LayerOption, Option
from remat.ir.step import Step
from remat.settings import MANY, Setting, takes
from remat.units import Bytes, Ns

_TEXT = Setting("text", lambda value: isinstance(value, str))


class GraphBuilder:
    """Collects the nodes of a training step, in a topological order, and the data between them.

    Data are declared with `data`; nodes with `compute` (or `forward`, `loss`, `backward`) and `layer`. Writers are taken from
    the nodes: a datum that several nodes write is the sum of their contributions, in the order of the nodes.

    Example:
        >>> b = GraphBuilder("tiny")
        >>> b.data("x", 0, Kind.INPUT)
        >>> b.data("a", 4)
        >>> b.data("g", 4, Kind.PARAM_GRAD)
        >>> b.data("t", 1, Kind.TANGENT)
        >>> b.forward("F", reads=["x"], writes=["a"], time=2)
        >>> b.loss("L", reads=["a"], writes=["t"], time=1)
        >>> b.backward("B", reads=["t", "a"], writes=["g"], time=3)
        >>> b.build()
        <Graph tiny: 3 nodes, 4 data, 0 layers>
    """

    def __init__(self, name: str = "graph") -> None:
        self._name = name
        self._computes: list[Compute] = []
        self._data: dict[str, tuple[Bytes, Kind, bool | None]] = {}
        self._layers: list[Layer] = []

    @takes(name=_TEXT)
    def data(self, name: str, size: Bytes, kind: Kind = Kind.ACTIVATION, *, keep: bool | None = None) -> None:
        """Declare a datum; the default of `keep` follows from its kind."""
        if name in self._data:
            raise IllFormed("G-TWICE", f"the datum {name!r} is declared twice.", fix="rename one of them.")
        self._data[name] = (size, kind, keep)

    @takes(reads=MANY, writes=MANY, options=MANY, after=MANY)
    def compute(
        self,
        name: str,
        phase: Phase,
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        time: Ns = 0,
        workspace: Bytes = 0,
        options: Iterable[Option] = (),
        scope: str = "",
        twin: str = "",
        signature: str = "",
        draws: bool = False,
        run_once: bool = False,
        after: Iterable[str] = (),
    ) -> None:
        """Add a compute node with one option (`time`, `workspace`), or with the `options` given."""
        node = Compute(
            name=name,
            phase=phase,
            reads=tuple(reads),
            writes=tuple(writes),
            options=tuple(options) or (Option(time=time, workspace=workspace),),
            scope=scope,
            twin=twin,
            signature=signature,
            draws=draws,
            run_once=run_once,
            after=tuple(after),
        )
        self._computes.append(node)

    def forward(self, name: str, **more: object) -> None:
        """Add a forward node; arguments as for `compute`."""
        self.compute(name, Phase.FORWARD, **more)  # type: ignore[arg-type]

    def loss(self, name: str, **more: object) -> None:
        """Add the loss node; arguments as for `compute`."""
        self.compute(name, Phase.LOSS, **more)  # type: ignore[arg-type]

    def backward(self, name: str, **more: object) -> None:
        """Add a backward node; arguments as for `compute`."""
        self.compute(name, Phase.BACKWARD, **more)  # type: ignore[arg-type]

    @takes(options=MANY, no_save_steps=MANY)
    def layer(
        self,
        forward: str,
        backward: str,
        options: Iterable[LayerOption],
        *,
        phantom: str = "",
        no_save: Option | None = None,
        no_save_steps: Iterable[Step] = (),
    ) -> None:
        """Make a layer of two nodes already added; their options become the layer's. The phantom is `forward` + `.phantom`."""
        name = phantom or f"{forward}.phantom"
        layer = Layer(
            forward=forward, backward=backward, phantom=name, options=tuple(options), no_save_steps=tuple(no_save_steps)
        )
        if no_save is not None:
            layer = evolve(layer, no_save=no_save)
        self._replace(forward, layer.forward_options)
        self._replace(backward, layer.backward_options)
        self._layers.append(layer)

    def _replace(self, name: str, options: tuple[Option, ...]) -> None:
        places = [i for i, node in enumerate(self._computes) if node.name == name]
        if not places:
            raise IllFormed("G-UNKNOWN", f"a layer names the node {name!r}, which does not exist.", fix="add it first.")
        self._computes[places[0]] = evolve(self._computes[places[0]], options=options)

    def build(self) -> Graph:
        """The graph.

        Raises:
            IllFormed: with the `G-…` rule that is broken.
        """
        writers: dict[str, list[str]] = {name: [] for name in self._data}
        for node in self._computes:
            for name in node.writes:
                if name not in writers:
                    raise IllFormed(
                        "G-UNKNOWN", f"{node.name!r} writes {name!r}, which does not exist.", fix="declare it."
                    )
                writers[name].append(node.name)
        data = []
        for name, (size, kind, keep) in self._data.items():
            given_keep = {} if keep is None else {"keep": keep}
            data.append(Data(name=name, size=size, kind=kind, writers=tuple(writers[name]), **given_keep))
        return Graph(name=self._name, computes=tuple(self._computes), data=tuple(data), layers=tuple(self._layers))
