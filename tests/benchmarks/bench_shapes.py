"""New shapes in a training: what each costs before its first step, and what its plan loses.

    make bench-shapes            GPT-2, ResNet-18 and an LSTM, each shape in two wrapped modules, of which one plans it for itself
    FLAGS="--only gpt2"          one of them
    FLAGS="--lengths 200"        so many random lengths of 16 to 512 in one wrapped module, and a smaller last batch, at 40 and
                                 60 % of the peak at 512: GPT-2, an encoder with a mask, and of transformers BERT and T5
    FLAGS="--kinds"              ResNet-18 and a U-Net over batches and images, a graph network over nodes and edges, a detection
                                 head over boxes, an LSTM cell over lengths; at half of the largest peak, or --share 60%
    FLAGS="--growth 2000"        so many different shapes of a small GPT-2 in one wrapped module: resident memory of the process,
                                 plans and generated functions as they go; exit 1 where memory grows after a quarter of them, or
                                 there are more functions than the tables of plans and texts may keep

All seconds are of CPU. The pause of a shape is what its first call does before its step: fill in or capture, cost, plan, generate
code. Each model and budget has a process of its own, in which no size was captured before; "a capture" is one at sizes that
the wrapped module does not capture. Of the shapes that must recompute every tenth (each of the other kinds) is planned in a
fresh module too, and what is recomputed is compared, both schedules replayed on one graph. Every step is compared with the bare
module's to the last bit. Exit 1 where a peak is over the budget, a result differs, more than one shape in ten loses over 2
points, or a first step takes over .1 s longer than the bare one at the median, or 1.5 captures at worst; shapes that are no
sizes of one step (an LSTM over lengths) have no bar of time.
"""

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import statistics
import sys
import time
import types
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

import remat.exec
from remat.errors import Infeasible
from remat.exec._module.state import MOST_PLANS
from remat.exec._sizes import templates
from remat.ir import Schedule, validate
from remat.zoo import GPT2
from tests.benchmarks.shape_models import KINDS, LENGTHS, Recurrent, ResNet18, gpt2_call
from tests.benchmarks.shape_rows import (
    CAPTURES_BAR,
    LOSS_BAR,
    PAUSE_BAR,
    line_of_summary,
    random_lengths,
    rows_of,
    summary,
)

OUT = Path("build/bench/shapes.json")
SHARES = {"lstm": "100%", "detection head": "80%"}
"""Budgets that are not half the peak of the largest call: an LSTM over lengths keeps everything, since its rows show captures;
half the peak of the detection head is below what can be proved to be needed."""


def tokens(length):
    drawn = torch.randint(256, (8, length), generator=torch.Generator().manual_seed(length))
    return drawn, drawn


def images(batch):
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, 3, 32, 32, generator=generator), torch.randint(10, (batch,), generator=generator)


def sequences(length):
    return (torch.randn(8, length, 16, generator=torch.Generator().manual_seed(length)),)


CASES = {
    "gpt2": (lambda: GPT2(layers=4, width=128), tokens, "50%", (128, 121, 97, 109, 89, 115, 103, 80)),
    "resnet18": (ResNet18, images, "50%", (48, 40, 36, 44, 30)),
    "lstm": (Recurrent, sequences, "100%", (12, 11, 10)),
}
"""Module, call of a size, budget, and sizes, of which the first is the sample. The LSTM keeps
everything: its rows show what a capture for each length costs."""


def first_and_results(model, call, seed):
    """CPU seconds of one step, and its loss and gradients."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    start = time.process_time()
    loss = model(*call)
    loss.backward()
    seconds = time.process_time() - start
    return seconds, [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def row_of(name, size, call, models):
    """One shape in both wrapped modules."""
    bare, own, family = models
    first_and_results(bare, call, size)
    step, expected = first_and_results(bare, call, size)
    row = {"case": name, "size": size, "step": step}
    reports, exact = {}, True
    for kind, model in (("own", own), ("family", family)):
        seconds, results = first_and_results(model, call, size)
        exact = exact and all(map(torch.equal, results, expected))
        reports[kind] = remat.exec.report(model)
        row |= {kind: seconds - step, f"{kind} stages": reports[kind].seconds}
    graph, runs = reports["own"].graph, reports["family"].schedule.runs
    assert graph.names == reports["family"].graph.names
    replayed = validate(graph, Schedule.from_runs(graph, [run.node for run in runs]))
    peaks = [max(report.predicted_peak, report.measured_peak or 0) for report in reports.values()]
    overhead = {"own": reports["own"].cost.time / graph.time - 1, "family": replayed.time / graph.time - 1}
    return row | {
        "provenance": reports["family"].provenance,
        "own overhead": overhead["own"],
        "family overhead": overhead["family"],
        "loss": overhead["family"] - overhead["own"],
        "within": all(peak <= report.budget for peak, report in zip(peaks, reports.values(), strict=True)),
        "exact": exact,
        "plans": reports["family"].predicted_peak < reports["family"].store_all_peak,
    }


def both_rows(name):
    """Every shape of a case."""
    make, call_at, share, (largest, *sizes) = CASES[name]

    def fresh():
        torch.manual_seed(0)
        return make()

    bare = fresh()
    models = [
        remat.exec.wrap(fresh(), call_at(largest), share, family=family, progress=False) for family in (False, True)
    ]
    for size in sizes:
        row = row_of(name, size, call_at(size), (bare, *models))
        print(
            f"{name:9} {size:5d} {row['step']:7.3f} {row['own']:8.2f} {row['family']:8.2f} {row['own overhead']:9.2%} "
            f"{row['family overhead']:9.2%} {100 * row['loss']:+7.2f}  {row['provenance']:10} "
            f"{'ok' if row['exact'] and row['within'] else 'WRONG'}",
            flush=True,
        )
        yield row


GROWTH = 1.05
"""Resident memory at the end of many shapes, as a share of what it was after the first quarter of them, both without what the
allocator of C keeps free: blocks of many sizes leave holes."""
FUNCTIONS = 2 * (MOST_PLANS + templates.MOST)
"""Most functions: a forward and a backward of each plan that is kept, and of each schedule whose text is."""


def resident():
    """Resident memory of the process [bytes]."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trimmed():
    """Resident memory once the allocator of C has given back what is free, where it can."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    return resident()


def generated():
    """Functions alive that plans were compiled to."""
    gc.collect()
    return sum(
        type(item) is types.FunctionType and "<remat step" in item.__code__.co_filename for item in gc.get_objects()
    )


def no_growth(count):
    """Steps of different shapes in one wrapped module; whether memory and functions stay."""
    longest, widest = 15 + -(-count // 16), 17
    torch.manual_seed(0)
    model = remat.exec.wrap(
        GPT2(layers=1, width=32, context=longest), gpt2_call(longest, widest)[0], "80%", progress=False, rehearse=False
    )
    shapes = [(length, batch) for length in range(16, longest + 1) for batch in range(2, widest + 1)]
    order = torch.randperm(len(shapes), generator=torch.Generator().manual_seed(0))[:count].tolist()
    start, rows = time.process_time(), []
    for at, number in enumerate(order, 1):
        model(*gpt2_call(*shapes[number])[0]).backward()
        model.zero_grad(set_to_none=True)
        if at % max(1, count // 16) == 0:
            row = {"shapes": at, "functions": generated(), "untrimmed": resident()}
            row["resident"] = trimmed()
            row["cpu"] = time.process_time() - start
            rows.append(row)
            print(
                f"{at:5d} shapes  {row['resident'] / 2**20:7.1f} MiB ({row['untrimmed'] / 2**20:.1f} untrimmed)  "
                f"{row['functions']:4d} functions  "
                f"{row['cpu'] / at:.3f} CPU seconds each",
                flush=True,
            )
    OUT.with_name("growth.json").write_text(json.dumps(rows, indent=1))
    quarter, last = rows[len(rows) // 4], rows[-1]
    grown = last["resident"] / quarter["resident"]
    print(f"resident memory at the end over that after {quarter['shapes']} shapes: {grown:.3f}")
    print(f"functions at the end: {last['functions']} of {FUNCTIONS}")
    return grown <= GROWTH and last["functions"] <= FUNCTIONS


def many_shapes(cases, out):
    """Rows of `(table, name, share, how many sizes, how many are compared)`, to a file; whether all with a plan is right."""
    rows, missed, close, compared = [], [], 0, 0
    for case in cases:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            try:
                mine = process.submit(rows_alone, *case).result()
            except Infeasible as refusal:
                print(f"{case[1]}, {case[2]}: {refusal}", flush=True)
                continue
        facts = summary(mine)
        print(line_of_summary(facts), flush=True)
        rows, missed = rows + mine, missed + missed_pauses(mine, facts)
        close, compared = close + facts["close"], compared + facts["compared"]
        OUT.with_name(out).write_text(json.dumps({"summaries": [*summaries_of(rows)], "rows": rows}, indent=1))
    print("missed:", *missed or ["no bar of time"], sep="\n  ")
    return all(row["exact"] and row["peak"] <= 1 for row in rows) and 10 * close >= 9 * compared and not missed


def rows_alone(table, name, share, count, every):
    """Rows of a model and a budget, in a new process."""
    settings()
    case, sizes = KINDS[name] if table == "kinds" else (LENGTHS[name], random_lengths(count))
    return list(rows_of(name, case, sizes, share, every))


def missed_pauses(rows, facts):
    """Bars of time that are missed; there are none where each shape is another step."""
    if all(row["provenance"] == "unrelated" for row in rows):
        return []
    name, worst = f"{facts['case']} {facts['share']}", CAPTURES_BAR * facts["capture"]
    missed = [f"{name}: median {facts['beyond']:.3f} s"] if facts["beyond"] > PAUSE_BAR else []
    return missed + ([f"{name}: worst {facts['worst beyond']:.3f} s of {worst:.3f}"] if facts["over"] else [])


def summaries_of(rows):
    """One for each case and share."""
    pairs = dict.fromkeys((row["case"], row["share"]) for row in rows)
    return [summary([row for row in rows if (row["case"], row["share"]) == pair]) for pair in pairs]


def lengths(names, count):
    """Whether random lengths of these models are right."""
    every = max(1, min(10, count // 12))
    return many_shapes(
        [("lengths", name, share, count, every) for name in names for share in ("40%", "60%")],
        f"lengths{'-' + names[0] if len(names) == 1 else ''}.json",
    )


def kinds(names, asked):
    """Whether sizes of other models are right; nothing is recomputed where one capture each is what there is."""
    return many_shapes([("kinds", name, asked or SHARES.get(name, "50%"), 0, 1) for name in names], "kinds.json")


def settings():
    """One thread, and no costs on disk, as on a machine that has measured nothing."""
    torch.set_num_threads(1)
    os.environ["REMAT_CACHE_DIR"] = "off"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices={**CASES, **LENGTHS, **KINDS})
    parser.add_argument("--lengths", type=int, default=0, help="so many random lengths")
    parser.add_argument("--kinds", action="store_true", help="other models")
    parser.add_argument("--share", default="", help="of the peak of the largest call, for other models")
    parser.add_argument("--growth", type=int, default=0, help="so many different shapes, and whether memory grows")
    arguments = parser.parse_args()
    settings()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    only = [arguments.only] if arguments.only else None
    if arguments.growth:
        sys.exit(not no_growth(arguments.growth))
    if arguments.lengths:
        sys.exit(not lengths(only or list(LENGTHS), arguments.lengths))
    if arguments.kinds:
        sys.exit(not kinds(only or list(KINDS), arguments.share))
    sys.exit(not both(only or list(CASES)))


def both(names):
    """Whether shapes are right in modules that plan each for itself and in ones that do not."""
    print("case       size    step      own   family  overhead    family    loss  provenance  (CPU seconds, points)")
    rows = [row for name in names for row in both_rows(name)]
    OUT.write_text(json.dumps(rows, indent=1))
    for name in names:
        mine = [row for row in rows if row["case"] == name]
        medians = {kind: statistics.median(row[kind] for row in mine) for kind in ("own", "family")}
        print(f"{name}: median {medians['own']:.2f} s planned for itself, {medians['family']:.2f} s from other sizes")
    lossy = sum(row["loss"] > LOSS_BAR for row in rows)
    wrong = [row for row in rows if not (row["exact"] and row["within"])]
    print(f"{lossy} of {len(rows)} lose more than 2 points; {len(wrong)} wrong or over the budget")
    return not wrong and 10 * lossy <= len(rows)


if __name__ == "__main__":
    main()
