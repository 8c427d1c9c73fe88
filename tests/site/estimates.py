"""`python -m tests.site.estimates`: the table of docs/benchmarks/estimates.md, from the stored run of `make bench-estimates`."""

from remat.units import format_bytes
from tests.benchmarks.bench_estimates import MODELS, missed
from tests.site.evidence import FOLDER, Row, conditions, renewed, stored, table

PAGE = FOLDER / "estimates.md"
MAKER = "tests.site.estimates"


def off(estimated: int, measured: int) -> str:
    """An estimate over what was measured, less one, in per cent."""
    per_cent = 100 * (estimated / measured - 1)
    return "0.00 %" if abs(per_cent) < 0.005 else f"{per_cent:+.2f} %".replace("-", "−")


def of_memory(held: int | None, memory: int) -> str:
    """What was held, in per cent of the memory."""
    return "—" if held is None else f"{100 * held / memory:.1f} %"


def peaks(rows: Row) -> list[str]:
    """Estimated against measured, at the first batch."""
    lines = []
    for name, row in rows.items():
        estimated, measured = row["first"]["estimated"], row["first"]["measured"]
        states = "exact" if estimated["states"] == measured["states"] else off(estimated["states"], measured["states"])
        whole = off(estimated["total"], measured["total"])
        cells = [name, str(row["first"]["batch"]), format_bytes(measured["step"]), format_bytes(measured["total"])]
        lines.append([*cells, off(estimated["step"], measured["step"]), states, whole])
    return table(["model", "batch", "step", "in all", "step, estimated", "states", "in all, estimated"], lines)


def sizes(rows: Row) -> list[str]:
    """The largest batches."""
    lines = []
    for name, row in rows.items():
        memory, planned = row["memory"], row.get("planned")
        batches = [(row[key]["batch"], of_memory(row[key]["measured"], memory)) for key in ("largest", "beyond")]
        cells = [f"{size}: {share}" for size, share in batches]
        if planned is None:
            cells += ["", ""]
        else:
            price = "" if planned["ratio"] is None else f"{planned['ratio']:.3f}"
            cells += [f"{planned['batch']}: {of_memory(planned['measured'], memory)}", price]
        lines.append([name, format_bytes(memory), *cells])
    return table(["model", "memory", "largest batch", "a larger one", "largest planned", "time of a step"], lines)


def bars(rows: Row) -> list[str]:
    """What was missed."""
    return [*([f"* {line}." for line in missed(rows)] or [f"All bars held on {len(rows)} models."]), ""]


def parts() -> Row:
    """The parts of the page, by the name of their comments."""
    document = stored("estimates")
    rows = {name: document["rows"][name] for name in MODELS if name in document["rows"]}
    missing = [name for name in MODELS if name not in rows]
    return {
        "conditions": conditions(document, "make bench-estimates", missing),
        "peaks": peaks(rows),
        "batches": sizes(rows),
        "missed": bars(rows),
    }


def main() -> None:
    """Write the tables."""
    PAGE.write_text(renewed(PAGE.read_text(), parts(), MAKER), encoding="utf-8")


if __name__ == "__main__":
    main()
