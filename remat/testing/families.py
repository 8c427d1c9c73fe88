"""The default graphs of checks: a few families of random graphs, each of which covers cases that the others do not.

| family | what it covers |
|---|---|
| `chain` | optima with several reruns: three to six stages, near the floor |
| `layered` | two to four layers of several options, phantoms, no_save runs |
| `branching` | sums of gradients, tied parameters, nodes without order between them, draws, run-once nodes, kept data |
| `parallel` | nodes without order: optima that are not in the captured order |
| `uneven` | copies that overlap with reruns, and data that only reruns read: for problems with a link, in no other check |
| `late` | optima in which backward nodes run again |
| `optional` | several options of nodes outside layers, the loss among them |
| `whatever`, `legal_flat` | everything that the rules allow: every kind, flag and phase (`remat.testing.legal`) |
| `long` | more than twelve nodes, for which no exhaustive search finishes |

Every family is drawn at several scales: small numbers, 10^9 and 2^50 with some noise, so that floats cannot represent the sums
exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import evolve

from remat.ir import Graph, GraphBuilder, Kind, LayerOption, Option
from remat.testing.legal import legal_graph
from remat.testing.walks import Choose

Family = Callable[[Choose], Graph]

_SCALES: Final = ((1, 0), (1, 0), (1, 0), (10**9, 3), (2**50, 1))
"""(unit, noise): numbers are a few units plus or minus the noise."""


class _Numbers:
    """Sizes and times of one graph, each at a scale."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.bytes, self.ns = (_SCALES[choose(0, len(_SCALES) - 1)] for _ in range(2))

    def size(self, low: int = 1, high: int = 4) -> int:
        return self._scaled(self.bytes, low, high)

    def time(self, low: int = 0, high: int = 4) -> int:
        return self._scaled(self.ns, low, high)

    def workspace(self) -> int:
        return self.size(0, 3) if self.chance(3) else 0

    def chance(self, one_in: int) -> bool:
        return self.choose(0, one_in - 1) == 0

    def _scaled(self, scale: tuple[int, int], low: int, high: int) -> int:
        unit, noise = scale
        count = self.choose(low, high)
        return max(0, unit * count + self.choose(-noise, noise)) if count else 0


def chain(choose: Choose) -> Graph:
    """A chain and its backward: each stage saves its input, its output or both; gradients are small or as large as them."""
    n, b = _Numbers(choose), GraphBuilder("chain")
    length = (3, 4, 4, 5, 5, 6)[choose(0, 5)]
    b.data("x", n.size(), Kind.INPUT)
    for i in range(length):
        b.data(f"a{i}", n.size(1, 5))
    plain = n.chance(2)
    for i in range(length):
        time, workspace = n.time(1), 0 if plain else n.workspace()
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=time, workspace=workspace)
    b.data("t", n.size(0, 2), Kind.TANGENT)
    b.loss("L", reads=[f"a{length - 1}"], writes=["t"], time=n.time())
    gradient = "t"
    for i in reversed(range(length)):
        b.data(f"g{i}", n.size(0, 2) if plain else n.size(0, 4), Kind.GRADIENT if i else Kind.INPUT_GRAD)
        saved = [[f"a{i - 1}" if i else "x"], [f"a{i}"], [f"a{i}", f"a{i - 1}" if i else "x"]][choose(0, 2)]
        time, workspace = n.time(1), 0 if plain else n.workspace()
        b.backward(f"B{i}", reads=[gradient, *saved], writes=[f"g{i}"], time=time, workspace=workspace, twin=f"F{i}")
        gradient = f"g{i}"
    return b.build()


def layered(choose: Choose) -> Graph:
    """A chain of two to four layers, each with up to three options, one of which may keep nothing; sometimes a skip."""
    n, b = _Numbers(choose), GraphBuilder("layered")
    length = (2, 2, 3, 3, 3, 3, 3, 4)[choose(0, 7)]
    b.data("x", 0, Kind.INPUT)
    b.data("t", n.size(0, 2), Kind.TANGENT)
    for i in range(length):
        b.data(f"a{i}", n.size(1, 3))
        b.data(f"g{i}", n.size(0, 2), Kind.GRADIENT if i else Kind.INPUT_GRAD)
        skip = [f"a{i - 2}"] if i > 1 and n.chance(5) else []
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x", *skip], writes=[f"a{i}"], time=n.time(1))
    b.loss("L", reads=[f"a{length - 1}"], writes=["t"], time=n.time(), workspace=n.workspace())
    for i in reversed(range(length)):
        b.backward(
            f"B{i}", reads=[f"g{i + 1}" if i + 1 < length else "t"], writes=[f"g{i}"], time=n.time(1), twin=f"F{i}"
        )
    for i in range(length):
        if n.chance(8):
            continue  # a plain pair of nodes
        readable = [f"a{i - 1}" if i else "x", f"a{i}"]
        options = [_layer_option(n, readable) for _ in range(choose(1, 3) if length < 3 else choose(1, 2))]
        no_save = Option(time=n.time(0, 2), workspace=n.workspace()) if choose(0, 2) else None
        b.layer(f"F{i}", f"B{i}", options, no_save=no_save)
    return b.build()


def _layer_option(n: _Numbers, readable: list[str]) -> LayerOption:
    return LayerOption(
        forward=n.time(1),
        backward=n.time(1),
        phantom=n.size(1, 5) if n.choose(0, 4) else 0,
        forward_workspace=n.workspace(),
        backward_workspace=n.workspace(),
        backward_reads=(readable[n.choose(0, 1)],) if n.chance(2) else (),
    )


def branching(choose: Choose) -> Graph:
    """A forward graph with skips, its loss, and the backward that differentiates it."""
    return _Branching(choose, choose(2, 4)).graph()


def long(choose: Choose) -> Graph:
    """The same with seven to nine forward nodes."""
    return _Branching(choose, choose(7, 9)).graph()


class _Branching:
    def __init__(self, choose: Choose, forward: int) -> None:
        self.n, self.choose, self.forward = _Numbers(choose), choose, forward
        self.b = GraphBuilder("branching")
        self.reads = [self._reads(i) for i in range(forward)]
        self.random = choose(0, 3)  # how often nodes draw or run once; 0: never
        self.declared: set[str] = set()

    def _reads(self, i: int) -> list[int]:
        """Most often the previous node; sometimes also an earlier one, so that its gradient is a sum."""
        if not i:
            return []
        near = i - 1 if self.choose(0, 3) else self.choose(0, i - 1)
        far = [self.choose(0, i - 1)] if not self.choose(0, 2) else []
        return list(dict.fromkeys([near, *far]))

    def _flag(self) -> bool:
        return bool(self.random) and self.n.chance(8 // self.random)

    def graph(self) -> Graph:
        n, b = self.n, self.b
        b.data("x", n.size(), Kind.INPUT)
        for i in range(self.forward):
            b.data(f"a{i}", n.size(), Kind.OUTPUT if n.chance(8) else Kind.ACTIVATION)
            reads = [f"a{j}" for j in self.reads[i]] or ["x"]
            after = [f"F{self.choose(0, i - 1)}"] if i and n.chance(6) else []
            writes = [f"a{i}"]
            if n.chance(6):
                b.data(f"s{i}", n.size(), Kind.PHANTOM)
                self.declared.add(f"s{i}")
                writes.append(f"s{i}")
            marks = {"draws": self._flag(), "run_once": self._flag(), "after": after, "scope": f"m.{i // 2}"}
            b.forward(f"F{i}", reads=reads, writes=writes, time=n.time(), workspace=n.workspace(), **marks)
        used = {j for reads in self.reads for j in reads}
        ends = [i for i in range(self.forward) if i not in used]
        for i in ends:
            b.data(f"t{i}", n.size(0, 2), Kind.TANGENT)
        b.loss(
            "L", reads=[f"a{i}" for i in ends], writes=[f"t{i}" for i in ends], time=n.time(), workspace=n.workspace()
        )
        tied = n.chance(3)
        for i in reversed(range(self.forward)):
            self._backward(i, f"t{i}" if i in ends else f"g{i}", "w" if tied else f"w{i}")
        return b.build()

    def _backward(self, i: int, gradient: str, weight: str) -> None:
        n, b = self.n, self.b
        saved = [f"a{j}" for j in (*self.reads[i], i) if self.choose(0, 1)]
        saved += [f"s{i}"] if f"s{i}" in self.declared else []
        writes = []
        for j in self.reads[i]:
            if f"g{j}" not in self.declared:
                self.declared.add(f"g{j}")
                b.data(f"g{j}", n.size(), Kind.GRADIENT)
            writes.append(f"g{j}")
        if not writes or n.chance(2):
            if weight not in self.declared:
                self.declared.add(weight)
                b.data(weight, n.size(0, 2), Kind.PARAM_GRAD)
            writes.append(weight)
        parts = [writes[:1], writes[1:]] if len(writes) > 1 and n.chance(3) else [writes]
        for k, part in enumerate(parts):
            name = f"B{i}" + ("w" if k else "")
            marks = {"time": n.time(), "workspace": n.workspace(), "twin": f"F{i}"}
            b.backward(name, reads=dict.fromkeys([gradient, *saved]), writes=part, **marks)


def parallel(choose: Choose) -> Graph:
    """Two or three independent nodes, before the loss and after it: their order decides which budgets suffice.

    In half of the graphs some draw random numbers, and some write a random state, with or without a draw. In
    another half some run only once, and hints say another order.
    """
    n, b = _Numbers(choose), GraphBuilder("parallel")
    width, random = choose(2, 3), choose(0, 1)
    b.data("x", 0, Kind.INPUT)
    for i in range(width):
        b.data(f"a{i}", n.size(0, 4))
        writes = [f"a{i}"]
        if random and n.chance(3):
            b.data(f"r{i}", n.size(0, 2), Kind.RNG_STATE)
            writes.append(f"r{i}")
        marks = {"time": n.time(1), "workspace": n.size(0, 4), "draws": bool(random) and n.chance(2)}
        b.forward(f"F{i}", reads=["x"], writes=writes, **marks)
    b.data("t", n.size(0, 1), Kind.TANGENT)
    b.loss("L", reads=[f"a{i}" for i in range(width)], writes=["t"], time=n.time())
    for i in reversed(range(width)):
        if width > 2 and n.chance(4):
            continue
        b.data(f"w{i}", n.size(0, 3), Kind.RNG_STATE if random and n.chance(2) else Kind.PARAM_GRAD)
        saved = [f"a{i}"] if choose(0, 3) else []
        marks = {"time": n.time(1), "workspace": n.size(0, 4), "draws": bool(random) and n.chance(2)}
        b.backward(f"B{i}", reads=["t", *saved], writes=[f"w{i}"], twin=f"F{i}", **marks)
    graph = b.build()
    if not n.chance(2):
        return graph
    flagged = [
        evolve(node, run_once=n.chance(2), after=(f"F{choose(0, width - 1)}",) if n.chance(2) else ())
        for node in graph.computes[:width]
    ]
    return evolve(graph, computes=(*flagged, *graph.computes[width:]))


def late(choose: Choose) -> Graph:
    """A short forward, and a backward of four or five nodes whose gradients are large and read twice: they may run again."""
    n, b = _Numbers(choose), GraphBuilder("late")
    length = choose(4, 5)
    b.data("a", n.size(0, 2))
    b.forward("F", writes=["a"], time=n.time())
    b.data("g0", n.size(1, 2), Kind.TANGENT)
    b.loss("L", reads=["a"], writes=["g0"], time=n.time())
    for i in range(1, length + 1):
        b.data(f"g{i}", n.size(1, 5) if i < length else n.size(0, 1), Kind.GRADIENT if i < length else Kind.INPUT_GRAD)
        early = [f"g{choose(1, i - 3) if choose(0, 3) else i - 2}"] if i > 3 else []
        workspace = n.size(2, 6) if i == 3 or not choose(0, 2) else 0
        b.backward(f"B{i}", reads=[f"g{i - 1}", *early], writes=[f"g{i}"], time=n.time(1), workspace=workspace)
    return b.build()


def optional(choose: Choose) -> Graph:
    """A branching graph whose nodes may run in several ways, the loss too."""
    graph, n = _Branching(choose, choose(1, 3)).graph(), _Numbers(choose)

    def ways() -> tuple[Option, ...]:
        return tuple(Option(time=n.time(), workspace=n.size(0, 4)) for _ in range(choose(1, 3)))

    return evolve(graph, computes=tuple(evolve(node, options=ways()) for node in graph.computes))


def whatever(choose: Choose) -> Graph:
    """Any graph of up to seven nodes that the rules allow."""
    return legal_graph(choose)


def legal_flat(choose: Choose) -> Graph:
    """Any flat graph of up to nine nodes that the rules allow."""
    return legal_graph(choose, max_nodes=9, layers=False, options=False)


def uneven(choose: Choose) -> Graph:
    """A chain whose forward nodes take longer than its backward nodes, or the other way round; copies take as long as the longer.

    A datum that no backward node reads is of use to a rerun alone. Small numbers, for links of a byte per nanosecond.
    """
    b, length = GraphBuilder("uneven"), choose(4, 6)
    forward, backward = ((9, 1), (1, 9), (2, 9))[choose(0, 2)]
    others = choose(0, 2)  # whether backward nodes read every other activation, or any
    b.data("x", 1, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(length):
        b.data(f"a{i}", choose(3, 12))
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=choose(1, forward))
    b.loss("L", reads=[f"a{length - 1}"], writes=["t"], time=choose(0, backward))
    for i in reversed(range(length)):
        b.data(f"g{i}", choose(0, 2), Kind.GRADIENT if i else Kind.INPUT_GRAD)
        saved = ([f"a{i}"], [], [f"a{i - 1}" if i else "x"])[(i + length + 1) % 2 if others else choose(0, 2)]
        reads = [f"g{i + 1}" if i + 1 < length else "t", *saved]
        b.backward(f"B{i}", reads=reads, writes=[f"g{i}"], time=choose(0, backward), twin=f"F{i}")
    return b.build()


FAMILIES: Final[tuple[Family, ...]] = (
    chain, layered, branching, whatever, parallel, late, chain, layered, optional, whatever, parallel, legal_flat, late, long,
)  # fmt: skip
"""The families in the order in which checks cycle through them."""
