"""`make bench-hiremate`: tables 2 and 3 and figures 5 and 6 of HiRemate's paper in kind, on graphs captured here.

    python -m tests.benchmarks.bench_hiremate [--only "table3 unet"] [--fresh]

* bars: `hiremate` on four captured steps at half their memory, and H-Partition of 100,000 nodes.
* table 3: sizes of the graphs, what H-Partition makes of them, and plans at half the memory.
* figure 5: H-ILP, TW-Remat, Rockmate and the best of them over budgets, on two sequential and two other networks.
* table 2: H-ILP on the hierarchy beside rk-Checkmate on the undivided graph.
* figure 6: encoder-decoders of 6 and 8 layers under partitions of several depths.

Rows go to docs/benchmarks/hiremate.json one by one: a run that was stopped goes on. `python -m tests.site.evidence` makes the
page. Exits 1 where a bar is missed: 30 CPU seconds for each of the four plans, 10 for the partition.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from attrs import evolve

from remat.algorithms import HIlp, HPartition, Problem, named, store_all_peak
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._search.auto import auto
from remat.ir import Cluster, Graph, GraphBuilder, Kind, cluster_classes, validate
from remat.ir.hierarchy import Condensed
from tests.benchmarks.bench_rockmate import plan as rockmate_plan
from tests.benchmarks.paper_rows import Row, Rows, as_published, cpu_clock, flags, graph_of, solved, told

BARS = {"gpt24": 30.0, "unet": 30.0, "encdec6": 30.0, "resnet101": 30.0}
"""CPU seconds of `hiremate` at half the memory."""
PARTITION = (100_000, 10.0)
"""Nodes, and CPU seconds of H-Partition."""
TABLE3 = ("gpt24", "gpt96", "unet", "mixer", "regnet", "resnet101", "encdec6", "encdec36", "fno", "uno")
PLANNED = ("gpt24", "unet", "mixer", "encdec6", "resnet101", "regnet", "fno", "uno", "gpt96", "encdec36")
"""The same, the small ones first."""
FIGURE5 = {"gpt24": True, "resnet101": True, "unet": False, "encdec6": False}
"""Its networks, and whether they are chains of blocks."""
SHARES = (80, 65, 50, 35)
TABLE2 = ("encdec2", "unet")
DEPTHS = {"encdec6": (40, 20, 10, 6), "encdec8": (40, 20, 10, 6)}
"""Of each model, how many nodes a group, and the top level, may have."""
SECONDS = 10.0
"""CPU seconds of a top level, where many budgets are planned."""

corrected: Any = named.hiremate.solver.solvers[0].solver  # type: ignore[attr-defined]
"""The hierarchy of `hiremate`: `Corrected(Condense(...), HIlp(...))`."""


@cache
def level(model: str, top: int = 30, lower: int = 20) -> tuple[Condensed, float]:
    """The top level of a model's hierarchy, with the CPU seconds of its options."""
    start = time.process_time()
    clock = cpu_clock().nested(2 * SECONDS)
    divided = evolve(corrected.levels, partition=HPartition(top=top, lower=lower))
    condensed, _ = divided.level(as_published(model), clock=clock)
    assert condensed is not None
    return condensed, round(time.process_time() - start, 2)


def h_ilp(model: str, share: float, top: int = 30, lower: int = 20) -> Row:
    """The plan of a top level at a budget, replayed on the flat graph."""
    condensed, seconds = level(model, top, lower)
    start, graph = time.process_time(), as_published(model)
    budget = int(store_all_peak(graph) * share / 100)
    schedule = corrected.of_level(condensed, budget, cpu_clock().nested(SECONDS)).schedule
    row: Row = {"time": None, "options seconds": seconds, "seconds": round(time.process_time() - start, 2)}
    return row if schedule is None else row | {"time": validate(graph, schedule, budget).time / graph.time}


def nested(groups: Sequence[Cluster], depth: int = 2) -> Iterator[tuple[int, Cluster]]:
    """All groups, with their depth; the top level counts as the first."""
    for group in groups:
        yield depth, group
        yield from nested(group.children, depth + 1)


def partition(model: str, top: int = 30, lower: int = 20) -> Row:
    """Parts (a) and (b) of table 3."""
    graph = as_published(model)
    start = time.process_time()
    divided = HPartition(top=top, lower=lower).partition(graph)
    seconds = round(time.process_time() - start, 3)
    groups = list(nested(divided))
    plain = graph.loss - sum(len(group) for group in divided)

    def own(group: Cluster) -> int:  # its nodes, a group inside counting one
        return len(group) - sum(len(child) for child in group.children) + len(group.children)

    return {
        "captured": len(graph_of(model)),
        "forward": graph.loss,
        "nodes": len(graph),
        "nodes and data": len(graph) + sum(bool(datum.writers) for datum in graph.data),
        "depth": max((depth for depth, _ in groups), default=1),
        "subgraphs": len(groups) + 1,
        "unique": len(set(cluster_classes(graph, [group for _, group in groups]))) + 1,
        "largest": max([len(divided) + plain, *(own(group) for _, group in groups)]),
        "seconds": seconds,
    }


def half(graph: Graph) -> Row:
    """The plan of `hiremate` at half the memory of keeping everything."""
    return solved(named.hiremate, graph, store_all_peak(graph) // 2)


def table3(model: str) -> Row:
    """Part (c), with the plan and the bound of the default planner beside it."""
    graph = as_published(model)
    row = half(graph) | {"peak GiB": store_all_peak(graph) / 2**30}
    outcome = auto.solve(Problem(graph=graph, budget=store_all_peak(graph) // 2), clock=cpu_clock().nested(10))
    bound = None if outcome.lower == IMPOSSIBLE else outcome.lower / graph.time
    return row | {"auto": None if outcome.cost is None else outcome.cost.time / graph.time, "bound": bound}


def figure5(model: str, share: float) -> Row:
    """A budget of a panel."""
    graph = as_published(model)
    row = {"H-ILP": h_ilp(model, share)}
    row["TW-Remat"] = solved(named.tw_remat.within(5), graph, int(store_all_peak(graph) * share / 100))
    if FIGURE5[model]:
        row["Rockmate"] = rockmate_plan(model, 20, int(store_all_peak(graph) * share / 100))
    return row


def table2(model: str, share: float) -> Row:
    """A row: the hierarchy beside the undivided graph, and the bound of any order."""
    graph = as_published(model)
    budget = int(store_all_peak(graph) * share / 100)
    problem = Problem(graph=graph, budget=budget)
    outcome = HIlp().within(20).solve(problem, clock=cpu_clock())
    bound = max([outcome.lower, *(found.value for found in outcome.class_bounds)])
    whole = None if outcome.cost is None else outcome.cost.time / graph.time
    return {"H-ILP": h_ilp(model, share), "rk-Checkmate": whole, "bound": bound / graph.time}


def figure6(model: str, size: int) -> Row:
    """A depth."""
    stats = partition(model, size, size)
    return {key: stats[key] for key in ("depth", "subgraphs", "unique", "largest")} | h_ilp(model, 50, size, size)


def residual(layers: int) -> Graph:
    """A network of residual layers with ten operators each in two branches: 20 nodes a layer and a loss."""
    b = GraphBuilder("residual")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 4, Kind.TANGENT)
    b.data("g.x", 0, Kind.INPUT_GRAD)
    nodes: list[tuple[str, list[str]]] = []

    def operator(name: str, *reads: str, size: int = 64) -> str:
        b.data(name, size)
        b.forward(f"F.{name}", reads=reads, writes=[name], time=10)
        nodes.append((name, list(reads)))
        return name

    last = "x"
    for i in range(layers):
        first = operator(f"norm{i}", last)
        left = operator(f"score{i}", operator(f"query{i}", first), operator(f"key{i}", first), size=256)
        out = operator(f"out{i}", operator(f"attend{i}", left, operator(f"value{i}", first)))
        middle = operator(f"add{i}", *((out,) if last == "x" else (out, last)))
        last = operator(f"end{i}", operator(f"feed{i}", middle, size=256), middle)
    b.loss("loss", reads=[last], writes=["t"], time=1)
    for name, _ in nodes[:-1]:
        b.data(f"g.{name}", 64, Kind.GRADIENT)
    for name, reads in reversed(nodes):
        gradient = "t" if name == last else f"g.{name}"
        b.backward(
            f"B.{name}", reads=[gradient, name], writes=[f"g.{read}" for read in reads], time=20, twin=f"F.{name}"
        )
    return b.build()


def large_partition() -> Row:
    """H-Partition of 100,000 nodes."""
    graph = residual(PARTITION[0] // 20)
    start = time.process_time()
    groups = list(nested(HPartition().partition(graph)))
    seconds = round(time.process_time() - start, 2)
    return {"nodes": len(graph), "groups": len(groups), "depth": max(depth for depth, _ in groups), "seconds": seconds}


def missed(rows: dict[str, Row]) -> list[str]:
    """The bars that stored rows miss."""
    bars = {f"bar {model}": asked for model, asked in BARS.items()} | {"partition large": PARTITION[1]}
    late = {key: asked for key, asked in bars.items() if key in rows and rows[key]["seconds"] > asked}
    lines = [f"{key}: {rows[key]['seconds']} s of {asked:g}" for key, asked in late.items()]
    return lines + [f"{key}: no plan" for key in bars if "time" in rows.get(key, {}) and rows[key]["time"] is None]


def main() -> int:
    """Measure what is missing."""
    given = flags(__doc__).parse_args()
    rows = Rows("hiremate", fresh=given.fresh, only=given.only)
    rows.add(
        "warm", lambda: solved(named.hiremate, as_published("gpt2"), store_all_peak(as_published("gpt2")) * 4 // 5)
    )
    rows.add("partition large", large_partition)
    for model in BARS:
        rows.add(
            f"bar {model}",
            lambda model=model: solved(named.hiremate, graph_of(model), store_all_peak(graph_of(model)) // 2),
        )
    for model in TABLE3:
        rows.add(f"partition {model}", lambda model=model: partition(model))
    for model in PLANNED:
        rows.add(f"table3 {model}", lambda model=model: table3(model))
    for model in FIGURE5:
        for share in SHARES:
            rows.add(f"fig5 {model} {share}", lambda model=model, share=share: figure5(model, share))
    for model, sizes in DEPTHS.items():
        for size in sizes:
            rows.add(f"fig6 {model} {size}", lambda model=model, size=size: figure6(model, size))
    for model in TABLE2:
        for share in SHARES:
            rows.add(f"table2 {model} {share}", lambda model=model, share=share: table2(model, share))
    return told(missed(rows.rows))


if __name__ == "__main__":
    sys.exit(main())
