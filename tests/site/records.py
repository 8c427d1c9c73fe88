"""`python -m tests.site.records`: writes docs/benchmarks/records.md from the library of instances."""

from collections import Counter
from pathlib import Path

from remat.records.library import Library
from remat.records.table import finders, markdown

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "benchmarks" / "instances"
PAGE = ROOT / "docs" / "benchmarks" / "records.md"

HEAD = """# Instances to compete on, and the records

{graphs} graphs of training steps, each at 70, 50, 35 and 25 % of the memory that keeping everything takes: {count}
instances. The graphs are of the [wide zoo](wide_zoo.md), with at most 2,000 nodes: transformers, convolutional,
recurrent and graph networks, derivatives in the loss, experts, diffusion models. Times and workspaces are by the model of a
V100, sizes are exact.

This page is made from the library, `docs/benchmarks/instances`, by `make records`. **Each record has its evidence beside
it**: a schedule that the [validator](../reference/rules.md) replays, a proof that [one file](../reference/proofs.md) checks.
`remat records verify` does both again for all of them.

## The table

Cells are the best known time and the largest *certified* lower bound, both over the time without recomputation; a bound in
brackets is larger and only *claimed* by a solver, without a proof. Bold: optimal, the proof meets the schedule.
*Impossible*: it is proved that no schedule fits. A schedule without copies that obeys [the rules](../reference/rules.md) in
any order of the nodes counts. Of the {count} instances, {statuses}.

"""

MIDDLE = """

Who found them:

"""

TAIL = """

## How to submit

Clone the repository; a graph of the library is `docs/benchmarks/instances/NAME/graph.json.gz` in the [documented
form](../reference/forms.md), and can be read without this library. Write a schedule in one of its forms, or a proof in the
form [`remat-proof/1`](../reference/proofs.md), with any program, and check it:

```sh
remat records list hf-bert                      # budgets in bytes, times, bounds, who found them
remat records check hf-bert/50 mine.json        # is it valid, and a record?
remat records check hf-bert mine.json --by "A. Name, university"   # enter it at every budget where it is one
remat records verify hf-bert                    # replay and check what the library holds
```

`check` exits with 0 for a record, 3 for what is valid and no record, and 1 with one message for anything else: the broken
rule of a schedule and the step, the place in a proof, a budget that is exceeded. A proof must hold for every schedule, not
for those in the captured order alone. A schedule is a record when it is faster than the one before it; a proof, when its
bound is larger. With `--by`, the records and their evidence (at most 256 KiB a file, zipped) are written into the folder of
the graph: propose the change of these files as a pull request, for which `remat records verify` and the tests run again.
With this library:

```sh
remat solve docs/benchmarks/instances/hf-bert/graph.json.gz --budget 50% --solver auto --seed 7 -o mine.json.gz
remat prove docs/benchmarks/instances/hf-bert/graph.json.gz --budget 50% --leaves 5000 -o proof.json.gz
```

`make records FLAGS="--again --within 60 --leaves 1000"` plans every instance again with more time, and enters what is
better.

## The form `remat-instances/1`

`NAME/instances.json` has a [JSON schema](../reference/instances.schema.json).

| key | |
|---|---|
| `name`, `origin` | of the graph, and how it was made |
| `digest` | fingerprint of the graph, [as in proofs](../reference/proofs.md); other versions of its packages may give another |
| `nodes`, `time`, `peak` | number of nodes; time of every node once [ns]; peak of keeping everything [bytes] |
| `instances` | by falling `share`, in per cent of the peak; `budget` [bytes] |
| … `plan` | `time` [ns], `peak` [bytes], `by`, `date`; the schedule is `NAME/SHARE.schedule.json.gz` |
| … `bound` | certified: `bound` [ns], null where no schedule exists, `by`, `date`; the proof is `NAME/SHARE.proof.json.gz` |
| … `claim` | a larger bound without a proof; only `make records` notes claims, and a schedule that refutes one deletes it |
"""

WORDS = {
    "optimal": "are solved to optimality",
    "impossible": "are proved impossible",
    "feasible": "have a schedule and a gap",
    "open": "have neither a schedule nor a proof that there is none",
}


def page(library: Library) -> str:
    """The text of the page."""
    entries = [library.entry(name) for name in library.names]
    statuses = Counter(instance.status for entry in entries for instance in entry.instances)
    words = ", ".join(f"{statuses[status]} {words}" for status, words in WORDS.items())
    head = HEAD.format(graphs=len(entries), count=statuses.total(), statuses=words)
    return head + "\n".join(markdown(entries)) + MIDDLE + "\n".join(finders(entries)) + TAIL


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(Library(FOLDER)), encoding="utf-8")


if __name__ == "__main__":
    main()
