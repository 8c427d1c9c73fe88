"""The demo: a real GPT-2 trained twice on English text, bare and wrapped at a part of its own measured memory.

Prints one table, writes a picture of memory over a step and the plan as JSON, and checks the two promises: the same losses, and a
measured peak within the budget.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics
from statistics import median

import torch
from attrs import field, frozen
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from remat.errors import BackendMissing
from remat.exec import Report, measure_step, report, wrap
from remat.exec._cost.audit import StepMemory
from remat.ir import dump
from remat.units import Bytes, format_bytes
from remat.viz.canvas import finished, new_figure
from remat.zoo import GPT2


@frozen(kw_only=True)
class Settings:
    """What is trained, how long, and in how much of its memory."""

    layers: int = 12
    width: int = 192
    heads: int = 6
    context: int = 128
    batch: int = 8
    steps: int = 20
    fraction: float = 0.4
    seed: int = 0


@frozen(kw_only=True)
class Training:
    """The results of a run.

    Attributes:
        losses: of each step. seconds: of each step. memory: of one step more, measured. boundary: when its backward began,
            by the clock of `time.time_ns` [ns].
    """

    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    memory: StepMemory = field(repr=False)
    boundary: int


def english() -> Tensor:
    """The text every CPython ships with its interactive help, as bytes."""
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return torch.tensor(list(text.encode()), dtype=torch.long)


def batches(settings: Settings) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of (tokens, targets), each (batch, context); the same for the same seed."""
    text = english()
    draw = torch.Generator().manual_seed(settings.seed)
    while True:
        starts = torch.randint(len(text) - settings.context - 1, (settings.batch,), generator=draw)
        rows = torch.stack([text[start : start + settings.context + 1] for start in starts.tolist()])
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def build(settings: Settings) -> GPT2:
    """The model; the same weights for the same seed."""
    torch.manual_seed(settings.seed)
    return GPT2(layers=settings.layers, width=settings.width, heads=settings.heads, context=settings.context)


def train(module: nn.Module, settings: Settings, advance: Progress | None = None, label: str = "") -> Training:
    """Train with AdamW, gradients set to None before each step, then measure one step more."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    source = batches(settings)
    torch.manual_seed(settings.seed)
    losses, seconds = [], []
    task = None if advance is None else advance.add_task(label, total=settings.steps)
    for _ in range(settings.steps):
        tokens, targets = next(source)
        optimizer.zero_grad(set_to_none=True)
        start = time.perf_counter()
        loss = module(tokens, targets)
        loss.backward()
        seconds.append(time.perf_counter() - start)
        optimizer.step()
        losses.append(loss.item())
        del loss
        if advance is not None and task is not None:
            advance.update(task, advance=1, description=f"{label} loss {losses[-1]:.3f}")
    optimizer.zero_grad(set_to_none=True)
    memory, boundary = one_step(module, *next(source))
    return Training(losses=tuple(losses), seconds=tuple(seconds), memory=memory, boundary=boundary)


def one_step(module: nn.Module, tokens: Tensor, targets: Tensor) -> tuple[StepMemory, int]:
    """Memory of one step that starts without gradients, and when its backward began."""
    boundary = 0

    def step() -> Tensor:
        nonlocal boundary
        loss: Tensor = module(tokens, targets)
        boundary = time.time_ns()
        loss.backward()
        return loss

    memory = measure_step(step)
    module.zero_grad(set_to_none=True)
    return memory, boundary


def bare_peak(settings: Settings) -> Bytes:
    """The measured peak of a warmed step of the bare model."""
    model, (tokens, targets) = build(settings), next(batches(settings))
    one_step(model, tokens, targets)
    return one_step(model, tokens, targets)[0].peak


def run(settings: Settings, out: Path, console: Console) -> bool:
    """Train both, print the table, write the picture and the plan to `out`; whether losses agree and the budget held."""
    _check_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    tokens, targets = next(batches(settings))
    peak = bare_peak(settings)
    budget = int(peak * settings.fraction)
    model = build(settings)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    console.print(
        f"GPT-2, {settings.layers} layers of width {settings.width}, {parameters / 1e6:.1f} M parameters, dropout, tied "
        f"embeddings; {settings.steps} steps on {len(english()) / 1e6:.1f} MB of English, byte by byte."
    )
    with console.status(f"capture, measure and plan for {format_bytes(budget)}"):
        wrapped = wrap(build(settings), (tokens, targets), budget=budget)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bare = train(model, settings, progress, "bare   ")
        lean = train(wrapped, settings, progress, "wrapped")
    planned = report(wrapped)
    worst = max(abs(a - b) for a, b in zip(bare.losses, lean.losses, strict=True))
    within = lean.memory.peak <= budget
    console.print(_table(bare, lean, budget, planned, worst))
    dump(planned.schedule, out / "plan.json")
    dump(planned.graph, out / "graph.json.gz")
    draw(bare, lean, budget, out / "demo.png", settings)
    console.print(f"picture: {out / 'demo.png'}; plan: {out / 'plan.json'}; graph: {out / 'graph.json.gz'}")
    verdict = [] if worst == 0 else [f"a loss differs by {worst:.3g}"]
    verdict += [] if within else [f"the measured peak is {format_bytes(lean.memory.peak - budget)} over the budget"]
    console.print("[red]" + "; ".join(verdict) if verdict else "[green]same losses, within the budget")
    return not verdict


def _table(bare: Training, lean: Training, budget: Bytes, planned: Report, worst: float) -> Table:
    table = Table(title="bare and wrapped, same seed")
    for name in ("", "bare", "wrapped"):
        table.add_column(name, justify="left" if not name else "right")
    peak, wrapped_peak = bare.memory.peak, lean.memory.peak
    ratio = median(lean.seconds) / median(bare.seconds)
    table.add_row("loss, first step", f"{bare.losses[0]:.6f}", f"{lean.losses[0]:.6f}")
    table.add_row("loss, last step", f"{bare.losses[-1]:.6f}", f"{lean.losses[-1]:.6f}")
    table.add_row("largest difference of a loss", "", f"{worst:.3g}")
    table.add_row("budget", "", f"{format_bytes(budget)} ({budget / peak:.1%} of the bare peak)")
    table.add_row("predicted peak", "", format_bytes(planned.predicted_peak))
    table.add_row("measured peak", format_bytes(peak), f"{format_bytes(wrapped_peak)} ({wrapped_peak / peak:.1%})")
    table.add_row(
        "step time (median)",
        f"{median(bare.seconds) * 1e3:.0f} ms",
        f"{median(lean.seconds) * 1e3:.0f} ms ({ratio:.3f})",
    )
    table.add_row("recomputations", "", f"{planned.reruns} runs")
    table.add_row("planning", "", f"{planned.planning_seconds:.1f} s")
    gap = planned.gap
    table.add_row("gap to the lower bound", "", "no bound" if gap is None else f"{gap:.2%}")
    return table


def _check_matplotlib() -> None:
    """Fail before training, not after it."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        fix = "pip install 'remat[viz]'"
        raise BackendMissing(
            "V-MATPLOTLIB", "the demo draws with matplotlib, which is not installed.", fix=fix
        ) from error


def draw(bare: Training, lean: Training, budget: Bytes, path: Path, settings: Settings) -> None:
    """Memory over one step, bare against wrapped, with the budget and where each backward begins."""
    figure = new_figure(9, 4.2)
    figure.set_dpi(130)
    axes = figure.add_subplot()
    for training, label, colour in ((bare, "bare", "#8a8f98"), (lean, "wrapped", "#2563a8")):
        memory = training.memory
        start = memory.times[0]
        x = [(at - start) / 1e6 for at in memory.times]
        y = [live / 2**20 for live in memory.timeline]
        axes.fill_between(x, y, step="post", color=colour, alpha=0.18, linewidth=0)
        axes.step(x, y, where="post", color=colour, linewidth=1.3, label=f"{label}, peak {format_bytes(memory.peak)}")
        axes.axvline((training.boundary - start) / 1e6, color=colour, linewidth=1, linestyle=":")
    axes.axhline(budget / 2**20, color="#c0392b", linewidth=1.2, linestyle="--", label=f"budget {format_bytes(budget)}")
    axes.set_xlabel("time in the step [ms]; dotted: the backward begins")
    axes.set_ylabel("memory above parameters [MiB]")
    axes.set_title(f"One training step of a {settings.layers}-layer GPT-2", loc="left")
    axes.set_ylim(0)
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    finished(figure, path)
