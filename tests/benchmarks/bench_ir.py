"""bench-ir: replay, canonical classes, reading and condensing of large graphs, in seconds of one core.

A table, JSON under `build/bench/`, exit 1 when a bar is missed. Times are process CPU time, the best of three.
"""

import json
import sys
import time
from pathlib import Path

from remat.ir import (
    Cluster,
    GraphBuilder,
    Kind,
    Schedule,
    cluster_classes,
    condense,
    dumps,
    expand,
    loads,
    node_classes,
    parse_text,
    print_text,
    validate,
)

OUT = Path("build/bench/ir.json")


def chain(nodes):
    """A chain of `nodes` nodes with two kinds of forward node, biases and one kept gradient per backward."""
    half = nodes // 2
    b = GraphBuilder("chain")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 4, Kind.TANGENT)
    for i in range(half):
        b.data(f"a{i}", 64 if i % 2 else 16)
        b.data(f"g{i}", 64)
        b.data(f"w{i}", 8, Kind.PARAM_GRAD)
    for i in range(half):
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x"], writes=[f"a{i}"], time=3 + i % 2, workspace=i % 2)
    b.loss("L", reads=[f"a{half - 1}"], writes=["t"], time=1)
    for i in reversed(range(half)):
        reads = [f"a{i - 1}" if i else "x", "t" if i == half - 1 else f"g{i + 1}"]
        b.backward(f"B{i}", reads=reads, writes=[f"g{i}", f"w{i}"], time=6, twin=f"F{i}")
    return b.build()


def of_length(graph, steps):
    """A schedule of just over so many steps: the whole forward is replayed until it is long enough."""
    half = graph.loss
    order = list(range(len(graph)))
    runs, times = order, 0
    schedule = Schedule.from_runs(graph, runs)
    while len(schedule.steps) < steps:
        times += 1
        runs = [*order[: half + 1], *(order[:half] * times), *order[half + 1 :]]
        schedule = Schedule.from_runs(graph, runs)
    return Schedule(schedule.steps)


def seconds(work):
    found = []
    for _ in range(3):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def sections(graph, size):
    half = graph.loss
    return [
        Cluster(
            name=f"c{i}",
            forward=tuple(f"F{j}" for j in range(i, min(half, i + size))),
            backward=tuple(f"B{j}" for j in reversed(range(i, min(half, i + size)))),
        )
        for i in range(0, half, size)
    ]


def measure():
    graph, large = chain(20_000), chain(100_000)
    schedule = of_length(graph, 100_000)
    text, lines = dumps(graph), print_text(graph)
    parts = sections(large, 10)
    large.readers_by_data, large.reads_by_node, large.writes_by_node  # noqa: B018 (cached views of the graph)
    level = condense(graph, sections(graph, 20))
    above = Schedule.from_runs(level.graph, range(len(level.graph)))
    rows = [
        (f"replay of {len(schedule.steps)} steps on 20,000 nodes", lambda: validate(graph, schedule), 1.0),
        ("the same under a budget", lambda: validate(graph, schedule, 1 << 40), 1.0),
        ("classes of 100,000 nodes", lambda: node_classes(large), 1.0),
        (f"classes of {len(parts)} clusters of them", lambda: cluster_classes(large, parts), 1.0),
        (f"JSON of 20,000 nodes read ({len(text) / 1e6:.1f} MB)", lambda: loads(text), 1.0),
        ("JSON of 20,000 nodes written", lambda: dumps(graph), None),
        ("text of 20,000 nodes read", lambda: parse_text(lines), None),
        ("drops of 100,000 steps placed", lambda: Schedule.from_runs(graph, schedule.runs), None),
        ("20,000 nodes condensed to 500 layers", lambda: condense(graph, sections(graph, 20)), None),
        ("their schedule expanded", lambda: expand(level, above), None),
    ]
    return [(what, seconds(work), bar) for what, work, bar in rows]


def main():
    found = measure()
    missed = [what for what, took, bar in found if bar is not None and took > bar]
    for what, took, bar in found:
        print(f"{what:52} {took:8.3f} s" + (f"   bar {bar:.1f} s" if bar else ""))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps([{"what": w, "seconds": t, "bar": b} for w, t, b in found], indent=1))
    for what in missed:
        print(f"missed: {what}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
