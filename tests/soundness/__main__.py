"""`make fuzz`: random legal graphs, every solver judged; a table, JSON in build/bench, exit 1 on any fault.

Graphs are judged in processes of their own, so that one that ends the interpreter is a fault and not the end. Verdicts are kept
as they come: a run that was stopped goes on where it stopped, unless the sources have changed since.

    python -m tests.soundness [--seeds 0:20000] [--processes 2] [--anew] [--show SEED]
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

from attrs import asdict

from tests.soundness.judging import CRASH, FAULTS, Verdict, graph_of, judge, told
from tests.soundness.solvers import every

LINES = Path("build/bench/fuzz.jsonl")
OUT = Path("build/bench/fuzz.json")
BATCH = 200
"""Graphs of one process."""
PATIENCE = 600.0
"""Longest wait for one graph [s of wall time]."""


def fingerprint():
    """Of all sources that a verdict depends on."""
    folders = ("remat/ir", "remat/algorithms", "remat/testing", "tests/soundness")
    files = [path for folder in folders for path in sorted(Path(folder).rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


class Kept:
    """Verdicts of a run, by seed, as its workers write them down; of a run that was stopped too, with the same sources."""

    def __init__(self, mark):
        self.verdicts, self.read = {}, 0
        head = json.dumps({"sources": mark}) + "\n"
        if not LINES.exists() or not LINES.read_text().startswith(head):
            LINES.parent.mkdir(parents=True, exist_ok=True)
            LINES.write_text(head)
        elif not LINES.read_bytes().endswith(b"\n"):
            keep_line("")  # a line that was cut off stays alone, and its graph is judged again
        self.read = len(head)

    def refresh(self):
        """Read what was written since."""
        with LINES.open("rb") as file:
            file.seek(self.read)
            whole = file.read().rpartition(b"\n")[0]
        self.read += len(whole)
        for line in whole.decode().splitlines():
            if line.endswith("}"):
                verdict = Verdict(**json.loads(line))
                self.verdicts[verdict.seed] = verdict
        return self.verdicts


def keep_line(text):
    with LINES.open("a") as file:
        file.write(text + "\n")


def keep(verdict):
    keep_line(json.dumps(asdict(verdict)))


def work(seeds):
    """Judge seeds one after another, in this process."""
    warnings.simplefilter("ignore")
    solvers = every()
    for seed in seeds:
        keep(judge(seed, solvers))


class Worker:
    """A process that judges a batch of seeds."""

    def __init__(self, seeds):
        self.seeds = seeds
        command = [sys.executable, "-m", "tests.soundness", "--worker", ",".join(map(str, seeds))]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.judged, self.since = 0, time.monotonic()

    def ended(self, verdicts):
        """How it ended, or None while it works; it is ended where a graph takes too long."""
        judged = len(verdicts.keys() & set(self.seeds))
        if judged != self.judged:
            self.judged, self.since = judged, time.monotonic()
        if time.monotonic() - self.since > PATIENCE:
            self.process.kill()
            self.process.wait()
            return "a time-out"
        return self.process.poll()


def run(seeds, mark, processes):
    """Judge seeds in so many processes; verdicts by seed."""
    kept, workers = Kept(mark), []
    while True:
        for worker in list(workers):
            end = worker.ended(kept.refresh())
            if end is None:
                continue
            workers.remove(worker)
            left = sorted(set(worker.seeds) - kept.refresh().keys())
            if left:
                keep(Verdict(seed=left[0], faults=[["?", 0, CRASH, f"the process ended with {end}"]]))
        busy = {seed for worker in workers for seed in worker.seeds}
        missing = sorted(set(seeds) - kept.refresh().keys() - busy)
        if not missing and not workers:
            return kept.verdicts
        while missing and len(workers) < processes:
            size = max(1, min(BATCH, len(missing) // processes))
            workers.append(Worker(missing[:size]))
            del missing[:size]
            print(f"{len(seeds) - len(missing)} of {len(seeds)} begun", file=sys.stderr, flush=True)
        time.sleep(1.0)


def table(verdicts):
    """Graphs and problems put to each solver, and its faults by word."""
    graphs, problems, faults = Counter(), Counter(), Counter()
    for verdict in verdicts:
        graphs.update(verdict.asked.keys())
        problems.update(verdict.asked)
        faults.update((fault[0], fault[2]) for fault in verdict.faults)
    names = sorted({*problems, *(name for name, _ in faults)})
    rows = [f"{'solver':24}{'graphs':>8}{'problems':>10}" + "".join(f"{word:>19}" for word in FAULTS)]
    for name in names:
        rows.append(
            f"{name:24}{graphs[name]:8}{problems[name]:10}" + "".join(f"{faults[name, word]:19}" for word in FAULTS)
        )
    return "\n".join(rows)


def tell(verdicts):
    """Print the table, the share of refused graphs, and each fault (the first of each solver and word with its graph)."""
    print(table(verdicts))
    refused = Counter(verdict.refused for verdict in verdicts if verdict.refused)
    share = refused.total() / len(verdicts)
    several = sum(verdict.points > 1 for verdict in verdicts)
    seconds = sum(verdict.seconds for verdict in verdicts)
    print(f"\n{len(verdicts)} graphs, {several} of them with several optima; {seconds:.0f} s of process time")
    print(f"refused by a rule of graphs: {share:.2%} {dict(refused) or ''}")
    seen = set()
    for verdict in verdicts:
        for name, budget, word, detail in verdict.faults:
            if (name, word) not in seen:
                seen.add((name, word))
                print(f"\n== seed {verdict.seed}: {name} at {budget} B: {word}\n{detail}\n\n{told(verdict.seed)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:20000", help="first:end")
    parser.add_argument("--processes", type=int, default=2, help="judging at a time")
    parser.add_argument("--anew", action="store_true", help="forget the verdicts of a run that was stopped")
    parser.add_argument("--show", type=int, help="print the graph of a seed, judge it alone, and end")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker is not None:
        work([int(seed) for seed in chosen.worker.split(",")])
        return
    if chosen.show is not None:
        graph_of(chosen.show)
        print(told(chosen.show))
        print(judge(chosen.show))
        return
    if chosen.anew:
        LINES.unlink(missing_ok=True)
    first, _, end = chosen.seeds.partition(":")
    seeds = range(int(first), int(end))
    every()  # what is wrong with the solvers themselves is told here, not by each process
    judged = run(seeds, fingerprint(), chosen.processes)
    verdicts = [judged[seed] for seed in seeds]
    tell(verdicts)
    OUT.write_text(json.dumps([asdict(verdict) for verdict in verdicts]))
    sys.exit(any(verdict.faults for verdict in verdicts))


if __name__ == "__main__":
    main()
