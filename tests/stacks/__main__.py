"""`make stacks`: every stack bare and within a budget; a table, JSON in build/bench, exit 1 where a row fails."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

import attrs

from tests.models.operators import declare_torchvision_operators


def main() -> int:
    """Run them, print the table."""
    declare_torchvision_operators()
    from tests.stacks.processes import row_of
    from tests.stacks.scripts import STACKS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="stacks whose names hold this")
    parser.add_argument("--out", default="build/bench/stacks.json")
    options = parser.parse_args()
    results, bad = [], 0
    print("| stack | type | planned | exact | within budget | planned once | s | |\n|---|---|---|---|---|---|---|---|")
    for stack in (stack for stack in STACKS if options.only in stack.name):
        if stack.missing:
            print(f"| {stack.name} | | | | | | | not run: {', '.join(stack.missing)} not installed |")
            continue
        for kind in stack.types:
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    row = row_of(stack, kind, Path(folder))
                except Exception as error:  # noqa: BLE001 - a row that fails is a row of the table
                    traceback.print_exc()
                    print(
                        f"| {stack.name} | {kind} | failed | | | | | {type(error).__name__}: {error} |".replace(
                            "\n", " "
                        )
                    )
                    bad += 1
                    continue
            seconds = time.perf_counter() - start
            marks = [row.planned, row.exact, row.within, row.plannings == row.expected]
            words = " | ".join("yes" if mark else "NO" for mark in marks)
            print(f"| {stack.name} | {kind} | {words} | {seconds:.0f} | {row.words} |", flush=True)
            results.append({"stack": stack.name, "type": kind, "seconds": seconds, **attrs.asdict(row)})
            bad += not row.good
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(json.dumps(results, indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
