"""`remat records list`, `check` and `verify`: instances to compete on, the best known of each, and how a record is raised."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from remat.cli.arguments import kind_of, read
from remat.cli.words import say
from remat.errors import BadArgument, MalformedFile
from remat.ir import Graph, PlanFile, Schedule
from remat.proof.document import Proof
from remat.records.entry import Entry, author
from remat.records.judging import Judgement, Submission, enter, faults, judge
from remat.records.library import Library
from remat.records.table import documents, lines, ratio
from remat.units import format_bytes

FOLDER = Path("docs/benchmarks/instances")
"""Of the library, in a clone of the repository."""
LIBRARY = Annotated[Path, typer.Option("--library", help="Folder of the library.")]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NAMES = Annotated[list[str] | None, typer.Argument(help="Graphs of the library; all of them without a name.")]

group = typer.Typer(help="Instances to compete on: the best times and bounds known.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(group, name="records")


@group.callback()
def _records() -> None:
    """Instances to compete on: the best times and bounds known, each with a schedule or a proof that anyone can check."""


@group.command("list")
def list_records(names: NAMES = None, library: LIBRARY = FOLDER, as_json: AS_JSON = False) -> None:
    """Print the record table: times and bounds over the time without recomputation, and who found them."""
    chosen = Library(library)
    entries = [chosen.entry(name) for name in names or chosen.names]
    if as_json:
        say(json.dumps(documents(entries)))
        return
    for line in lines(entries):
        say(line)


@group.command("check")
def check_submission(
    instance: Annotated[str, typer.Argument(help="Graph of the library, or one budget of it: hf-bert/50.")],
    file: Annotated[Path, typer.Argument(help="Schedule or proof of that graph, in any form of this library.")],
    by: Annotated[str | None, typer.Option(help="Enter what is a record into the library under this name.")] = None,
    library: LIBRARY = FOLDER,
    as_json: AS_JSON = False,
) -> None:
    """Check FILE for INSTANCE: exit code 0 when it is a record, 3 when it is valid and no record, 1 and the broken rule else."""
    if by is not None:
        author(by)
    name, share = _instance(instance)
    chosen = Library(library)
    chosen.entry(name)  # a wrong name is told before a large file is read
    submission = judge(chosen, name, share, _submitted(file))
    if by is not None:
        enter(chosen, submission, by, datetime.date.today().isoformat())
    entered = by is not None and bool(submission.records)
    if as_json:
        say(json.dumps(_document(submission, entered)))
    else:
        _tell(submission, entered)
    if not submission.records:
        raise typer.Exit(3)


@group.command("verify")
def verify(names: NAMES = None, library: LIBRARY = FOLDER, as_json: AS_JSON = False) -> None:
    """Check the library: every schedule is replayed and every proof checked again; exit code 1 where a record does not hold."""
    chosen = Library(library)
    asked = tuple(names or chosen.names)
    entries = [entry for name in asked for entry in _readable(chosen, name)]
    wrong = [fault for name in asked for fault in faults(chosen, name)]
    plans = sum(instance.plan is not None for entry in entries for instance in entry.instances)
    bounds = sum(instance.bound is not None for entry in entries for instance in entry.instances)
    if as_json:
        say(json.dumps({"graphs": len(asked), "schedules": plans, "proofs": bounds, "faults": wrong}))
    else:
        for fault in wrong:
            say(fault)
        say(f"{len(asked)} graphs, {plans} schedules, {bounds} proofs, {len(wrong)} faults")
    if wrong:
        raise typer.Exit(1)


def _readable(library: Library, name: str) -> Iterator[Entry]:
    """The entry of a graph; none where its file is damaged, which is among the faults.

    Raises:
        BadArgument: R-INSTANCE; R-LIBRARY.
    """
    try:
        yield library.entry(name)
    except (MalformedFile, OSError):
        return


def _instance(text: str) -> tuple[str, int | None]:
    """A graph and a share, as `hf-bert/50`; no share: every instance that the submission holds for."""
    name, slash, share = text.partition("/")
    share = share.removesuffix("%").strip()
    if slash and not (share.isascii() and share.isdecimal() and len(share) < 4):
        raise BadArgument("R-INSTANCE", f"{text!r:.80} is no instance.", fix="write it like hf-bert/50.")
    return name, int(share) if slash else None


def _submitted(path: Path) -> Schedule | Proof:
    """The schedule or the proof of a file.

    Raises:
        BadArgument: C-KIND, when it holds something else. MalformedFile, ProofRefused: when it cannot be read.
    """
    try:
        content = read(path)
    except MalformedFile as error:
        if error.rule != "F-FORMAT":
            raise
        proof = Proof.load(path)
        if not (isinstance(proof.document, dict) and str(proof.document.get("format")).startswith("remat-proof/")):
            raise
        return proof
    if isinstance(content, (Graph, PlanFile)):
        what = f"{path} holds {kind_of(content)}, neither a schedule nor a proof."
        raise BadArgument("C-KIND", what, fix="submit what `remat solve -o` or `remat prove -o` writes.")
    return content


def _tell(submission: Submission, entered: bool) -> None:
    """Print a submission and what it is worth."""
    entry, cost = submission.entry, submission.cost
    if cost is None:
        assert isinstance(submission.evidence, Proof)
        say(f"proof      accepted: {submission.evidence.theorem}, up to {submission.evidence.budget} B")
    else:
        say(f"schedule   valid: {cost.time} ns, {ratio(cost.time, entry)} of no recomputation")
        say(f"peak       {cost.peak} B ({format_bytes(cost.peak)})")
    for judgement in submission.judgements:
        say(
            f"{judgement.instance.name:24} {'RECORD' if judgement.record else 'no record'}: {_compared(judgement, entry)}"
        )
    if entered:
        say(f"entered    {len(submission.records)} records; `remat records list {entry.name}` shows them")


def _compared(judgement: Judgement, entry: Entry) -> str:
    return f"{_value(judgement.value, entry)}, before {_value(judgement.previous, entry)}"


def _value(value: float | None, entry: Entry) -> str:
    if value is None:
        return "none"
    return "no schedule exists" if math.isinf(value) else f"{value:.0f} ns ({ratio(int(value), entry)})"


def _document(submission: Submission, entered: bool) -> dict[str, Any]:
    """A submission as JSON; a bound of null: no schedule exists."""
    cost = submission.cost
    return {
        "graph": submission.entry.name,
        "kind": "proof" if cost is None else "schedule",
        "peak": None if cost is None else cost.peak,
        "entered": entered,
        "instances": [
            {
                "instance": judgement.instance.name,
                "value": _plain(judgement.value),
                "previous": _plain(judgement.previous),
                "first": judgement.previous is None,
                "record": judgement.record,
            }
            for judgement in submission.judgements
        ],
    }


def _plain(value: float | None) -> int | None:
    return None if value is None or math.isinf(value) else int(value)
