"""Random legal graphs, from all graphs that the rules allow: for tests with oracles, not for planning.

`strategies.training_graphs` draws graphs that look like a training step; these graphs only satisfy the rules. They have any kind
of datum wherever a rule allows it, sums with contributions before, at and after the loss, options on flat nodes, several random
states written with and without draws, hints without meaning, sizes and times of zero, and sizes whose sums floats cannot
represent exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from remat.ir import Graph, GraphBuilder, Kind, LayerOption, Option, Phase

T = TypeVar("T")

Choose = Callable[[int, int], int]
"""`choose(low, high)`: any int from `low` to `high`, both included; smaller values give simpler graphs."""

_SCALES = ((0, 5), (0, 5), (0, 9), (0, 1), (10**9, 7), (2**50, 1))
"""(unit, noise): numbers of a graph are zero, or one to three units and some noise; unit 0: only the noise."""
_TAKEN = ("stage.0", "stage.1.saved", "stage.0.rest", "segment.0", "segment.1.rest", "group.0", "unit.loss", "#", "é")
"""Names that transforms and partitioners generate, and unusual ones."""
_KINDS = (
    Kind.ACTIVATION,
    Kind.GRADIENT,
    Kind.PHANTOM,
    Kind.RNG_STATE,
    Kind.PARAM_GRAD,
    Kind.INPUT_GRAD,
    Kind.OUTPUT,
    Kind.UPDATED_BUFFER,
)
"""Kinds that any node may write; only the loss writes tangents."""


def legal_graph(choose: Choose, *, max_nodes: int = 7, layers: bool = True, options: bool = True) -> Graph:
    """A legal graph of at most `max_nodes` nodes.

    Args:
        choose: makes every choice; a seeded generator's `randint` repeats it.
        max_nodes: largest number of compute nodes.
        layers: whether a forward and a backward node may be a layer.
        options: whether nodes outside layers may have several options.
    """
    return _Legal(choose, max_nodes, layers=layers, options=options).graph()


class _Legal:
    """A graph under construction. Two of three are like a chain with its backward, the others have no particular structure."""

    def __init__(self, choose: Choose, max_nodes: int, *, layers: bool, options: bool) -> None:
        self.choose = choose
        most = max_nodes - 1
        forward = min(most, self.pick((0, 1, 2, 3, 3, 3, 3, 4, 4)))
        self.random = self.chance(5)  # whether there are many random states and draws
        mirrored = choose(0, 2) > 0 and not (self.random and self.chance(2))
        backward = min(forward, most - forward) if mirrored and choose(0, 5) else choose(0, min(4, most - forward))
        self.loss = forward
        self.taken = list(_TAKEN) if self.chance(8) else []
        plain = [*(f"F{i}" for i in range(forward)), "L", *(f"B{i}" for i in reversed(range(backward)))]
        self.names = [self.name(name) for name in plain]
        self.reads: list[list[str]] = [[] for _ in self.names]
        self.writes: list[list[str]] = [[] for _ in self.names]
        self.data: list[tuple[str, int, Kind, bool | None]] = []
        self.size_scale, self.time_scale = self.pick(_SCALES), self.pick(_SCALES)
        self.odd = self.pick((0, 1, 0, 1, 2, 3))  # how often flags and odd kinds are drawn
        self.mirrored = mirrored
        self.layers, self.options = layers and choose(0, 4) == 4, options and choose(0, 5) == 5

    # -- choices -------------------------------------------------------------------------------------------------------

    def pick(self, items: Sequence[T]) -> T:
        return items[self.choose(0, len(items) - 1)]

    def chance(self, one_in: int) -> bool:
        return self.choose(0, one_in - 1) == one_in - 1

    def oddly(self) -> bool:
        """True rarely, more often, or never, depending on `odd`."""
        return bool(self.odd) and self.chance(1 + 6 // self.odd)

    def number(self, scale: tuple[int, int]) -> int:
        unit, noise = scale
        if not unit:
            return self.choose(0, noise)
        return 0 if self.chance(4) else unit * self.choose(1, 3) + self.choose(-noise, noise)

    def name(self, plain: str) -> str:
        """The name, or one that parts of the library generate."""
        if not self.taken or not self.chance(3):
            return plain
        return self.taken.pop(self.choose(0, len(self.taken) - 1))

    # -- data ----------------------------------------------------------------------------------------------------------

    def graph(self) -> Graph:
        if self.mirrored:
            self.mirror()
        for i in range(self.choose(0, 3 if self.mirrored else len(self.names))):
            self.datum(f"d{i}")
        for i in range(self.choose(1, 3) if self.random else 0):
            writer = self.choose(0, len(self.names) - 1)
            self.add(
                f"r{i}", [writer], [k for k in range(writer + 1, len(self.names)) if self.chance(6)], Kind.RNG_STATE
            )
        for i in range(self.choose(0, 1)):
            self.outside(f"x{i}")
        return self.built()

    def add(
        self,
        name: str,
        writers: list[int],
        readers: list[int],
        kind: Kind,
        keep: bool | None = None,
        *,
        weight: int = 1,
    ) -> None:
        name = self.name(name)
        size = sum(self.number(self.size_scale) for _ in range(weight))
        self.data.append((name, size, kind, keep))
        for i in sorted(set(writers)):
            self.writes[i].append(name)
        for i in sorted(set(readers)):
            self.reads[i].append(name)

    def mirror(self) -> None:
        """The data of a chain: activations, a tangent, gradients; what each backward node saves is drawn."""
        count = len(self.names)
        for i in range(self.loss):
            kind = Kind.OUTPUT if self.oddly() else Kind.ACTIVATION
            near = (count - 1 - i, count - 2 - i)  # the backward of this node, and of the node that reads its output
            saved = [k for k in range(self.loss + 1, count) if (self.choose(0, 5) if k in near else self.chance(8))]
            skips = [j for j in range(i + 2, self.loss + 1) if self.chance(5)]
            self.add(f"a{i}", [i], [i + 1, *skips, *saved], kind, weight=3)
        for k in range(self.loss, count):
            if k + 1 < count or self.chance(2):
                last = Kind.TANGENT if k == self.loss else Kind.GRADIENT if k + 1 < count else Kind.INPUT_GRAD
                self.add(f"g{k}", [k], [k + 1] if k + 1 < count else [], last)
            if k > self.loss and self.chance(3):
                self.add(f"w{k}", [k], [], Kind.PARAM_GRAD)

    def datum(self, name: str) -> None:
        """A datum of any kind that one to three nodes write, and that any later nodes read."""
        last = len(self.names) - 1
        writers = [self.choose(0, last) for _ in range(1 + self.chance(3) + self.chance(6))]
        later = range(max(writers) + 1, last + 1)
        readers = [i for i in later if self.chance(3)] if self.chance(2) else [self.pick(later)] if later else []
        kinds = _KINDS if self.oddly() or self.chance(3) else _KINDS[:2]
        kind = Kind.TANGENT if set(writers) == {self.loss} and self.chance(3) else self.pick(kinds)
        self.add(name, writers, readers, kind, True if self.oddly() else None)

    def outside(self, name: str) -> None:
        """An input or a buffer."""
        kind = self.pick((Kind.INPUT, Kind.BUFFER))
        self.add(name, [], [i for i in range(len(self.names)) if self.chance(3)], kind)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def built(self) -> Graph:
        b = GraphBuilder("legal")
        for name, size, kind, keep in self.data:
            b.data(name, size, kind, keep=keep)
        for i, name in enumerate(self.names):
            b.compute(name, self.phase(i), options=self.ways(), **self.marks(i))
        for i in range(self.loss):
            k = len(self.names) - 1 - i
            if self.layers and k > self.loss and not self.chance(4):
                ways = [self.layer_option(i, k) for _ in range(1 + self.chance(2))]
                no_save = self.way() if self.chance(3) else None
                b.layer(self.names[i], self.names[k], ways, no_save=no_save)
        return b.build()

    def phase(self, i: int) -> Phase:
        return Phase.LOSS if i == self.loss else Phase.FORWARD if i < self.loss else Phase.BACKWARD

    def marks(self, i: int) -> dict[str, Any]:
        """The attributes of a node other than its options; hints name any existing node."""
        twins = self.names[: self.loss] if i > self.loss else []
        mirror = self.names[len(self.names) - 1 - i : len(self.names) - i] if self.mirrored else []
        twin = (
            self.pick(mirror if mirror and mirror[0] in twins and not self.oddly() else twins)
            if twins and self.chance(2)
            else ""
        )
        return {
            "reads": self.reads[i],
            "writes": self.writes[i],
            "twin": twin,
            "scope": f"m.{self.choose(0, 2)}" if self.chance(2) else "",
            "signature": f"s{self.choose(0, 2)}" if self.oddly() else "",
            "draws": self.chance(2) if self.random else self.oddly(),
            "run_once": self.oddly(),
            "after": [self.pick(self.names)] if self.oddly() else [],
        }

    def way(self) -> Option:
        workspace = self.number(self.size_scale) if self.chance(2) else 0
        return Option(time=self.number(self.time_scale), workspace=workspace)

    def ways(self) -> list[Option]:
        return [self.way() for _ in range(1 + (self.options and self.chance(2)) + (self.options and self.chance(4)))]

    def layer_option(self, i: int, k: int) -> LayerOption:
        """A pair of options of nodes `i` and `k`; the latter may read data that are complete by then."""
        late = {name for writes in self.writes[k:] for name in writes}
        complete = [name for name, *_ in self.data if name not in late and name not in self.writes[k]]
        forward, backward = self.way(), self.way()
        return LayerOption(
            forward=forward.time,
            backward=backward.time,
            phantom=self.number(self.size_scale),
            forward_workspace=forward.workspace,
            backward_workspace=backward.workspace,
            backward_reads=(self.pick(complete),) if complete and self.chance(3) else (),
        )
