"""The wide zoo (`make graphs`, then `make bench-plan FLAGS="--zoo wide"`): plan, bound and gap of architectures nobody tuned for.

    --half develop|report   one half; the hash of a name decides (`tests.models.catalogue.half_of`)
    --only NAMES            only these architectures
    --limit 300             seconds of wall time of a row's process; beyond it the row says so
    --print                 only what is there already

A row is an architecture at 70, 50, 35 or 25 % of its peak, or at the lowest budget found. Each runs in a process of its own and
is kept in build/bench/wide; rows whose sources and graph are unchanged are not run again. "min-cut" is the fastest of PyTorch's
own partitions that stays within the budget (`torch_partitions.py`), one process for all budgets of an architecture. Prints the
table, then for each half the bars; exits 1 when the half that is only reported misses one. All rows: build/bench/wide.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from remat.ir.json_document import write_whole
from tests.benchmarks.one_process import run_row
from tests.models.catalogue import HALVES, half_of

GRAPHS = Path("build/graphs")
OUT = Path("build/bench/wide")
SHARES = ("0.7", "0.5", "0.35", "0.25", "lowest")
SOURCES = ("remat/ir", "remat/algorithms", "tests/benchmarks/wide_row.py")
PARTITION_SOURCES = ("remat/ir", "tests/benchmarks/torch_partitions.py", "tests/benchmarks/partition_row.py")
PREFIXES = ("torch-", "hf-", "diffusers-", "timm-")
NEAR = 0.03
"""How near the lowest budget is to be to what is proved impossible, in parts of the peak."""

Row = dict[str, Any]


def sources(places: Iterable[str]) -> str:
    """A hash of what rows depend on besides their graph."""
    digest = hashlib.sha256()
    for source in map(Path, places):
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            digest.update(f"{path}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def row_of(graph: Path, share: str, key: str, args: argparse.Namespace) -> Row | None:
    """A row: what the same sources wrote for the same graph before, else from a new process; None: it is not there."""
    return kept(graph, share, key, args, ["tests.benchmarks.wide_row", str(graph), share])


def partitions_of(graph: Path, key: str, args: argparse.Namespace) -> list[list[Any]]:
    """PyTorch's partitions of a graph: solver, budget, peak and time; those that were made within the limit."""
    row = kept(graph, "partitions", key, args, ["tests.benchmarks.partition_row", str(graph)])
    return [] if row is None else row.get("partitions", [])


def kept(graph: Path, share: str, key: str, args: argparse.Namespace, command: list[str]) -> Row | None:
    """What a command wrote, now or before; it is given the path to write to."""
    name = graph.name.removesuffix(".json.gz")
    path = OUT / f"{name}-{share}.json"
    row: Row = json.loads(path.read_text()) if path.exists() else {}
    full = f"{key}-{hashlib.sha256(graph.read_bytes()).hexdigest()[:16]}"
    if args.print or row.get("key") == full:
        return row or None
    path.unlink(missing_ok=True)
    failure = run_row([*command, str(path)], path.with_suffix(".log"), args.limit)
    row = json.loads(path.read_text()) if path.exists() else {}
    row |= {"name": name, "half": half_of(name), "share": share, "key": full}
    row |= {} if failure is None else {"status": failure}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(row, indent=1))
    os.replace(part, path)
    return row


def fastest(partitions: Iterable[list[Any]], share: str) -> float | None:
    """Least time of the partitions that stay within a share of the peak; None: none does."""
    return min((time for _, _, peak, time in partitions if peak <= float(share)), default=None)


# -- showing ---------------------------------------------------------------------------------------------------------------


def number(value: object, digits: int = 4) -> str:
    """A number, words, or a dash."""
    return value if isinstance(value, str) else f"{value:.{digits}f}" if isinstance(value, float) else "-"


def line_of(row: Row) -> str:
    """A row for the terminal."""
    head = f"{row['name']} {row['share']}"
    if row["share"] == "lowest" and "lowest" in row:
        far = row["lowest"] - row["impossible"]
        cells = [f"found {number(row['lowest'], 3)}", f"impossible {number(row['impossible'], 3)}", f"apart {far:.3f}"]
        return " | ".join([head, number(row["time"]), *cells, number(row["plan_cpu"], 1), number(row["bound_cpu"], 1)])
    if "time" not in row:
        return f"{head} | {row['status']}"
    cells = [row["status"] if row["time"] is None else number(row["time"]), number(row["bound"]), number(row["gap"], 3)]
    cells += [number(row["captured_order"]), number(row["plan_cpu"], 1), number(row["bound_cpu"], 1)]
    return " | ".join([head, *cells, *(number(value, 3) for value in row["beside"].values())])


def missed(rows: Iterable[Row]) -> tuple[list[str], list[str]]:
    """What the rows say of the bars, and which of these are missed."""
    rows = list(rows)
    shares = [row for row in rows if row["share"] != "lowest" and row["status"] != "infeasible"]
    gaps = sorted(math.inf if row.get("gap") is None else row["gap"] for row in shares)
    lows = [row for row in rows if row["share"] == "lowest"]
    near = [row for row in lows if "lowest" in row and row["lowest"] - row["impossible"] <= NEAR]
    small = [row for row in rows if row["share"] != "lowest" and row.get("nodes", 0) <= 2000]
    quick = [row for row in small if max(row.get("plan_cpu", math.inf), row.get("bound_cpu", math.inf)) <= 10]
    slow = [row for row in small if max(row.get("plan_cpu", math.inf), row.get("bound_cpu", math.inf)) > 30]
    if not gaps:
        return ["no rows"], []
    bars = {
        f"median gap {statistics.median(gaps):.3f} %, at most .1 asked": statistics.median(gaps) <= 0.1,
        f"gap within 1 % on {sum(gap <= 1 for gap in gaps)} of {len(gaps)}, 9 of 10 asked": (
            sum(gap <= 1 for gap in gaps) >= 0.9 * len(gaps)
        ),
        f"plan and bound within 10 s of CPU each on {len(quick)} of {len(small)}, 9 of 10 asked": (
            len(quick) >= 0.9 * len(small)
        ),
        f"above 30 s on {len(slow)}, none asked": not slow,
        f"lowest budget within {NEAR} of a proved limit on {len(near)} of {len(lows)}, 3 of 4 asked": (
            len(near) >= 0.75 * len(lows)
        ),
    }
    return list(bars), [bar for bar, holds in bars.items() if not holds]


def main(args: argparse.Namespace) -> int:
    """Run the rows that are asked for, print them and the bars of each half."""
    chosen = args.only.split(",") if args.only else None
    paths = [path for path in sorted(GRAPHS.glob("*.json.gz")) if path.name.startswith(PREFIXES)]
    names = {path: path.name.removesuffix(".json.gz") for path in paths}
    paths = [path for path in paths if chosen is None or names[path] in chosen]
    paths = [path for path in paths if args.half in ("", half_of(names[path]))]
    if not paths:
        print(f"no graphs in {GRAPHS}: `make graphs` captures them.")
        return 1
    OUT.mkdir(parents=True, exist_ok=True)
    heads = "graph share | time | bound | gap % | captured order | plan s | bound s"
    print(heads, "per layer", "rotor", "dtr", "tw-remat", "min-cut", sep=" | ")
    key, partition_key, rows = sources(SOURCES), sources(PARTITION_SOURCES), []
    for path in paths:
        partitions = partitions_of(path, partition_key, args)
        for share in SHARES:
            row = row_of(path, share, key, args)
            if row is not None:
                rows.append(row)
                if "beside" in row:
                    row["beside"]["min-cut"] = fastest(partitions, share)
                print(line_of(row), flush=True)
    write_whole(OUT.with_suffix(".json"), json.dumps({"rows": rows}, indent=1).encode())
    code = 0
    for half in HALVES:
        lines, misses = missed(row for row in rows if row["half"] == half)
        print(f"{half}:", *lines, sep="\n  ")
        code |= half == "report" and bool(misses)
    return code
