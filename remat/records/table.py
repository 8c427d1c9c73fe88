"""The record table: rows for people, for programs, and for the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from remat.records.entry import BoundRecord, Entry, Instance, entry_to_json

COLUMNS = ("instance", "budget B", "time", "certified", "gap", "claimed", "status", "found by", "bound by")


def rows(entries: Iterable[Entry]) -> Iterator[tuple[str, ...]]:
    """A row of texts for each instance, as in `COLUMNS`; times and bounds over the time without recomputation."""
    for entry in entries:
        for instance in entry.instances:
            yield (
                instance.name,
                str(instance.budget),
                "-" if instance.plan is None else ratio(instance.plan.time, entry),
                _bound(instance.bound, entry),
                "-" if instance.gap is None else f"{instance.gap:.3%}",
                _bound(instance.claim, entry),
                instance.status,
                "-" if instance.plan is None else f"{instance.plan.by}, {instance.plan.date}",
                "-" if instance.bound is None else f"{instance.bound.by}, {instance.bound.date}",
            )


def lines(entries: Iterable[Entry]) -> list[str]:
    """The table for a terminal, in columns."""
    table = [COLUMNS, *rows(entries)]
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def documents(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """The entries as JSON documents, each instance with its status and its gap."""
    return [_with_status(entry) for entry in entries]


def _with_status(entry: Entry) -> dict[str, Any]:
    document = entry_to_json(entry)
    for instance, fields in zip(entry.instances, document["instances"], strict=True):
        fields |= {"status": instance.status, "gap": instance.gap}
    return document


def markdown(entries: Iterable[Entry]) -> list[str]:
    """The table for the documentation: a row for each graph, a column for each budget, links to the graphs."""
    lines = ["| graph | nodes | 70 % | 50 % | 35 % | 25 % |", "|---|---|---|---|---|---|"]
    for entry in entries:
        cells = [_cell(entry, instance) for instance in entry.instances]
        lines.append(f"| [{entry.name}](instances/{entry.name}/graph.json.gz) | {entry.nodes} | {' | '.join(cells)} |")
    return lines


def finders(entries: Iterable[Entry]) -> list[str]:
    """Who holds how many records, as rows of a table: times, then certified bounds, then claims."""
    instances = [instance for entry in entries for instance in entry.instances]
    kinds = [
        Counter((record.by, record.date) for record in records if record is not None)
        for records in (
            [instance.plan for instance in instances],
            [instance.bound for instance in instances],
            [instance.claim for instance in instances],
        )
    ]
    names = sorted({name for kind in kinds for name in kind})
    counts = (" | ".join(str(kind[name]) for kind in kinds) for name in names)
    head = ["| found by | date | times | certified bounds | claimed bounds |", "|---|---|---|---|---|"]
    return head + [f"| {by} | {date} | {count} |" for (by, date), count in zip(names, counts, strict=True)]


def ratio(time: int, entry: Entry) -> str:
    """A time over that of every node once."""
    return f"{time / entry.time:.4f}"


def _bound(record: BoundRecord | None, entry: Entry) -> str:
    return "-" if record is None else "impossible" if record.bound is None else ratio(record.bound, entry)


def _cell(entry: Entry, instance: Instance) -> str:
    """Time and certified bound, with a claimed one in brackets."""
    if instance.status == "impossible":
        return "impossible"
    time = "open" if instance.plan is None else ratio(instance.plan.time, entry)
    if instance.status == "optimal":
        return f"**{time}**"
    claimed = "" if instance.claim is None else f" ({_bound(instance.claim, entry)})"
    return f"{time}, ≥&nbsp;{_bound(instance.bound, entry)}{claimed}".replace("≥&nbsp;-", "no bound")


__all__ = ["COLUMNS", "documents", "finders", "lines", "markdown", "ratio", "rows"]
