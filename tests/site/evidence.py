"""`python -m tests.site.evidence`: tables of docs/benchmarks/rockmate.md and hiremate.md, and a picture, from the stored runs.

The rows are those of `make bench-rockmate` and `make bench-hiremate`; what was not run is left out, and named on the page. Each
table stands between two comments; nothing else of the pages is touched. The papers' numbers are facts of Zhao et al. (2023) and
Gusak et al. (2024), cited by table and figure.
"""

import json
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_hiremate import DEPTHS, FIGURE5, PLANNED, TABLE2, TABLE3
from tests.benchmarks.bench_hiremate import SHARES as SHARES5
from tests.benchmarks.bench_rockmate import APPENDIX, BUDGETS, CURVES, LAYERS, PRECISION, SHARES

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"
Row = dict[str, Any]

NAMES = {
    "gpt24": "GPT2-medium (4, 512)",
    "gpt2-medium 2 x 1024": "GPT2-medium (2, 1024)",
    "gpt2-large 2 x 512": "GPT2-large (2, 512)",
    "gpt2-large 4 x 256": "GPT2-large (4, 256)",
    "gpt96": "GPT, 96 layers",
    "resnet101": "ResNet-101",
    "unet": "U-Net",
    "mixer": "MLP-Mixer",
    "regnet": "RegNet-32",
    "encdec2": "encoder-decoder 2 + 2",
    "encdec6": "encoder-decoder 6 + 6",
    "encdec8": "encoder-decoder 8 + 8",
    "encdec36": "encoder-decoder 36 + 36",
    "fno": "FNO, 2d",
    "uno": "U-NO",
}

PAPER_APPENDIX = {
    "gpt2-large 2 x 512": {"0.85": (1.298, 1.234), "2.8": (1.142, 1.054), "7.6": (1.000, 1.018)},
    "gpt2-large 4 x 256": {"0.85": (1.297, 1.228), "1.8": (1.218, 1.126), "5.6": (1.017, 1.018)},
    "gpt2-medium 2 x 1024": {"1.0": (1.564, 1.289), "4.0": (1.163, 1.076), "11.6": (1.029, 1.021)},
    "gpt24": {"1.0": (1.530, 1.271), "2.0": (1.237, 1.155), "7.6": (1.034, 1.024)},
}
"""Mean times of Rotor and Rockmate over PyTorch's, Rockmate, App. E."""

PAPER_TABLE3 = {
    "gpt24": (1858, 367, 734, 3, 28, 8, 15, 7.9, 36.6, 1.223),
    "gpt96": (7402, 1447, 2894, 4, 61, 21, 10, 15, 47.2, 1.196),
    "unet": (73, 50, 101, 2, 9, 9, 15, 9, 51.3, 1.135),
    "mixer": (203, 125, 250, 2, 15, 6, 10, 1.5, 53.3, 1.073),
    "regnet": (245, 173, 347, 2, 15, 10, 15, 5, 41.1, 1.070),
    "resnet101": (346, 211, 423, 2, 19, 10, 15, 5.5, 42.6, 1.153),
    "encdec6": (1030, 224, 417, 3, 23, 20, 17, 20, 46.9, 1.176),
    "encdec36": (6160, 1334, 2457, 16, 128, 67, 19, 147, 44.6, 1.184),
    "fno": (71, 42, 82, 2, 10, 5, 8, 2.5, 53.1, 1.147),
    "uno": (997, 129, 229, 4, 12, 12, 19, 46, 58.5, 1.219),
}
"""HiRemate, table 3: nodes before simplification, forward, in all; depth, subgraphs, unique ones, the largest; minutes, peak [%]
and predicted time. FNO is the paper's 1d model."""


def stored(name: str) -> Row:
    """The stored run of a page."""
    document: Row = json.loads((FOLDER / f"{name}.json").read_text())
    return document


def over(time: float | None) -> str:
    """A time over that of the step without recomputation."""
    return "—" if time is None else f"{time:.3f}"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def conditions(document: Row, command: str, missing: list[str]) -> list[str]:
    """What the rows were measured on, and what was not run."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    minutes = sum(row["cpu"] for row in document["rows"].values()) / 60
    machine = document["machine"].replace("x86_64, 2 cores", "two x86-64 cores")
    lines = [
        f"`{command}` measures the rows one by one, and goes on where it was stopped; those stored here took {minutes:.0f}",
        f"minutes of CPU time ({machine}; {versions}; {document['date']}).",
        "Seconds are CPU seconds, of a machine on which other programs computed.",
    ]
    return [*lines, "", *([f"Not run yet: {', '.join(missing)}.", ""] if missing else [])]


def left_out(rows: Row, keys: list[str]) -> list[str]:
    """The rows that are not stored, those of one figure and model together."""
    groups: dict[str, list[str]] = {}
    for key in (key for key in keys if key not in rows):
        *what, last = key.replace("fig", "figure ").replace("table", "table ").split()
        groups.setdefault(" ".join(what), []).append(last)
    return [f"{what} ({', '.join(lasts)})" for what, lasts in groups.items()]


# -- Rockmate ----------------------------------------------------------------------------------------------------------


def appendix(rows: Row) -> list[str]:
    """Appendix E."""
    lines = []
    for model in APPENDIX:
        row = rows.get(f"appE {model}")
        for budget, (rotor, rockmate) in PAPER_APPENDIX[model].items() if row else ():
            ours = row[budget]
            peak = f"{APPENDIX[model][0]:.2f} / {row['peak GiB']:.2f}"
            share = f"{ours['share']:.1f} %"
            cells = [f"{rotor:.3f}", over(ours["rotor"]["time"]), f"{rockmate:.3f}", over(ours["rockmate"]["time"])]
            lines.append([NAMES[model], peak, f"{budget} GiB = {share}", *cells])
    head = [
        "model",
        "peak, paper / here [GiB]",
        "budget",
        "Rotor, paper",
        "Rotor, here",
        "Rockmate, paper",
        "Rockmate, here",
    ]
    return table(head, lines)


def figure4(rows: Row) -> list[str]:
    """Precision."""
    lines = []
    for model in PRECISION:
        for count in BUDGETS:
            if (row := rows.get(f"fig4 {model} {count}")) is not None:
                times = [over(row["times"][share]) for share in ("70", "50", "35", "25")]
                lines.append([NAMES[model], f"{count} × {count}", str(row["options"]), f"{row['seconds']:.1f}", *times])
    return table(
        ["model", "budgets", "options of a block, at most", "options [s]", "70 %", "50 %", "35 %", "25 %"], lines
    )


def figure5(rows: Row) -> list[str]:
    """Depth."""
    lines = []
    for layers in LAYERS:
        if (row := rows.get(f"fig5 {layers}")) is None:
            continue
        whole = rows.get(f"checkmate {layers}")
        other = ["not run", ""] if whole is None else [over(whole["time"]), f"{whole['seconds']:.0f}"]
        other = ["refused", ""] if whole and "refused" in whole else other
        seconds = f"{row['options seconds'] + row['rockmate']['seconds']:.1f}"
        cells = [over(row["rotor"]["time"]), over(row["rockmate"]["time"]), seconds, *other]
        lines.append([str(layers), str(row["nodes"]), f"{row['share']:.1f} %", *cells])
    head = ["layers", "nodes", "smallest budget", "Rotor", "Rockmate", "Rockmate [s]", "Checkmate", "Checkmate [s]"]
    return table(head, lines)


def figure6(rows: Row) -> list[str]:
    """Curves."""
    known = [model for model in CURVES if f"fig6 {model}" in rows]
    lines = []
    for share in map(str, SHARES):
        both = [rows[f"fig6 {model}"][name][share]["time"] for model in known for name in ("rotor", "rockmate")]
        lines.append([f"{share} %", *map(over, both)])
    least = [f"{rows[f'fig6 {model}'][f'{name} lowest']:.1f} %" for model in known for name in ("rotor", "rockmate")]
    lines.append(["smallest budget", *least])
    head = [f"{NAMES[model]}, {name}" for model in known for name in ("Rotor", "Rockmate")]
    return table(["budget", *head], lines)


def rockmate_parts() -> Row:
    """What stands between the comments of docs/benchmarks/rockmate.md."""
    document = stored("rockmate")
    rows = document["rows"]
    keys = [f"fig4 {model} {count}" for model in PRECISION for count in BUDGETS] + [f"checkmate {n}" for n in LAYERS]
    missing = left_out(rows, keys)
    bar = rows["bar gpt24"]
    asked = f"{bar['seconds']:.1f} CPU seconds, {over(bar['time'])} of the step's time."
    return {
        "conditions": conditions(document, "make bench-rockmate", missing),
        "bar": [f"`rockmate` on GPT-24 as captured, at half its memory: {asked}", ""],
        "appendix E": appendix(rows),
        "figure 4": figure4(rows),
        "figure 5": figure5(rows),
        "figure 6": figure6(rows),
    }


# -- HiRemate ----------------------------------------------------------------------------------------------------------


def table3(rows: Row) -> tuple[list[str], list[str], list[str]]:
    """Its three parts; a cell has the paper's number, then ours."""
    sizes, partitions, plans = [], [], []
    for model in TABLE3:
        paper = PAPER_TABLE3[model]
        if (row := rows.get(f"partition {model}")) is not None:
            ours = [row[key] for key in ("captured", "forward", "nodes", "depth", "subgraphs", "unique", "largest")]
            cells = [f"{theirs:,} / {mine:,}" for theirs, mine in zip(paper, ours, strict=False)]
            sizes.append([NAMES[model], *cells[:3]])
            partitions.append([NAMES[model], *cells[3:], f"{row['seconds']:.2f}"])
        if (row := rows.get(f"table3 {model}")) is not None:
            peak = "—" if row["peak"] is None else f"{row['peak']:.1%}".replace("%", " %")
            bound = "impossible" if row["bound"] is None else over(row["bound"])
            cells = [
                f"{paper[7]:g} min / {row['seconds']:.0f} s",
                f"{paper[8]} % / {peak}",
                f"{paper[9]:.3f} / {over(row['time'])}",
            ]
            plans.append([NAMES[model], *cells, over(row["auto"]), bound])
    return (
        table(["model", "before simplification", "forward", "forward and backward"], sizes),
        table(["model", "depth", "subgraphs", "unique", "largest", "here [s]"], partitions),
        table(["model", "planning", "peak", "predicted time", "`auto`", "bound of any order"], plans),
    )


def curves(rows: Row) -> list[str]:
    """Figure 5."""
    lines = []
    for model in FIGURE5:
        for share in SHARES5:
            if (row := rows.get(f"fig5 {model} {share}")) is not None:
                times = {name: row[name]["time"] for name in row if name != "cpu"}
                best = min((time for time in times.values() if time), default=None)
                cells = [over(times.get(name)) for name in ("H-ILP", "TW-Remat")]
                chained = over(times["Rockmate"]) if "Rockmate" in times else "no chain"
                lines.append([NAMES[model], f"{share} %", *cells, chained, over(best)])
    return table(["model", "budget", "H-ILP", "TW-Remat", "Rockmate", "best of them"], lines)


def whole(rows: Row) -> list[str]:
    """Table 2, as overheads."""
    lines = []
    for model in TABLE2:
        for share in SHARES5:
            if (row := rows.get(f"table2 {model} {share}")) is not None:
                times = (row["H-ILP"]["time"], row["rk-Checkmate"], row["bound"])
                cells = ["—" if time is None else f"{100 * (time - 1):.2f} %" for time in times]
                lines.append([NAMES[model], f"{share} %", *cells])
    return table(["model", "budget", "H-ILP", "rk-Checkmate, 20 s", "bound"], lines)


def depths(rows: Row) -> list[str]:
    """Figure 6."""
    lines = []
    for model, sizes in DEPTHS.items():
        for size in sizes:
            if (row := rows.get(f"fig6 {model} {size}")) is not None:
                counts = [str(row[key]) for key in ("depth", "subgraphs", "unique")]
                seconds = f"{row['options seconds'] + row['seconds']:.0f}"
                lines.append([NAMES[model], str(size), *counts, over(row["time"]), seconds])
    return table(
        ["model", "nodes a graph, at most", "depth", "subgraphs", "unique", "time at half", "planning [s]"], lines
    )


def bars(rows: Row) -> list[str]:
    """The bars of `hiremate`, and of the partition."""
    keys = [key for key in rows if key.startswith("bar ")]
    plans = [[NAMES[key[4:]], over(rows[key]["time"]), f"{rows[key]['seconds']:.1f}"] for key in keys]
    large = rows["partition large"]
    words = (
        f"{large['groups']:,} groups in a hierarchy of depth {large['depth']}, in {large['seconds']:.1f} CPU seconds."
    )
    return [*table(["step", "time", "CPU [s]"], plans), f"H-Partition of {large['nodes']:,} nodes: {words}", ""]


def hiremate_parts() -> Row:
    """What stands between the comments of docs/benchmarks/hiremate.md."""
    document = stored("hiremate")
    rows = document["rows"]
    keys = [f"table3 {model}" for model in PLANNED] + [f"fig5 {m} {s}" for m in FIGURE5 for s in SHARES5]
    keys += [f"fig6 {model} {size}" for model in DEPTHS for size in DEPTHS[model]]
    keys += [f"table2 {model} {share}" for model in TABLE2 for share in SHARES5]
    missing = left_out(rows, keys)
    parts = dict(zip(("table 3a", "table 3b", "table 3c"), table3(rows), strict=True))
    return parts | {
        "conditions": conditions(document, "make bench-hiremate", missing),
        "bars": bars(rows),
        "figure 5": curves(rows),
        "table 2": whole(rows),
        "figure 6": depths(rows),
    }


PAGES = {FOLDER / "rockmate.md": rockmate_parts, FOLDER / "hiremate.md": hiremate_parts}


def renewed(page: str, parts: Row, maker: str = "tests.site.evidence") -> str:
    """A page with other lines between its comments, which name the module that makes them.

    Raises:
        ValueError: a comment is missing.
    """
    for name, lines in parts.items():
        begin, end = f"<!-- {name}: made by python -m {maker} -->\n", f"<!-- end of {name} -->"
        start = page.index(begin) + len(begin)
        page = page[:start] + "\n".join(lines) + page[page.index(end, start) :]
    return page


def draw() -> None:
    """The picture of figure 6 of Rockmate."""
    from matplotlib.figure import Figure

    rows = stored("rockmate")["rows"]
    known = [model for model in CURVES if f"fig6 {model}" in rows]
    figure = Figure(figsize=(4 * len(known), 3.4), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(known), squeeze=False, sharey=True)[0], known, strict=True):
        for name, mark, color in (("rotor", "s", "#d55e00"), ("rockmate", "o", "#0072b2")):
            points = [
                (int(share), 100 * (plan["time"] - 1))
                for share, plan in rows[f"fig6 {model}"][name].items()
                if plan["time"]
            ]
            axes.plot(*zip(*points, strict=True), marker=mark, color=color, label=name.title())
        axes.set_title(NAMES[model])
        axes.set_xlabel("budget [% of the peak]")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("overhead [%]")
    figure.axes[0].legend(frameon=False)
    figure.savefig(FOLDER / "rockmate.png", dpi=80)


def main() -> None:
    """Write the pages and the picture."""
    for path, parts in PAGES.items():
        path.write_text(renewed(path.read_text(), parts()), encoding="utf-8")
    draw()


if __name__ == "__main__":
    main()
