"""`make bench-estimates`: what `remat.estimate` says of a step with AdamW on the CPU, against the step that runs.

    python -m tests.benchmarks.bench_estimates [--only ResNet] [--fresh]

For each model, in float32:

* the peak of forward and backward, and of the whole step with the optimizer, by the allocator's events of a step that has run
  before (gradients None), against the estimate;
* the optimizer's states, counted in the optimizer;
* the largest batch in a memory that is `MEMORY` times what the first batch needs: the step with it is run, and the step with the
  smallest batch that the estimate says not to fit;
* for the models in `PLANNED`, the largest batch with a plan: wrapped within the budget that is left, and trained.

The bars: peaks within 2 %, states exact; the largest batch holds at most the memory, 3 % more (one sample at least) hold more;
the planned one holds at most the memory. Rows go to docs/benchmarks/estimates.json one by one: a run that was stopped goes on.
`python -m tests.site.estimates` makes the page. Exits 1 where a bar is missed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import remat
import remat.exec
from remat.errors import RematError
from remat.exec._cost.optimizers import states_now
from remat.exec._plan.batches import largest_batch
from remat.exec.estimating import RESERVE_CPU
from tests.benchmarks.estimated_models import MODELS, Sized
from tests.benchmarks.paper_rows import Row, Rows, flags, told
from tests.models.model import seeded
from tests.models.operators import declare_torchvision_operators

NEAR = 0.02
"""How far off an estimated peak may be."""
PLANNED = ("MLP", "MLP, half frozen", "LSTM", "graph network", "MLP-Mixer")
"""Models whose largest planned batch is looked for and trained."""
MEMORY = 2.25
"""What there is for the step, over what the first batch needs."""
PACKAGES = ("torch", "transformers", "diffusers", "timm", "torchvision")
SECONDS = 0.5
"""Of each planning in the search for the largest planned batch."""


def factory_of(model: Sized, samples: int | None = None) -> Callable[..., Any]:
    """The factory that `remat.estimate` takes, its argument named as there; its default is what the model has, or a number."""

    def step(batch: int = samples or model.batch) -> tuple[Any, ...]:
        return model.step(batch)

    return step


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors of a call."""
    return [tensor for tensor in value.values() if isinstance(tensor, torch.Tensor)]


def held(model: Sized, batch: int, budget: int | None = None) -> Row:
    """What a training step with its optimizer holds [bytes]: before it, in forward and backward, and in all; wrapped or not."""
    with seeded(0):
        module, _, call = model.step(batch)
    wrapped = module if budget is None else remat.exec.wrap(module, call, budget, seconds=3, on_uncapturable="raise")
    optimizer = torch.optim.AdamW(parameter for parameter in module.parameters() if parameter.requires_grad)
    step(wrapped, call)
    optimizer.step()
    forget(module)
    backward = remat.exec.measure_step(lambda: step(wrapped, call)).peak
    forget(module)
    whole = remat.exec.measure_step(lambda: (step(wrapped, call), optimizer.step())).peak
    states = states_now(optimizer)
    before = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers(), *tensors_of(call))) + states
    return {"states": states, "before": before, "step": backward, "total": before + whole}


def step(module: nn.Module, call: dict[str, Any]) -> None:
    """Forward and backward."""
    module(**call).backward()


def forget(module: nn.Module) -> None:
    """Set the gradients to None."""
    for parameter in module.parameters():
        parameter.grad = None


def row_of(name: str) -> Row:
    """All numbers of a model."""
    model = MODELS[name]
    factory = factory_of(model)
    needs = remat.estimate(factory, memory="1TiB").needs
    row: Row = {"first": {"batch": model.batch, "estimated": _numbers(needs), "measured": held(model, model.batch)}}
    memory = needs.outside + int(MEMORY * (needs.total - needs.outside))
    row["memory"] = memory
    if name in PLANNED:
        both = remat.estimate(factory, memory=memory, batch="batch", seconds=SECONDS).batch
        assert both is not None
        keeping = both.keeping
        row["planned"] = planned(model, memory, both.planned.batch, both.ratio)
    else:  # the same search, without the one for plans, which takes most of the time
        spare = memory - RESERVE_CPU
        keeping = largest_batch(lambda size: remat.estimate(factory_of(model, size)).needs.total, spare, model.batch)
    for word, size, estimated in (
        ("largest", keeping.batch, keeping.need),
        ("beyond", keeping.next_batch, keeping.next_need),
    ):
        assert size is not None
        row[word] = {"batch": size, "estimated": estimated, "measured": held(model, size)["total"]}
        gc.collect()
    return row


def planned(model: Sized, memory: int, batch: int, ratio: float | None) -> Row:
    """The largest planned batch, wrapped within the budget that the estimate leaves, and trained."""
    estimate = remat.estimate(lambda: model.step(batch), memory=memory, seconds=3)
    row: Row = {"batch": batch, "ratio": ratio, "budget": estimate.budget, "measured": None}
    try:
        return row | {"measured": held(model, batch, estimate.budget)["total"]}
    except RematError as refusal:
        return row | {"refused": str(refusal).splitlines()[0]}


def _numbers(needs: Any) -> Row:
    """The numbers of an estimate that `held` measures."""
    return {"states": needs.states, "before": needs.outside, "step": needs.step, "total": needs.total}


def missed(rows: dict[str, Row]) -> list[str]:
    """The bars that stored rows miss."""
    lines = []
    for name, row in rows.items():
        estimated, measured = row["first"]["estimated"], row["first"]["measured"]
        if abs(estimated["step"] / measured["step"] - 1) > NEAR:
            lines.append(
                f"{name}: the step's peak is estimated at {estimated['step']} B and measured at {measured['step']} B"
            )
        whole = estimated["total"] - estimated["before"], measured["total"] - measured["before"]
        if abs(whole[0] / whole[1] - 1) > NEAR:
            lines.append(f"{name}: with the optimizer {whole[0]} B are estimated and {whole[1]} B measured")
        if estimated["states"] != measured["states"]:
            lines.append(f"{name}: states of {estimated['states']} B estimated, {measured['states']} B made")
        lines += _missed_batches(name, row)
    return lines


def _missed_batches(name: str, row: Row) -> list[str]:
    memory, largest, beyond = row["memory"], row["largest"], row["beyond"]
    lines = []
    if largest["measured"] > memory:
        lines.append(f"{name}: {largest['batch']} samples hold {largest['measured']} B of {memory} B")
    if beyond["measured"] <= memory:
        lines.append(f"{name}: {beyond['batch']} samples hold {beyond['measured']} B and fit into {memory} B")
    if beyond["batch"] > max(largest["batch"] + 1, -(-largest["batch"] * 103 // 100)):
        lines.append(f"{name}: {beyond['batch']} samples are more than 3 % beyond {largest['batch']}")
    planned = row.get("planned")
    if planned is None:
        return lines
    if planned["measured"] is None:
        lines.append(f"{name}: {planned['batch']} samples are refused: {planned['refused']}")
    elif planned["measured"] > memory:
        lines.append(f"{name}: {planned['batch']} planned samples hold {planned['measured']} B of {memory} B")
    return lines


def main() -> int:
    """Measure what is missing."""
    given = flags(__doc__).parse_args()
    torch.set_num_threads(1)
    declare_torchvision_operators()
    rows = Rows("estimates", fresh=given.fresh, only=given.only, packages=PACKAGES)
    failed = []
    for name in MODELS:
        try:
            rows.add(name, lambda name=name: row_of(name))
        except RematError as refusal:
            failed.append(f"{name}: {refusal}")
    return told(failed + missed(rows.rows))


if __name__ == "__main__":
    sys.exit(main())
