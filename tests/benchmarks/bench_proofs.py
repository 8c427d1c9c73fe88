"""`make bench-proofs`: proofs of the bounds of the default planner, on every row of `make bench-plan`.

    python -m tests.benchmarks.bench_proofs [FILES …]    the captured graphs in tests/data, and FILES
    … --zoo NAMES      also these models of remat.zoo.large, captured without weights, e.g. gpt24,gpt96
    … --only NAMES     only graphs of these names
    … --budgets 0.5    only these shares of the peak

One solve a row, by `auto` with `proof=True`: what is claimed when the trees begin, what the checker says of the proof, its leaves
and bytes, CPU seconds to plan, to grow the trees, to write the proof (of a relaxed bound: all there is), and to check. A row has
integers where the claim is above what relaxed formulations prove. Writes build/bench/proofs.json; exits 1 on a missed bar.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import zlib

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.algorithms._search.auto import auto
from remat.algorithms._whole.baselines import store_all_peak
from remat.ir import Graph, read_joint_graph
from tests.benchmarks.bench_plan import BUDGETS, CAPTURED, graphs, shown, write

LOSS = 0.02
"""What a proof may lose against the claim [% of the time], on nine of ten rows with integers."""

TENTH, SHORT, LONG = 0.1, 2.0, 60.0
"""Checking takes at most this part of the planning, or so many seconds, and never more than `LONG`."""


def measured(name: str, graph: Graph, share: float) -> dict[str, object]:
    """One row."""
    problem = Problem(graph=graph, budget=int(store_all_peak(graph) * share))
    claims: dict[bool, float] = {True: graph.time, False: graph.time}  # by whether it is relaxed

    def hear(progress):
        if progress.note and not progress.note.startswith("a tree of"):
            relaxed = "relaxed" in progress.note or "floor" in progress.note
            claims[relaxed] = max(claims[relaxed], progress.bound)

    clock = Clock(now=time.process_time, listener=hear)
    start = time.process_time()
    outcome = auto.solve(problem, clock=clock, proof=True)
    total, grown = time.process_time() - start, clock.spent.get("proof", 0.0)
    start = time.process_time()
    proof = outcome.proof
    written = time.process_time() - start
    start = time.process_time()
    bound = proof.check(graph).bound
    checked = time.process_time() - start
    proved = IMPOSSIBLE if bound is None else bound
    claimed, text = max(claims.values()), proof.text.encode()
    lost = 0.0 if proved >= claimed else 100 * (claimed - proved) / graph.time
    row = {
        "graph": name,
        "share": share,
        "nodes": len(graph),
        "theorem": proof.theorem,
        "instants": len(proof.document.get("instants", [])),
        "integers": claims[False] > claims[True],
        "claimed": None if claimed == IMPOSSIBLE else claimed / graph.time,
        "proved": None if proved == IMPOSSIBLE else proved / graph.time,
        "lost": lost,
        "leaves": proof.leaves,
        "bytes": len(text),
        "compressed": len(zlib.compress(text)),
        "plan_cpu": total - grown,
        "grow_cpu": grown,
        "write_cpu": written,
        "check_cpu": checked,
    }
    slow = checked > LONG or checked > max(SHORT, TENTH * (total - grown))
    row["missed"] = ["check"] * slow + [f"{LOSS} %"] * (lost > LOSS)
    return row


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="graphs in the library's JSON form")
    parser.add_argument("--zoo", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--budgets", type=lambda text: [float(one) for one in text.split(",")], default=list(BUDGETS))
    args = parser.parse_args()
    warm = read_joint_graph(CAPTURED / "fno.json.gz")
    auto.solve(Problem(graph=warm, budget=int(store_all_peak(warm) * 0.7)))  # load the compiled kernels
    rows = []
    heads = ("theorem", "integers", "claimed", "proved", "lost %", "leaves", "bytes", "zlib", "plan s", "grow s")
    print("graph f", *heads, "write s", "check s", "missed", sep=" | ")
    for name, graph in graphs(args):
        for share in args.budgets:
            row = measured(name, graph, share)
            rows.append(row)
            bounds = [shown(row[key], 6) if row[key] is not None else "none exists" for key in ("claimed", "proved")]
            cells = [f"{row['theorem']} {row['instants']}", "yes" if row["integers"] else "no", *bounds]
            cells += [shown(row["lost"], 4), row["leaves"], row["bytes"], row["compressed"]]
            cells += [shown(row[f"{what}_cpu"], 2) for what in ("plan", "grow", "write", "check")]
            print(f"{name} {share}", *cells, ", ".join(row["missed"]) or "-", sep=" | ", flush=True)
            write("proofs", {"rows": rows})
    return summed_up(rows)


def summed_up(rows: list[dict[str, object]]) -> int:
    """What is asked of all rows together; 1 when it is missed."""
    whole = [row for row in rows if row["integers"]]
    near = [row for row in whole if row["lost"] <= LOSS]
    above = [row for row in whole if row["proved"] is None or row["proved"] > (row["claimed"] or math.inf)]
    slow = [row for row in rows if "check" in row["missed"]]
    exact = [row for row in rows if not row["integers"] and row["lost"] > 0]
    print(f"{len(near)} of {len(whole)} rows with integers lose at most {LOSS} %, {len(above)} are above the claim;")
    print(f"{len(slow)} rows are checked too slowly; {len(exact)} rows without integers lose something")
    print("not near:", json.dumps([f"{row['graph']} {row['share']}" for row in whole if row not in near]))
    return int(10 * len(near) < 9 * len(whole) or bool(slow) or bool(exact))


if __name__ == "__main__":
    sys.exit(main())
