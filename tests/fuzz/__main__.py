"""`make fuzz-wrap`: random modules, wrapped and judged; a table, JSON in build/bench, exit 1 on any failure.

Cases run in processes of their own, so that one that ends the interpreter is a failure and not the end. Verdicts are kept as they
come: a run that was stopped goes on where it stopped, unless the sources have changed since.

    python -m tests.fuzz [--seeds 0:500] [--anew] [--show SEED]
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

from tests.fuzz.judging import EXACT, FAILURES, INFEASIBLE, INTERNAL, REFUSED, Verdict, judge
from tests.fuzz.program import program
from tests.fuzz.writer import KINDS

LINES = Path("build/bench/fuzz_wrap.jsonl")
OUT = Path("build/bench/fuzz_wrap.json")
PATIENCE = 600.0
"""Longest wait for one case [s of wall time]."""
WORDS = (EXACT, REFUSED, INFEASIBLE, *FAILURES)


def fingerprint():
    """Of all sources that a verdict depends on."""
    files = [path for folder in ("remat", "tests/fuzz", "tests/exec") for path in sorted(Path(folder).rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def kept(mark):
    """Verdicts of a run that was stopped, by seed."""
    lines = LINES.read_text().splitlines() if LINES.exists() else []
    if not lines or json.loads(lines[0]) != {"sources": mark}:
        LINES.parent.mkdir(parents=True, exist_ok=True)
        LINES.write_text(json.dumps({"sources": mark}) + "\n")
        return {}
    verdicts = [Verdict(**json.loads(line)) for line in lines[1:]]
    return {verdict.seed: verdict for verdict in verdicts}


def keep(verdict):
    with LINES.open("a") as file:
        file.write(json.dumps(asdict(verdict)) + "\n")


def work(seeds):
    """Judge seeds one after another, in this process."""
    warnings.simplefilter("ignore")
    for seed in seeds:
        keep(judge(program(seed)))


def run(seeds, mark):
    """Judge seeds in processes of their own; verdicts by seed."""
    while missing := sorted(set(seeds) - kept(mark).keys()):
        before = len(kept(mark))
        told = len(seeds) - len(missing)
        print(f"{told} of {len(seeds)} judged", file=sys.stderr, flush=True)
        batch = ",".join(map(str, missing[:50]))
        worker = subprocess.Popen([sys.executable, "-m", "tests.fuzz", "--worker", batch], stderr=subprocess.DEVNULL)
        code = wait(worker)
        after = kept(mark)
        if code != 0:
            seed = min(set(missing) - after.keys())
            keep(Verdict(seed=seed, kind=program(seed).kind, word=INTERNAL, detail=f"the process ended with {code}"))
        elif len(after) == before:
            raise SystemExit("a worker judged nothing")
    return kept(mark)


def wait(worker):
    """The exit code of a worker, which is ended where a case takes too long."""
    size, since = LINES.stat().st_size, time.monotonic()
    while worker.poll() is None:
        time.sleep(0.2)
        if LINES.stat().st_size != size:
            size, since = LINES.stat().st_size, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            worker.kill()
            worker.wait()
            return "a time-out"
    return worker.returncode


def table(verdicts):
    """Counts by type and word."""
    counts = Counter((verdict.kind, verdict.word) for verdict in verdicts)
    words = [word for word in WORDS if any(counts[kind, word] for kind in KINDS) or word != "invalid"]
    rows = [f"{'type':10}" + "".join(f"{word:>16}" for word in words)]
    rows += [f"{kind:10}" + "".join(f"{counts[kind, word]:16}" for word in words) for kind in KINDS]
    rows += [f"{'all':10}" + "".join(f"{sum(counts[kind, word] for kind in KINDS):16}" for word in words)]
    return "\n".join(rows)


def tell(verdicts):
    """Print the table, why cases were refused, and each failure with its source."""
    print(table(verdicts))
    shares = [verdict.peak / verdict.budget for verdict in verdicts if verdict.word == EXACT]
    if shares:
        print(
            f"\nlargest measured peak: {max(shares):.4f} of the budget; {sum(v.seconds for v in verdicts):.0f} s of process time"
        )
    for word in (REFUSED, INFEASIBLE):
        reasons = Counter(verdict.detail.partition(" ")[0] for verdict in verdicts if verdict.word == word)
        for reason, count in reasons.most_common():
            print(f"{word} {count:4} {reason}")
    for verdict in verdicts:
        if verdict.word in FAILURES:
            print(f"\n== seed {verdict.seed}: {verdict.word}\n{verdict.detail}\n\n{program(verdict.seed).source}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:500", help="first:end")
    parser.add_argument("--anew", action="store_true", help="forget the verdicts of a run that was stopped")
    parser.add_argument("--show", type=int, help="print the source of a seed, judge it alone, and end")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker is not None:
        work([int(seed) for seed in chosen.worker.split(",")])
        return
    if chosen.show is not None:
        print(program(chosen.show).source)
        print(judge(program(chosen.show)))
        return
    if chosen.anew:
        LINES.unlink(missing_ok=True)
    first, _, end = chosen.seeds.partition(":")
    seeds = range(int(first), int(end))
    judged = run(seeds, fingerprint())
    verdicts = [judged[seed] for seed in seeds]
    tell(verdicts)
    OUT.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))
    sys.exit(any(verdict.word in FAILURES for verdict in verdicts))


if __name__ == "__main__":
    main()
