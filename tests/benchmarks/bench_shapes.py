"""New shapes in a training: CPU seconds until their first step, planned for themselves against planned from other sizes.

    make bench-shapes            GPT-2, ResNet-18 and an LSTM, each shape in two wrapped modules
    FLAGS="--only gpt2"          one of them
    FLAGS="--lengths 200"        so many random lengths of 16 to 512 of GPT-2 and of an encoder with a mask, at 40 and 60 % of the
                                 peak at 512, and a smaller last batch: time beyond a bare step, peaks, and the losses against
                                 plans of their own at every tenth length
    FLAGS="--growth 2000"        so many different shapes of a small GPT-2 in one wrapped module: resident memory of the process,
                                 plans and generated functions as they go; exit 1 where they grow after the table of plans is full

For each shape: seconds of CPU of its first step beyond a warm step of the bare module, without imports and compilation, which the
first shapes of both modules have paid; how long its capture took of it; and what its plan recomputes, both schedules replayed on
one graph, the one measured for the plan of its own. Every step is compared with the bare module's to the last bit. Exit 1 where a
peak is over the budget, a gradient differs, or more than one shape in ten loses over 2 points.
"""

import argparse
import copy
import gc
import json
import math
import os
import statistics
import sys
import time
import types
from pathlib import Path

import torch
from torch import nn

import remat.exec
from remat.ir import Schedule, validate
from remat.zoo import GPT2

OUT = Path("build/bench/shapes.json")
LOSS_BAR = 0.02
"""Recomputation that a plan from other sizes may have beyond one of its own, as a share of the step."""


class Block(nn.Module):
    """The basic block of ResNet-18; (batch, inputs, h, w) to (batch, width, h', w')."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        same = inputs == width and stride == 1
        projection = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.shortcut = nn.Identity() if same else projection

    def forward(self, x):
        hidden = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 of a quarter of the width for small images; ``forward(images, labels)`` is the mean cross entropy."""

    def __init__(self):
        super().__init__()
        widths = (16, 16, 32, 32, 64, 64, 128, 128)
        layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        for before, width in zip((16, *widths), widths, strict=False):
            layers.append(Block(before, width, 1 if before == width else 2))
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.body(images), labels)


class Recurrent(nn.Module):
    """An LSTM cell over time, which the trace unrolls; ``forward(x)``, x (batch, time, 16), is a mean."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(16, 32)

    def forward(self, x):
        state, outputs = None, []
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
            outputs.append(state[0])
        return torch.stack(outputs).square().mean()


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


def rows_of(name):
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


class Encoder(nn.Module):
    """A BERT-like encoder; ``forward(tokens, mask, targets)``, masks (batch, time) with True where there is a token: the loss."""

    def __init__(self, layers=4, width=128, heads=4, vocabulary=256, context=512):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, nn.functional.gelu, batch_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, drawn, mask, targets):
        hidden = self.tokens(drawn) + self.places.weight[: drawn.shape[1]]
        added = (
            torch.zeros(mask.shape, dtype=hidden.dtype).masked_fill(~mask, float("-inf")) if not mask.all() else None
        )
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=added)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def gpt2_call(length, batch):
    drawn = torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(length))
    return drawn, drawn


def encoder_call(length, batch):
    drawn, _ = gpt2_call(length, batch)
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[-1, length // 2 :] = False
    return drawn, mask, drawn


RANDOM = {"gpt2": (lambda: GPT2(layers=4, width=128, context=512), gpt2_call), "encoder": (Encoder, encoder_call)}
LONGEST, SHORTEST, ROWS = 512, 16, 4
"""Lengths, and the size of a batch; the last batch has one row less."""


def random_rows(name, share, count):
    """Random lengths of a model, in one wrapped module."""
    make, call_at = RANDOM[name]

    def fresh():
        torch.manual_seed(0)
        return make()

    bare, model = fresh(), remat.exec.wrap(fresh(), call_at(LONGEST, ROWS), share, progress=False)
    capture, budget = remat.exec.report(model).seconds["capture"], remat.exec.report(model).budget
    order = torch.randperm(LONGEST - SHORTEST, generator=torch.Generator().manual_seed(0)) + SHORTEST
    calls = [(length, ROWS) for length in order[:count].tolist()]
    for at, (length, batch) in enumerate([*calls, (calls[-1][0], ROWS - 1), (calls[0][0], ROWS - 1)]):
        call = call_at(length, batch)
        first_and_results(bare, call, length)
        step, expected = first_and_results(bare, call, length)
        seconds, results = first_and_results(model, call, length)
        model.zero_grad(set_to_none=True)
        report, peak = remat.exec.report(model), remat.exec.measure_step(lambda call=call: model(*call).backward()).peak
        row = {"case": name, "share": share, "length": length, "batch": batch, "step": step, "beyond": seconds - step}
        row |= {"exact": all(map(torch.equal, results, expected)), "within": peak <= budget, "peak": peak / budget}
        row |= {
            "provenance": report.provenance,
            "captured": report.unfilled,
            "stages": report.seconds,
            "capture": capture,
        }
        if at % 10 == 9 and at < count and report.store_all_peak > budget:
            own = remat.exec.report(remat.exec.wrap(fresh(), call, budget, progress=False, rehearse=False))
            runs = [run.node for run in report.schedule.runs]
            replayed = validate(own.graph, Schedule.from_runs(own.graph, runs))
            row["loss"] = (replayed.time - own.cost.time) / own.graph.time
        print(
            f"{name:8} {share} {length:4d} x {batch} {step:7.3f} {row['beyond']:7.3f} peak {row['peak']:6.1%} "
            f"{row['provenance']:10} {100 * row.get('loss', math.nan):+6.2f} "
            f"{'ok' if row['exact'] and row['within'] else 'WRONG'} "
            f"{row['captured'][:60]}",
            flush=True,
        )
        yield row


def random_lengths(names, count):
    """All rows, and whether one is wrong."""
    rows = []
    for name in names:
        for share in ("40%", "60%"):
            mine = list(random_rows(name, share, count))
            beyond = sorted(row["beyond"] for row in mine)
            print(
                f"{name} {share}: beyond the bare step median {statistics.median(beyond):.3f} s, nine of ten "
                f"{beyond[9 * len(beyond) // 10]:.3f}, worst {beyond[-1]:.3f} CPU seconds"
            )
            rows += mine
    OUT.with_name("lengths.json").write_text(json.dumps(rows, indent=1))
    return all(row["exact"] and row["within"] for row in rows)


GROWTH = 1.05
"""Resident memory at the end of many shapes, as a share of what it was after the first quarter of them."""


def resident():
    """Resident memory of the process [bytes]."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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
        GPT2(layers=1, width=32, context=longest), gpt2_call(longest, widest), "80%", progress=False, rehearse=False
    )
    shapes = [(length, batch) for length in range(16, longest + 1) for batch in range(2, widest + 1)]
    order = torch.randperm(len(shapes), generator=torch.Generator().manual_seed(0))[:count].tolist()
    start, rows = time.process_time(), []
    for at, number in enumerate(order, 1):
        model(*gpt2_call(*shapes[number])).backward()
        model.zero_grad(set_to_none=True)
        if at % max(1, count // 16) == 0:
            row = {"shapes": at, "resident": resident(), "functions": generated()}
            row["cpu"] = time.process_time() - start
            rows.append(row)
            print(
                f"{at:5d} shapes  {row['resident'] / 2**20:7.1f} MiB  {row['functions']:4d} functions  "
                f"{row['cpu'] / at:.3f} CPU seconds each",
                flush=True,
            )
    OUT.with_name("growth.json").write_text(json.dumps(rows, indent=1))
    quarter, last = rows[len(rows) // 4], rows[-1]
    grown = last["resident"] / quarter["resident"]
    print(f"resident memory at the end over that after {quarter['shapes']} shapes: {grown:.3f}")
    return grown <= GROWTH and last["functions"] <= max(row["functions"] for row in rows[: len(rows) // 2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices={**CASES, **RANDOM})
    parser.add_argument("--lengths", type=int, default=0, help="so many random lengths")
    parser.add_argument("--growth", type=int, default=0, help="so many different shapes, and whether memory grows")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.growth:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        sys.exit(not no_growth(arguments.growth))
    if arguments.lengths:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        sys.exit(not random_lengths([arguments.only] if arguments.only else list(RANDOM), arguments.lengths))
    print("case       size    step      own   family  overhead    family    loss  provenance  (CPU seconds, points)")
    names = [arguments.only] if arguments.only else list(CASES)
    rows = [row for name in names for row in rows_of(name)]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1))
    for name in names:
        mine = [row for row in rows if row["case"] == name]
        medians = {kind: statistics.median(row[kind] for row in mine) for kind in ("own", "family")}
        print(f"{name}: median {medians['own']:.2f} s planned for itself, {medians['family']:.2f} s from other sizes")
    lossy = sum(row["loss"] > LOSS_BAR for row in rows)
    wrong = [row for row in rows if not (row["exact"] and row["within"])]
    print(f"{lossy} of {len(rows)} lose more than 2 points; {len(wrong)} wrong or over the budget")
    sys.exit(bool(wrong) or 10 * lossy > len(rows))


if __name__ == "__main__":
    main()
