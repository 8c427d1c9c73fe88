"""Every model of the catalogue under `wrap` (`make bench-models`): captured or refused, exact, within budget, how long.

One process a model (`tests.benchmarks.model_trial`), so that a crash or an endless one is a row and not the end. Each writes
build/bench/models/NAME.json; a second run takes what the same sources wrote before and goes on (`--fresh`: from the start). A
whole run writes docs/benchmarks/models.md.

Bars: at least 90 % captured; every refusal names module, line and way out; nothing wrong, also after a refusal; no peak over its
budget; no internal error (whatever is raised that is neither a refusal nor an infeasible budget, a crash, or a timeout).

    python -m tests.benchmarks.bench_models [--only NAME …] [--jobs 2] [--timeout 300] [--fresh]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from remat.units import format_bytes
from tests.benchmarks.one_process import run_row
from tests.models.catalogue import TABLES, missing, models

OUT = Path("build/bench/models")
PAGE = Path("docs/benchmarks/models.md")
CAPTURED = 0.9
"""The part of the models that must be captured."""
SOURCES = ("remat", "tests/models", "tests/benchmarks/model_trial.py")
WARM_UP = "torch-vae"
"""Run first and alone: it fills the cache of compiled kernels, which would otherwise count as planning."""

Row = dict[str, Any]


def fingerprint() -> str:
    """What results depend on: sources and versions."""
    digest = hashlib.sha256()
    for source in map(Path, SOURCES):
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            digest.update(f"{path}\n".encode() + path.read_bytes())
    digest.update(" ".join(_version(package) for package in TABLES).encode())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


# -- running ---------------------------------------------------------------------------------------------------------------


def result_of(name: str, key: str, timeout: float, fresh: bool) -> Row:
    """A model's row: what the same sources wrote before, else from a new process."""
    path = OUT / f"{name}.json"
    if not fresh and path.exists():
        row: Row = json.loads(path.read_text())
        if row.get("key") == key:
            return row
    path.unlink(missing_ok=True)
    start = time.perf_counter()
    failure = run_process(name, path, timeout)
    row = json.loads(path.read_text()) if failure is None else {"name": name, "tags": [], "trials": [failed(failure)]}
    row |= {"key": key, "wall": time.perf_counter() - start}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(row, indent=1))
    os.replace(part, path)
    print(line_of(row), flush=True)
    return row


def run_process(name: str, path: Path, timeout: float) -> str | None:
    """Run a model's trials; what ended the process, where it did not end well."""
    arguments = ["tests.benchmarks.model_trial", name, str(path)]
    return run_row(
        arguments, path.with_suffix(".log"), timeout, TRANSFORMERS_VERBOSITY="error", DIFFUSERS_VERBOSITY="error"
    )


def failed(message: str) -> Row:
    """The trial of a process that wrote none."""
    return {"dtype": "", "share": "", "status": "error", "message": message, "trace": "", "seconds": {}}


# -- judging ---------------------------------------------------------------------------------------------------------------


def captured(row: Row) -> bool:
    """Whether every trial ran a plan."""
    return all(trial["status"] == "captured" for trial in row["trials"])


def refused(row: Row) -> bool:
    """Whether every trial was refused."""
    return all(trial["status"] == "refused" for trial in row["trials"])


def misses(row: Row) -> list[str]:
    """Where a model misses a bar, in words; what several trials share stands once."""
    places: dict[str, list[str]] = {}
    for trial in row["trials"]:
        for line in misses_of(trial):
            places.setdefault(line, []).append(f"{trial['dtype']} {trial['share']}".strip() or "its process")
    if not captured(row) and not refused(row) and not places:
        places["captured in one trial and refused in another"] = ["all"]
    return [f"{row['name']} ({', '.join(where)}): {line}" for line, where in places.items()]


def misses_of(trial: Row) -> list[str]:
    """Where a trial misses a bar."""
    message, lines = " ".join(trial["message"].split()), []
    if trial["status"] == "error":
        lines.append(f"internal error: {message}")
    if trial["status"] == "infeasible":
        lines.append(f"no plan at the smallest budget stated: {message}")
    if trial.get("unsteady"):
        lines.append("two bare runs differ, so exactness cannot be told")
    elif trial.get("wrong_count"):
        after = "after the refusal " if trial["status"] == "refused" else ""
        lines.append(f"{after}wrong in {trial['wrong_count']} places: {'; '.join(trial['wrong'][:3])}")
    if trial.get("gaps"):
        lines.append(f"the refusal names no {' and no '.join(trial['gaps'])}: {message}")
    if over(trial):
        lines.append(f"over budget: {trial['measured']} of {trial['budget']} B")
    return lines


def over(trial: Row) -> bool:
    """Whether a step held more than its budget."""
    return trial.get("measured") is not None and trial["measured"] > trial["budget"]


# -- showing ---------------------------------------------------------------------------------------------------------------


def trials_of(row: Row, dtype: str, share: str | None = None) -> list[Row]:
    """A model's trials in a type, at a share."""
    return [trial for trial in row["trials"] if trial["dtype"] == dtype and share in (None, trial["share"])]


def outcome_cell(row: Row) -> str:
    """Captured, refused, or what else."""
    kinds = sorted({trial["status"] for trial in row["trials"]})
    return ", ".join("**internal error**" if kind == "error" else kind for kind in kinds)


def guards_cell(row: Row) -> str:
    """How many conditions are checked at a call, where the report says so."""
    counts = [trial["guards"] for trial in row["trials"] if trial.get("guards") is not None]
    return str(max(counts)) if counts else ""


def exact_cell(row: Row, dtype: str) -> str:
    """Whether all trials of a type were exact."""
    trials = [trial for trial in trials_of(row, dtype) if trial["status"] == "captured"]
    if not trials:
        return "" if trials_of(row, dtype) or row["trials"][0]["dtype"] == "" else "not in its package"
    wrong = sum(trial["wrong_count"] for trial in trials)
    return f"**wrong in {wrong}**" if wrong else "exact"


def peak_cell(row: Row, share: str) -> str:
    """Measured peak, over the budget and over the prediction."""
    trials = [trial for trial in trials_of(row, "float32", share) if trial["status"] == "captured"]
    if not trials:
        return ""
    trial = trials[0]
    cell = f"{format_bytes(trial['measured'])}: {trial['measured'] / trial['budget']:.1%} of budget, "
    cell += f"{trial['measured'] / trial['predicted']:.1%} of predicted"
    if trial["asked"] is not None:
        proof = "proved" if trial["floor"] > trial["asked"] else "none found"
        cell += (
            f" (no plan at {share}, {proof}; at the smallest found, {trial['budget'] / trial['asked']:.2f} times that)"
        )
    return f"**over** {cell}" if over(trial) else cell


def seconds_cell(row: Row) -> str:
    """Seconds by stage of the float32 trial at 50 %."""
    seconds = next((trial["seconds"] for trial in trials_of(row, "float32", "50%")), {})
    return ", ".join(f"{stage} {value:.1f}" for stage, value in seconds.items() if stage != "steps")


def line_of(row: Row) -> str:
    """A row for the terminal."""
    cells = [outcome_cell(row).strip("*"), f"guards {guards_cell(row) or '-'}"]
    cells += [f"{dtype} {exact_cell(row, dtype) or '-'}" for dtype in ("float64", "float32")]
    cells += [f"{share} {peak_cell(row, share) or '-'}" for share in ("70%", "50%")]
    return f"{row['name']:34} {row['wall']:6.1f} s  " + " | ".join(cells)


HEAD = (
    "model", "outcome", "guards", "float64", "float32", "measured peak at 70 %", "at 50 %", "seconds by stage at 50 %",
)  # fmt: skip


def page(rows: Iterable[Row], verdict: list[str]) -> str:
    """The table for the docs."""
    rows = list(rows)
    cells: tuple[Callable[[Row], str], ...] = (
        lambda row: row["name"], outcome_cell, guards_cell, partial(exact_cell, dtype="float64"),
        partial(exact_cell, dtype="float32"), partial(peak_cell, share="70%"), partial(peak_cell, share="50%"), seconds_cell,
    )  # fmt: skip
    table = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    table += ["| " + " | ".join(cell(row) for cell in cells) + " |" for row in rows]
    versions = ", ".join(f"{package} {_version(package)}" for package in TABLES)
    refusals = [f"* **{row['name']}**: {message}" for row in rows for message in messages_of(row)]
    return "\n".join(
        [
            "# Real models",
            "",
            f"Made by `make bench-models` on {platform.machine()}, one thread a process, with {versions}.",
            "",
            "Each model is tiny, from its configuration, and called as its users call it: padded masks, default caches, labels,",
            "training mode with its default dropout. Three steps of AdamW are compared with a deep copy of the bare model to the",
            "last bit: loss, everything returned, gradients, parameters, buffers, and the states of three random generators.",
            "Budgets are parts of what a step holds if it keeps everything. Measured: the allocator's peak over a whole step,",
            "forward, loss and backward, in float32.",
            "",
            *verdict,
            "",
            *table,
            "",
            "## What was refused, and errors",
            "",
            *(refusals or ["Nothing."]),
            "",
        ]
    )


def messages_of(row: Row) -> list[str]:
    """Each different message of a model's refusals and errors, on one line."""
    messages = [trial["message"] for trial in row["trials"] if trial["status"] != "captured"]
    return list(dict.fromkeys(" ".join(message.split()) for message in messages))


def summary(rows: list[Row]) -> tuple[list[str], list[str]]:
    """The sums, and the bars that were missed."""
    lines = [line for row in rows for line in misses(row)]
    done = sum(map(captured, rows))
    if done < CAPTURED * len(rows):
        lines.insert(0, f"captured {done} of {len(rows)}, {CAPTURED:.0%} asked")
    trials = [trial for row in rows for trial in row["trials"]]
    wrong = sum(bool(trial.get("wrong_count")) for trial in trials)
    errors = sum(trial["status"] == "error" for trial in trials)
    sums = f"{done} of {len(rows)} captured, {sum(map(refused, rows))} refused; of {len(trials)} trials {wrong} wrong, "
    sums += f"{sum(map(over, trials))} over budget, {errors} internal errors."
    return [sums], lines


def main() -> int:
    """Run, print, write; 1 where a bar was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=None, help="names from the catalogue")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300, help="of a model [s]")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    chosen = parser.parse_args()
    if missing():
        parser.error(f"not installed: {', '.join(missing())}; `make models-venv` installs them.")
    every = [model.name for model in models()]
    unknown = set(chosen.only or ()) - set(every)
    if unknown:
        parser.error(f"not in the catalogue: {', '.join(sorted(unknown))}; it has {', '.join(every)}.")
    names = [name for name in every if chosen.only is None or name in chosen.only]
    OUT.mkdir(parents=True, exist_ok=True)
    key, start = fingerprint(), time.perf_counter()
    run = partial(result_of, key=key, timeout=chosen.timeout, fresh=chosen.fresh)
    names.sort(key=lambda name: name != WARM_UP)
    first = [run(name) for name in names[:1]]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        rows = sorted([*first, *pool.map(run, names[1:])], key=lambda row: every.index(row["name"]))
    sums, lines = summary(rows)
    print("\n".join(["", *sums, *lines, f"{(time.perf_counter() - start) / 60:.1f} min"]))
    if chosen.only is None:
        PAGE.write_text(page(rows, sums))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
