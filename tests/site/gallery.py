"""`make gallery` (`python -m tests.site.gallery`): pictures and pages of docs/gallery, from the library of instances.

    --within 3     CPU seconds of planning for each budget that the library does not have
    --only NAMES   plan only these, separated by commas
    --draw         plan nothing: pictures and pages again from docs/gallery/curves.json

The curve of a model has the records of the library, and plans of the default planner at further budgets. What is planned goes
into curves.json model by model, so that a run that was stopped goes on; a model whose graph has changed is planned again.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from remat.algorithms import IMPOSSIBLE, Clock, Problem, auto
from remat.ir import Graph
from remat.ir.json_document import write_whole
from remat.records.entry import Entry, Instance
from remat.records.library import Library
from remat.units import format_bytes, format_ns
from remat.viz.curve import Mark, draw_curve
from tests.site.gallery_models import GROUPS, PIECES, Piece

ROOT = Path(__file__).parent.parent.parent
LIBRARY = Library(ROOT / "docs" / "benchmarks" / "instances")
FOLDER = ROOT / "docs" / "gallery"
CURVES = FOLDER / "curves.json"
FURTHER = (85, 60, 42, 30)
"""Budgets besides those of the library, in per cent of the peak of keeping everything."""
INSTANCES = "docs/benchmarks/instances"

Point = dict[str, Any]


# -- planning ----------------------------------------------------------------------------------------------------------


def planned(graph: Graph, share: int, peak: int, seconds: float) -> Point:
    """A plan and a bound of the default planner at a share."""
    problem = Problem(graph=graph, budget=peak * share // 100)
    outcome = auto.solve(problem, clock=Clock(seconds=seconds, now=time.process_time))
    lower = None if outcome.lower == IMPOSSIBLE else int(outcome.lower)
    return {"share": share, "time": None if outcome.cost is None else outcome.cost.time, "lower": lower}


def recorded(instance: Instance) -> Point:
    """The record at an instance, with the larger of its bounds."""
    bounds = [record.value for record in (instance.bound, instance.claim) if record is not None]
    lower = max(bounds, default=0)
    plan = None if instance.plan is None else instance.plan.time
    return {"share": instance.share, "time": plan, "lower": None if math.isinf(lower) else int(lower)}


def curve_of(entry: Entry, earlier: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The curve of a graph: its records, and what is planned at further budgets unless that was done before."""
    further = earlier.get("further", [])
    if earlier.get("digest") != entry.digest or [point["share"] for point in further] != list(FURTHER):
        graph = LIBRARY.graph(entry)
        further = [planned(graph, share, entry.peak, seconds) for share in FURTHER]
    points = sorted([*further, *map(recorded, entry.instances)], key=lambda point: point["share"])
    plans = [instance.share for instance in entry.instances if instance.plan is not None]
    facts = {"digest": entry.digest, "nodes": entry.nodes, "time": entry.time, "peak": entry.peak, "plan": min(plans)}
    return facts | {"further": further, "points": joined(points)}


def joined(points: list[Point]) -> list[Point]:
    """Points by rising budget: a plan serves every larger budget too, and a bound every smaller one."""
    best, lower, forward, backward = math.inf, 0.0, [], []
    for point in points:
        best = min(best, math.inf if point["time"] is None else point["time"])
        forward.append(point | {"time": None if math.isinf(best) else best})
    for point in reversed(forward):
        lower = max(lower, math.inf if point["lower"] is None else point["lower"])
        backward.append(point | {"lower": None if math.isinf(lower) else int(lower)})
    return backward[::-1]


# -- pictures and pages ------------------------------------------------------------------------------------------------


def draw(name: str, piece: Piece, curve: dict[str, Any]) -> None:
    """The picture of a curve."""
    marks = [
        Mark(
            budget=curve["peak"] * point["share"] // 100,
            time=point["time"],
            lower=math.inf if point["lower"] is None else point["lower"],
        )
        for point in curve["points"]
    ]
    marks.append(Mark(budget=curve["peak"], time=curve["time"], lower=curve["time"]))
    draw_curve(marks, FOLDER / f"{name}.svg", peak=curve["peak"], time=curve["time"], title=piece.title)


def at(curve: dict[str, Any], share: int) -> str:
    """Time at a share, in per cent above that of keeping everything, or what is known instead."""
    point = next(point for point in curve["points"] if point["share"] == share)
    if point["time"] is None:
        return "impossible" if point["lower"] is None else "no plan known"
    return f"+{point['time'] / curve['time'] - 1:.1%}".replace("%", " %")


def words_of(piece: Piece, curve: dict[str, Any]) -> str:
    """The picture in words, for who does not see it."""
    shares = ", ".join(f"{share} %: {at(curve, share)}" for share in (70, 50, 35, 25))
    return f"{piece.title}: extra step time over memory, with the bound below; {shares}"


def section(name: str, piece: Piece, curve: dict[str, Any]) -> str:
    """A model on its page."""
    graph, share = f"{INSTANCES}/{name}/graph.json.gz", curve["plan"]
    plan = f"{INSTANCES}/{name}/{share}.schedule.json.gz"
    return f"""## {piece.title}

{piece.about} {curve["nodes"]} nodes; keeping everything takes {format_bytes(curve["peak"])} and {format_ns(curve["time"])}.

**{piece.lesson}**

![{words_of(piece, curve)}]({name}.svg)

Plan file: [the schedule at {share} %](../benchmarks/instances/{name}/{share}.schedule.json.gz) of
[the graph](../benchmarks/instances/{name}/graph.json.gz).

```sh
remat sweep {graph} --budgets 85%:25%:7 --draw {name}.svg
remat solve {graph} --budget {share}% -o plan.json.gz
remat show {plan} --graph {graph} --memory memory.png
```
"""


def page(group: str, curves: dict[str, Any]) -> str:
    """The page of a group."""
    parts = [section(name, piece, curves[name]) for name, piece in PIECES[group].items()]
    return f"# {GROUPS[group]}\n\n{LEGEND}\n" + "\n".join(parts)


LEGEND = """Blue: the fastest plan known within so much memory. Red: no plan is faster, by a certified or claimed bound.
Grey: no plan exists. Costs are estimates for a V100; [the models and how to read a curve](README.md).
"""

INDEX = """# Gallery

{count} training steps, each with its curve of time over memory, a plan file, the command that makes it, and one line of what
to learn.

The graphs are those of [the library of instances](../benchmarks/records.md), captured without weights. **Times are estimates**
by the model of a V100, not measurements; `remat.exec.sweep` measures your model on your device
([many budgets](../how-to/many-budgets.md)). All of it is made by `make gallery`; the sentences are about the curves as they are
stored in [curves.json](curves.json).

How to read a curve: the blue staircase is the fastest plan known within so much memory; a plan serves every larger budget
too. The red staircase below it is a lower bound for every plan; where the two meet, the plan cannot be improved. Bounds are
certified or claimed; [the record table](../benchmarks/records.md) tells which. In the grey range no plan exists. The lower
axis has bytes, the upper one per cent of the memory of keeping everything.

Extra step time at 70, 50, 35 and 25 % of the memory:

| model | nodes | memory, everything kept | 70 % | 50 % | 35 % | 25 % |
|---|---|---|---|---|---|---|
"""


def index(curves: dict[str, Any]) -> str:
    """The first page."""
    lines = []
    for group, pieces in PIECES.items():
        lines.append(f"| **[{GROUPS[group]}]({group}.md)** | | | | | | |")
        for name, piece in pieces.items():
            curve = curves[name]
            cells = [
                str(curve["nodes"]),
                format_bytes(curve["peak"]),
                *(at(curve, share) for share in (70, 50, 35, 25)),
            ]
            lines.append(f"| [{piece.title}]({group}.md#{anchor(piece.title)}) | {' | '.join(cells)} |")
    return INDEX.format(count=sum(map(len, PIECES.values()))) + "\n".join(lines) + "\n"


def anchor(title: str) -> str:
    """The anchor of a heading, as Markdown makes it."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return "-".join(kept.split())


def pages(curves: dict[str, Any]) -> dict[Path, str]:
    """The text of each page of the gallery."""
    return {FOLDER / "README.md": index(curves)} | {FOLDER / f"{group}.md": page(group, curves) for group in GROUPS}


# -- the command -------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """Plan what is missing, draw, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--within", type=float, default=3.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--draw", action="store_true")
    given = parser.parse_args(arguments)
    curves = json.loads(CURVES.read_text()) if CURVES.exists() else {}
    pieces = {name: piece for group in PIECES.values() for name, piece in group.items()}
    only = set(given.only.split(",")) - {""}
    for name in pieces if not given.draw else ():
        if not only or name in only:
            curves[name] = curve_of(LIBRARY.entry(name), curves.get(name, {}), given.within)
            write_whole(CURVES, (json.dumps(curves, indent=1) + "\n").encode())
            print(name, " ".join(at(curves[name], share) for share in (70, 50, 35, 25)), flush=True)
    for name, piece in pieces.items():
        draw(name, piece, curves[name])
    for path, text in pages(curves).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
