"""`python -m tests.site.peers`: writes the tables of README.md and docs/benchmarks/README.md from docs/benchmarks/peers.json.

That file is what `make bench-peers` wrote, copied. The tables stand between two comments; nothing else of the pages is touched.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "docs" / "benchmarks" / "peers.json"
BEGIN, END = "<!-- peers: made by python -m tests.site.peers -->\n", "<!-- end of peers -->"
COLUMNS = {
    "per layer": "checkpoint every layer",
    "remat at per layer": "`remat`, that peak",
    "selective": "selective checkpoints",
    "remat at selective": "`remat`, that peak",
    "partition 0.5": "AOT budget .5",
    "remat at half": "`remat`, smallest found",
}
"""Methods of the benchmark, and their words in the table."""
EXPLAINED = "docs/benchmarks/README.md#beside-other-ways-to-make-a-step-smaller-make-bench-peers"
NAMES = {
    "gpt2": "GPT-2",
    "bert": "BERT",
    "llama": "Llama",
    "t5": "T5",
    "vit": "ViT",
    "resnet50": "ResNet-50",
    "unet": "U-Net",
    "mixer": "MLP-Mixer",
    "encoder-decoder": "encoder-decoder",
    "diffusion-unet": "diffusion U-Net",
    "graph-net": "graph network",
}
"""Models of the benchmark (`tests.benchmarks.peers.CASES`), and their words in the table."""
OTHER_DRAWS, WRONG_BUFFERS, OFF = "†", "‡", "§"
NOTES = {
    OTHER_DRAWS: "draws other dropout masks than the bare step, so that the loss differs",
    WRONG_BUFFERS: "leaves other BatchNorm statistics than the bare step",
    OFF: "gives gradients off by more than a hundredth of the largest, with the same loss (not examined)",
}

Row = dict[str, Any]


def cell(row: Row | None, bare: Row) -> str:
    """Peak and time over the bare step's, with the signs of what is not as in bare training."""
    if row is None:
        return "not run"
    if "time" not in row:
        return "fails"
    signs = OTHER_DRAWS * (row["step"] == "draws") + OFF * row["step"].startswith("off")
    signs += WRONG_BUFFERS * (row["buffers"] == "WRONG")
    return f"{row['peak'] / bare['peak']:.0%}, ×{row['time']:.2f}{signs}".replace("%", " %", 1)


def table(document: dict[str, Any]) -> list[str]:
    """A row for each model that was run, in the order of the file."""
    models = list(dict.fromkeys(row["model"] for row in document["rows"]))
    lines = [f"| model | {' | '.join(COLUMNS.values())} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for model in models:
        by = {row["method"]: row for row in document["rows"] if row["model"] == model}
        cells = [cell(by.get(method), by["bare"]) for method in COLUMNS]
        lines.append(f"| {NAMES[model]} | {' | '.join(cells)} |")
    return lines


def notes(lines: list[str]) -> str:
    """What the signs mean that stand in the table."""
    text = "\n".join(lines)
    return "; ".join(f"{sign} {words}" for sign, words in NOTES.items() if sign in text)


def conditions(document: dict[str, Any]) -> str:
    """On what was measured, when, and what was not run."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    rounds = sorted({row["rounds"] for row in document["rows"]})
    seconds = sorted({row.get("seconds", document["seconds"]) for row in document["rows"]})
    missing = [name for model, name in NAMES.items() if model not in {row["model"] for row in document["rows"]}]
    text = (
        f"Measured on a CPU ({document['machine']}; {versions}; {document['date']}), with other programs running: times are "
        f"CPU time, medians of {' or '.join(map(str, rounds))} interleaved steps; plans had "
        f"{' or '.join(f'{each:g}' for each in seconds)} s. No GPU was measured"
    )
    return f"{text}, nor were {', '.join(missing)}." if missing else f"{text}."


def short(document: dict[str, Any]) -> str:
    """What README.md shows."""
    lines = table(document)
    ours = [row for row in document["rows"] if row["method"].startswith("remat") and "time" in row]
    exact = sum(row["step"] == "exact" for row in ours)
    return "\n".join(
        [
            "Peak memory of a training step and its time, over those of the bare step (100 %, ×1.00):",
            "",
            *lines,
            "",
            f"{exact} of the {len(ours)} planned steps are equal to the bare ones to the last bit; {notes(lines)}.",
            conditions(document),
            f"[What each column is, and what was missed]({EXPLAINED}).",
            "",
        ]
    )


def long(document: dict[str, Any]) -> str:
    """What the page of benchmarks shows: the table, what ours did not reach, and the bars that were missed."""
    lines = table(document)
    limits = [
        f"* {NAMES[row['model']]}: {limit(row, document)}"
        for row in document["rows"]
        if row.get("found") and row["method"] == "remat at half"
    ]
    failed = [
        f"* {NAMES[row['model']]}, {row['method']}: {row['failed']}" for row in document["rows"] if "failed" in row
    ]
    bars = [f"* {line}" for line in document["missed"]] or ["* none."]
    parts = [*lines, "", f"{notes(lines)}.", conditions(document), ""]
    parts += (
        [
            "Where no plan was found at half of the peak of per-layer checkpoints, in parts of the bare peak (impossible: by the",
            "certified floor or the claimed [floor by cuts](../explanation/bounds.md#the-floor-by-cuts), whichever is larger):",
            "",
            *limits,
            "",
        ]
        if limits
        else []
    )
    parts += ["What failed:", "", *failed, ""] if failed else []
    return "\n".join([*parts, "Bars that were missed:", "", *bars, ""])


def limit(row: Row, document: dict[str, Any]) -> str:
    """What is known below the smallest budget with a plan."""
    asked, smallest, floor = (share(row, key, document) for key in ("asked", "found", "floor"))
    if row["asked"] < row["floor"]:
        return (
            f"half is {asked} and impossible, as is all below {floor}; the smallest budget with a plan is {smallest}."
        )
    return f"half is {asked}, with neither plan nor proof; impossible below {floor}, the smallest budget with a plan {smallest}."


def share(row: Row, key: str, document: dict[str, Any]) -> str:
    """Bytes of a row over the bare peak of its model."""
    bare = next(other for other in document["rows"] if other["model"] == row["model"] and other["method"] == "bare")
    return f"{row[key] / bare['peak']:.3f}"


PAGES = {ROOT / "README.md": short, ROOT / "docs" / "benchmarks" / "README.md": long}


def renewed(page: str, text: str) -> str:
    """A page with another text between the two comments.

    Raises:
        ValueError: one of the comments is missing.
    """
    start = page.index(BEGIN) + len(BEGIN)
    return page[:start] + text + page[page.index(END, start) :]


def main() -> None:
    """Write the tables."""
    document = json.loads(DATA.read_text())
    for path, make in PAGES.items():
        path.write_text(renewed(path.read_text(), make(document)), encoding="utf-8")


if __name__ == "__main__":
    main()
