"""`make stacks`: every stack bare and within a budget; a table, JSON in build/bench, exit 1 where a row fails.

    python -m tests.stacks [--only Trainer] [--out build/bench/stacks.json]

With `--only`, rows of other stacks that are in the file are kept. Copied to docs/benchmarks/stacks.json, the file is what
`python -m tests.site.stacks` makes the page from.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import attrs

from tests.benchmarks.paper_rows import dates
from tests.models.operators import declare_torchvision_operators

PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "datasets", "lightning")


def main() -> int:
    """Run them, print the table."""
    declare_torchvision_operators()
    from tests.stacks.scripts import STACKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="stacks whose names hold this")
    parser.add_argument("--out", type=Path, default=Path("build/bench/stacks.json"))
    options = parser.parse_args()
    chosen = [stack for stack in STACKS if options.only in stack.name]
    names = [stack.name for stack in chosen]
    stored = json.loads(options.out.read_text()) if options.only and options.out.exists() else {"rows": []}
    rows = [row for row in stored["rows"] if row["stack"] not in names]
    print("| stack | type | planned | exact | within budget | planned once | s | |\n|---|---|---|---|---|---|---|---|")
    for stack in chosen:
        for kind in stack.types:
            rows.append(run(stack, kind))
            print(line_of(rows[-1]), flush=True)
    order = [stack.name for stack in STACKS]
    rows.sort(key=lambda row: order.index(row["stack"]))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(conditions(stored.get("date")) | {"rows": rows}, indent=1) + "\n")
    return int(any("missing" not in row and not row.get("good") for row in rows))


def run(stack: Any, kind: str) -> dict[str, Any]:
    """A row."""
    from tests.stacks.processes import row_of

    named = {"stack": stack.name, "type": kind}
    if stack.missing:
        return named | {"missing": stack.missing}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            row = row_of(stack, kind, Path(folder))
        except Exception as error:  # noqa: BLE001 - a row that fails is a row of the table
            traceback.print_exc()
            return named | {"failed": f"{type(error).__name__}: {error}".replace("\n", " ")}
    return named | {"seconds": round(time.perf_counter() - start, 1), "good": row.good, **attrs.asdict(row)}


def cells_of(row: dict[str, Any]) -> list[str]:
    """A row of the table, without its seconds."""
    names = [row["stack"], row["type"]]
    if "missing" in row:
        return [*names, "", "", "", "", f"not run: {', '.join(row['missing'])} not installed"]
    if "failed" in row:
        return [*names, "failed", "", "", "", row["failed"]]
    marks = (row["planned"], row["exact"], row["within"], row["plannings"] == row["expected"])
    return [*names, *("yes" if mark else "NO" for mark in marks), row["words"]]


def line_of(row: dict[str, Any]) -> str:
    """A row of the table that is printed."""
    *cells, words = cells_of(row)
    seconds = f"{row['seconds']:.0f}" if "seconds" in row else ""
    return f"| {' | '.join([*cells, seconds, words])} |"


def conditions(since: str | None) -> dict[str, Any]:
    """On what the rows were run, and when."""
    installed = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    return {
        "date": dates(since),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: importlib.metadata.version(name).partition("+")[0] for name in installed},
    }


if __name__ == "__main__":
    sys.exit(main())
