"""`make records`: the wide zoo as instances, planned by the default planner; what is a record is entered into the library.

    --only NAMES       only these graphs, separated by commas
    --within 6         CPU seconds of planning and bounding of an instance
    --leaves 0         grow proofs of claimed bounds to at most so many leaves, within the same seconds
    --seed 0           of the searches
    --again            plan again what was planned before

Graphs come from build/graphs (`make graphs`); one that is new and has at most 2,000 nodes is added, one that differs from the
library's is left alone and is an error. What was planned is kept in build/records, and an instance that is there is not planned
again. A plan or a proof is entered as any submission is: replayed, checked, and only where it is better. Bounds without a proof
are noted as claims. Writes docs/benchmarks/records.md in the end.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import remat
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.outcome import IMPOSSIBLE
from remat.algorithms._core.problem import Problem
from remat.algorithms._search.auto import auto
from remat.algorithms._search.warmup import warm_up
from remat.cli.records import FOLDER
from remat.ir import Graph, dump, load
from remat.proof.document import Proof
from remat.records.entry import BoundRecord, Entry, Instance
from remat.records.judging import claim, enter, judge
from remat.records.library import Library, fingerprint
from tests.models.catalogue import PREFIXES
from tests.site import records as page

GRAPHS, OUT = Path("build/graphs"), Path("build/records")
MOST_NODES = 2000
BY = f"remat {remat.__version__}, auto"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--within", type=float, default=6.0)
    parser.add_argument("--leaves", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args(arguments)
    only = set(given.only.split(",")) - {""}
    paths = [path for path in sorted(GRAPHS.glob("*.json.gz")) if path.name.partition("-")[0] in PREFIXES]
    chosen = {path.name.removesuffix(".json.gz"): path for path in paths}
    chosen = {name: path for name, path in chosen.items() if not only or name in only}
    if not chosen:
        print(f"no graphs of the wide zoo in {GRAPHS}: `make graphs` captures them.")
        return 1
    OUT.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    library, differing = Library(FOLDER), []
    for name, path in chosen.items():
        graph = load(path)
        assert isinstance(graph, Graph)
        if len(graph) > MOST_NODES:
            print(f"{name}: {len(graph)} nodes, left out")
        elif not filled(library, name, graph, given):
            differing.append(name)
    page.main()
    if differing:
        print(f"other graphs than the library's, left alone: {', '.join(differing)}")
    return bool(differing)


def filled(library: Library, name: str, graph: Graph, given: argparse.Namespace) -> bool:
    """Plan the instances of a graph and enter what is better; False: the library has another graph of that name."""
    present = {path.parent.name for path in library.folder.glob("*/instances.json")}
    entry = library.entry(name) if name in present else library.add(name, graph, origin(name))
    if entry.digest != fingerprint(graph):
        return False
    for instance in entry.instances:
        stem = OUT / f"{name}-{instance.share}"
        facts = stem.with_suffix(".json")
        if given.again or not facts.exists():
            planned(graph, instance, stem, given)
        records = entered(library, instance, stem, json.loads(facts.read_text()))
        print(f"{instance.name:36} {' '.join(records) or 'no record'}", flush=True)
    return True


def origin(name: str) -> str:
    """How a graph of the wide zoo was made."""
    packages = dict.fromkeys(("torch", PREFIXES[name.partition("-")[0]]))
    versions = ", ".join(f"{package} {version(package).partition('+')[0]}" for package in packages)
    return f"make graphs; {versions}; costs by the model of a V100"


def planned(graph: Graph, instance: Instance, stem: Path, given: argparse.Namespace) -> None:
    """Plan an instance; its schedule, its proof and what is claimed go into files."""
    warm_up()
    problem = Problem(graph=graph, budget=instance.budget, **({"proof_leaves": given.leaves} if given.leaves else {}))
    clock = Clock(seconds=given.within, now=time.process_time)
    outcome = auto.solve(problem, clock=clock, seed=given.seed, proof=given.leaves > 0)
    for kind in ("schedule", "proof"):
        evidence_of(stem, kind).unlink(missing_ok=True)
    if outcome.schedule is not None:
        dump(outcome.schedule, evidence_of(stem, "schedule"))
    if outcome.proof is not None:
        outcome.proof.dump(evidence_of(stem, "proof"))
    lower = None if outcome.lower == IMPOSSIBLE else int(outcome.lower)
    stem.with_suffix(".json").write_text(json.dumps({"lower": lower, "word": outcome.word}))


def entered(library: Library, instance: Instance, stem: Path, facts: dict[str, Any]) -> list[str]:
    """Submit what was planned at an instance; the records that it made, in words."""
    today, records = datetime.date.today().isoformat(), []
    for kind in ("schedule", "proof"):
        path = evidence_of(stem, kind)
        if path.exists():
            evidence = Proof.load(path) if kind == "proof" else load(path)
            assert not isinstance(evidence, Graph)
            submission = judge(library, instance.graph, None, evidence)
            enter(library, submission, BY, today)
            records += [f"{kind} {judgement.instance.share}" for judgement in submission.records]
    before = library.entry(instance.graph)
    if facts["word"] == "claimed" and after_claim(library, instance, facts["lower"], today) != before:
        records.append("claim")
    return records


def after_claim(library: Library, instance: Instance, bound: int | None, today: str) -> Entry:
    """The entry with a claimed bound noted, where it is above what is certified and claimed."""
    return claim(library, instance.graph, instance.share, BoundRecord(bound=bound, by=BY, date=today))


def evidence_of(stem: Path, kind: str) -> Path:
    """The file of a schedule or a proof that was planned."""
    return stem.with_name(f"{stem.name}.{kind}.json.gz")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
