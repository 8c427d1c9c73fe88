"""Random joint graphs of a few nodes, small enough for the oracle: what the default planner is compared on."""

from __future__ import annotations

import random

from remat.ir import Graph, GraphBuilder, Kind


def tiny_graph(rng: random.Random, forward: int, summed: bool) -> Graph:
    """A random joint graph: each forward node reads one or two earlier data, each backward what its twin read or made.

    With `summed`, a gradient that comes from several nodes is one datum with several writers; without, as in captured graphs,
    every contribution is a datum of its own and additional nodes add them up.
    """
    b = GraphBuilder("tiny")
    b.data("t", rng.randint(0, 4), Kind.TANGENT)
    readers: dict[int, list[int]] = {i: [] for i in range(forward)}
    reads: list[list[int]] = []
    for i in range(forward):
        picked = sorted(set(rng.sample(range(i), min(i, rng.choice((1, 1, 2)))))) if i else []
        if i and i - 1 not in picked and rng.random() < 0.7:
            picked = sorted({*picked[:1], i - 1})
        reads.append(picked)
        for j in picked:
            readers[j].append(i)
        b.data(f"a{i}", rng.randint(1, 8))
        own = {"time": rng.randint(1, 9), "workspace": rng.choice((0, 0, rng.randint(0, 4)))}
        b.forward(f"F{i}", reads=[f"a{j}" for j in picked], writes=[f"a{i}"], **own)
    ends = [i for i in range(forward) if not readers[i]]
    b.loss("L", reads=[f"a{i}" for i in ends], writes=["t"], time=rng.randint(1, 3))
    size = {i: rng.randint(1, 8) for i in range(forward)}
    for i in range(forward):
        b.data(f"w{i}", rng.randint(1, 2), Kind.PARAM_GRAD)
        for name in _gradient_names(i, readers[i], summed):
            b.data(name, size[i], Kind.GRADIENT)
    for i in reversed(range(forward)):
        _add_up(b, i, readers[i], summed, rng)
        saved = [f"a{j}" for j in reads[i] if rng.random() < 0.8] + ([f"a{i}"] if rng.random() < 0.5 else [])
        b.backward(
            f"B{i}",
            reads=["t" if i in ends else _gradient_names(i, readers[i], summed)[-1], *saved],
            writes=[f"w{i}"] + [_contribution(j, i, readers[j], summed) for j in reads[i]],
            time=rng.randint(1, 9),
            workspace=rng.choice((0, 0, rng.randint(0, 4))),
        )
    return b.build()


def _contribution(j: int, reader: int, readers: list[int], summed: bool) -> str:
    return f"g{j}" if summed or len(readers) == 1 else f"g{j}.{reader}"


def _gradient_names(j: int, readers: list[int], summed: bool) -> list[str]:
    """The data that lead to the gradient of `a<j>`, the whole gradient last."""
    if not readers:
        return []
    if summed or len(readers) == 1:
        return [f"g{j}"]
    sums = [f"g{j}+{n}" for n in range(1, len(readers) - 1)]
    return [_contribution(j, reader, readers, summed) for reader in readers] + sums + [f"g{j}"]


def _add_up(b: GraphBuilder, j: int, readers: list[int], summed: bool, rng: random.Random) -> None:
    """Nodes that add up the contributions, those of later forward nodes first."""
    if summed or len(readers) < 2:
        return
    first, *others = reversed(readers)
    so_far = _contribution(j, first, readers, summed)
    for n, reader in enumerate(others, start=1):
        whole = f"g{j}" if n == len(others) else f"g{j}+{n}"
        b.backward(
            f"A{j}.{n}",
            reads=[so_far, _contribution(j, reader, readers, summed)],
            writes=[whole],
            time=rng.randint(1, 3),
        )
        so_far = whole
