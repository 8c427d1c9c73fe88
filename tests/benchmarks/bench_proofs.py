"""`make bench-proofs`: proofs of the bounds of the default planner, on every row of `make bench-plan`.

    python -m tests.benchmarks.bench_proofs [FILES …]    the captured graphs in tests/data, the zoo's, and FILES
    … --zoo NAMES      these models of remat.zoo.large instead of all in docs/benchmarks; from build/graphs
                       (`make graphs`), captured without weights where they are not there; "": none
    … --only NAMES     only graphs of these names
    … --budgets 0.5    only these shares of the peak
    … --pairs 2        pairs of runs by which it is measured what asking for a proof costs; 1 above 2,000 nodes; 0: not measured
    … --fresh          forget rows that the same sources measured before; else a run goes on where the last one stopped

A row has one solve by `auto` with `proof=True`: what is claimed when the trees begin, what the checker says of the proof, its
leaves and bytes, CPU seconds to plan, to grow the trees, to write the proof (of a relaxed bound: all there is), and to check. A
row has integers where the claim is above what relaxed formulations prove.

The last columns are what a proof of what `auto` computes anyway costs: `auto` that keeps no evidence ("bare"), and `auto` whose
`outcome.proof` is written and checked ("asked"), run in turn, the least CPU seconds of each; "proof" is the part of the second
that writes and checks. Writes build/bench/proofs.json; exits 1 on a missed bar.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from remat.algorithms._bounds import instants
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE, Outcome
from remat.algorithms._core.problem import Problem
from remat.algorithms._search import floor, single_instant, state
from remat.algorithms._search.auto import auto
from remat.algorithms._whole.baselines import store_all_peak
from remat.ir import Graph, dump, load, read_joint_graph
from remat.ir.json_document import write_whole
from tests.benchmarks.bench_plan import BUDGETS, CAPTURED, OUT, shown

ZOO = "gpt24,gpt96,encdec36,regnet,uno"
"""The rows of `make bench-plan` beside the captured graphs."""

GRAPHS, FILE = Path("build/graphs"), OUT / "proofs.json"

LOSS = 0.02
"""What a proof may lose against the claim [% of the time], on nine of ten rows with integers."""

TENTH, SHORT, LONG = 0.1, 2.0, 60.0
"""Checking takes at most this part of the planning, or so many seconds, and never more than `LONG`."""

ASKED, JUDGED = 0.1, 1.0
"""Asking for proofs takes at most this part of the planning of all rows together. To write and check a proof takes at most this
part of each row that plans so many CPU seconds; what is kept for it on the way is too little to be seen in one row."""

LARGE = 2_000
"""Nodes above which one pair of runs is enough."""

SOURCES = ("remat/ir", "remat/algorithms", "remat/proof", "tests/benchmarks/bench_proofs.py")


# -- graphs ------------------------------------------------------------------------------------------------------------


def graphs(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Graph]]]:
    """The graphs asked for, by name; they are read or captured when they are called for."""
    chosen = args.only.split(",") if args.only else None
    found: list[tuple[str, Callable[[], Graph]]] = [
        (path.name.split(".")[0], lambda path=path: read_joint_graph(path))
        for path in sorted(CAPTURED.glob("*.json.gz"))
    ]
    found += [(Path(path).name.split(".")[0], lambda path=path: load(path)) for path in args.files]
    found += [(name, lambda name=name: from_zoo(name)) for name in args.zoo.split(",") if name]
    yield from ((name, read) for name, read in found if chosen is None or name in chosen)


def from_zoo(name: str) -> Graph:
    """A model of the zoo, captured once."""
    path = GRAPHS / f"{name}.json.gz"
    if not path.exists():
        from remat.exec.weightless import capture_without_weights
        from remat.zoo import large

        GRAPHS.mkdir(parents=True, exist_ok=True)
        dump(capture_without_weights(getattr(large, name)).graph(), path)
    return load(path)


# -- a row -------------------------------------------------------------------------------------------------------------


def measured(name: str, graph: Graph, share: float, pairs: int) -> dict[str, object]:
    """One row."""
    problem = Problem(graph=graph, budget=int(store_all_peak(graph) * share))
    claims: dict[bool, float] = {True: graph.time, False: graph.time}  # by whether it is relaxed

    def hear(progress):
        if progress.note and not progress.note.startswith("a tree of"):
            relaxed = "relaxed" in progress.note or "floor" in progress.note
            claims[relaxed] = max(claims[relaxed], progress.bound)

    clock = Clock(now=time.process_time, listener=hear)
    total, outcome = timed(lambda: auto.solve(problem, clock=clock, proof=True))
    grown = clock.spent.get("proof", 0.0)
    written, proof = timed(lambda: outcome.proof)
    checked, verdict = timed(lambda: proof.check(graph))
    proved = IMPOSSIBLE if verdict.bound is None else verdict.bound
    claimed, text = max(claims.values()), proof.text.encode()
    row = {
        "graph": name,
        "share": share,
        "nodes": len(graph),
        "theorem": proof.theorem,
        "instants": len(proof.document.get("instants", [])),
        "integers": claims[False] > claims[True],
        "claimed": None if claimed == IMPOSSIBLE else claimed / graph.time,
        "proved": None if proved == IMPOSSIBLE else proved / graph.time,
        "lost": 0.0 if proved >= claimed else 100 * (claimed - proved) / graph.time,
        "leaves": proof.leaves,
        "bytes": len(text),
        "compressed": len(zlib.compress(text)),
        "plan_cpu": total - grown,
        "grow_cpu": grown,
        "write_cpu": written,
        "check_cpu": checked,
        **asked(problem, min(pairs, 1) if len(graph) > LARGE else pairs),
    }
    return row | {"missed": missed_by(row)}


def missed_by(row: dict[str, object]) -> list[str]:
    """The bars that a row misses."""
    checked, planned = row["check_cpu"], row["plan_cpu"]
    missed = ["check"] * (checked > LONG or checked > max(SHORT, TENTH * planned))
    missed += [f"{LOSS} %"] * (row["lost"] > LOSS)
    judged = row["bare_cpu"] is not None and row["bare_cpu"] >= JUDGED
    return missed + ["asked"] * (judged and row["proof_cpu"] > ASKED * row["bare_cpu"])


def timed(work):
    """CPU seconds of this process, and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def asked(problem: Problem, pairs: int) -> dict[str, float | None]:
    """CPU seconds of `auto` that keeps no evidence, and of `auto` with its proof, written and checked; run in turn."""
    seconds: dict[str, list[float]] = {"bare_cpu": [], "asked_cpu": [], "proof_cpu": []}
    for pair in range(pairs):
        for bare in (pair % 2 == 0, pair % 2 == 1):
            planned, outcome = timed(lambda bare=bare: without_evidence(problem) if bare else auto.solve(problem))
            proved, proof = timed(lambda outcome=outcome: outcome.proof)
            assert (proof is None) == bare
            seconds["bare_cpu" if bare else "asked_cpu"].append(planned + proved)
            seconds["proof_cpu"] += [] if bare else [proved]
    return {which: min(values, default=None) for which, values in seconds.items()}


def without_evidence(problem: Problem) -> Outcome:
    """The same planner without anything that it does for proofs."""

    def none(*_, **__):
        return None

    with ExitStack() as stack:
        for module, name in ((single_instant, "relaxed_evidence"), (floor, "Needs"), (state, "AllRun")):
            stack.enter_context(patch.object(module, name, none))
        stack.enter_context(patch.object(instants._Rows, "facts", lambda *_: []))
        return auto.solve(problem)


# -- the table ---------------------------------------------------------------------------------------------------------


def fingerprint() -> str:
    """What a row depends on."""
    digest = hashlib.sha256()
    for source in map(Path, SOURCES):
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            digest.update(f"{path}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def earlier(key: str) -> dict[tuple[str, float], dict[str, object]]:
    """Rows that the same sources measured before."""
    rows = json.loads(FILE.read_text())["rows"] if FILE.exists() else []
    return {(row["graph"], row["share"]): row for row in rows if row.get("key") == key}


def line_of(row: dict[str, object]) -> str:
    """A row of the table."""
    bounds = [shown(row[key], 6) if row[key] is not None else "none exists" for key in ("claimed", "proved")]
    cells = [f"{row['theorem']} {row['instants']}", "yes" if row["integers"] else "no", *bounds]
    cells += [shown(row["lost"], 4), row["leaves"], row["bytes"], row["compressed"]]
    cells += [shown(row[f"{what}_cpu"], 2) for what in ("plan", "grow", "write", "check", "bare", "asked", "proof")]
    return " | ".join(map(str, [f"{row['graph']} {row['share']}", *cells, ", ".join(row["missed"]) or "-"]))


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="graphs in the library's JSON form")
    parser.add_argument("--zoo", default=ZOO)
    parser.add_argument("--only", default="")
    parser.add_argument("--budgets", type=lambda text: [float(one) for one in text.split(",")], default=list(BUDGETS))
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--fresh", action="store_true")
    args = parser.parse_args()
    warm = read_joint_graph(CAPTURED / "fno.json.gz")
    auto.solve(Problem(graph=warm, budget=int(store_all_peak(warm) * 0.7)))  # load the compiled kernels
    key = f"{fingerprint()} {args.pairs}"
    known, rows = {} if args.fresh else earlier(key), []
    heads = ("theorem", "integers", "claimed", "proved", "lost %", "leaves", "bytes", "zlib", "plan s", "grow s")
    print("graph f", *heads, "write s", "check s", "bare s", "asked s", "proof s", "missed", sep=" | ")
    chosen = list(graphs(args))
    if not chosen:
        parser.error(f"no graph is called {args.only}")
    for name, read in chosen:
        graph = None
        for share in args.budgets:
            row = known.get((name, share))
            if row is None:
                graph = read() if graph is None else graph
                row = {"key": key, **measured(name, graph, share, args.pairs)}
                known[name, share] = row
                OUT.mkdir(parents=True, exist_ok=True)
                write_whole(FILE, json.dumps({"rows": list(known.values())}, indent=1).encode())
            rows.append(row)
            print(line_of(row), flush=True)
    return summed_up(rows)


def summed_up(rows: list[dict[str, object]]) -> int:
    """What is asked of all rows together; 1 when it is missed."""
    whole = [row for row in rows if row["integers"]]
    near = [row for row in whole if row["lost"] <= LOSS]
    above = [row for row in whole if (row["proved"] or math.inf) > (row["claimed"] or math.inf)]
    slow = [row for row in rows if "check" in row["missed"]]
    exact = [row for row in rows if not row["integers"] and row["lost"] > 0]
    print(f"{len(near)} of {len(whole)} rows with integers lose at most {LOSS} %, {len(above)} are above the claim;")
    print(f"{len(slow)} rows are checked too slowly; {len(exact)} rows without integers lose something")
    print("not near:", json.dumps([f"{row['graph']} {row['share']}" for row in whole if row not in near]))
    return int(10 * len(near) < 9 * len(whole) or bool(slow) or bool(exact) or dear(rows))


def dear(rows: list[dict[str, object]]) -> bool:
    """Whether asking for proofs of what is computed anyway costs too much, of all rows together or of one."""
    timed_rows = [row for row in rows if row["bare_cpu"] is not None]
    bare, with_proofs = (sum(row[key] for row in timed_rows) for key in ("bare_cpu", "asked_cpu"))
    if not timed_rows:
        return False
    print(
        f"asked for proofs, auto takes {bare:.2f} s without, {with_proofs:.2f} s with them: {with_proofs / bare - 1:+.1%}"
    )
    over = [f"{row['graph']} {row['share']}" for row in timed_rows if "asked" in row["missed"]]
    print(f"a proof takes more than {ASKED:.0%}, of rows that plan {JUDGED:g} s and longer:", json.dumps(over))
    return with_proofs > (1 + ASKED) * bare or bool(over)


if __name__ == "__main__":
    sys.exit(main())
