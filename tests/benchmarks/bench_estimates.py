"""`make bench-estimates`: what `remat.estimate` says of a step with AdamW on the CPU, against the step that runs.

    python -m tests.benchmarks.bench_estimates [--only ResNet] [--fresh]

For each model, in float32:

* the peak of forward and backward, and of the whole step with the optimizer, by the allocator's events of a step that has run
  before (gradients None), against the estimate;
* the optimizer's states, counted in the optimizer;
* the largest batch in a memory that is `MEMORY` times what the first batch needs: the step with it is run, and the step with the
  smallest batch that the estimate says not to fit;
* the largest batch with a plan: wrapped within the budget that is left, and trained.

The bars: peaks within 2 %, states exact; the largest batch holds at most the memory, 3 % more (one sample at least) hold more; the
planned one holds at most the memory. Rows go to docs/benchmarks/estimates.json one by one: a run that was stopped goes on.
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
from remat.exec._cost.optimizers import states_now
from tests.benchmarks.estimated_models import MODELS, Sized
from tests.benchmarks.paper_rows import Row, Rows, flags, told
from tests.models.model import seeded
from tests.models.operators import declare_torchvision_operators

NEAR = 0.02
"""How far off an estimated peak may be."""
MEMORY = 2.5
"""What there is for the step, over what the first batch needs."""
PACKAGES = ("torch", "transformers", "diffusers", "timm", "torchvision")
SECONDS = 0.5
"""Of each planning in the search for the largest planned batch."""


def factory_of(model: Sized) -> Callable[..., Any]:
    """The factory that `remat.estimate` takes, its argument named as there."""

    def step(batch: int = model.batch) -> tuple[Any, ...]:
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


def row_of(model: Sized) -> Row:
    """All numbers of a model."""
    factory = factory_of(model)
    needs = remat.estimate(factory, memory="1TiB").needs
    row: Row = {"first": {"batch": model.batch, "estimated": _numbers(needs), "measured": held(model, model.batch)}}
    memory = needs.outside + int(MEMORY * (needs.total - needs.outside))
    batch = remat.estimate(factory, memory=memory, batch="batch", seconds=SECONDS).batch
    assert batch is not None
    row["memory"] = memory
    for word, size, estimated in (
        ("largest", batch.keeping.batch, batch.keeping.need),
        ("beyond", batch.keeping.next_batch, batch.keeping.next_need),
    ):
        assert size is not None
        row[word] = {"batch": size, "estimated": estimated, "measured": held(model, size)["total"]}
        gc.collect()
    return row | {"planned": planned(model, memory, batch.planned.batch, batch.ratio)}


def planned(model: Sized, memory: int, batch: int, ratio: float | None) -> Row:
    """The largest planned batch, wrapped within the budget that the estimate leaves, and trained."""
    estimate = remat.estimate(lambda: model.step(batch), memory=memory, seconds=3)
    row: Row = {"batch": batch, "ratio": ratio, "budget": estimate.budget, "measured": None}
    try:
        return row | {"measured": held(model, batch, estimate.budget)["total"]}
    except remat.errors.RematError as refusal:
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
    memory, largest, beyond, planned = row["memory"], row["largest"], row["beyond"], row["planned"]
    lines = []
    if largest["measured"] > memory:
        lines.append(f"{name}: {largest['batch']} samples hold {largest['measured']} B of {memory} B")
    if beyond["measured"] <= memory:
        lines.append(f"{name}: {beyond['batch']} samples hold {beyond['measured']} B and fit into {memory} B")
    if beyond["batch"] > largest["batch"] + max(1, largest["batch"] * 3 // 100):
        lines.append(f"{name}: {beyond['batch']} samples are more than 3 % beyond {largest['batch']}")
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
    for name, model in MODELS.items():
        rows.add(name, lambda model=model: row_of(model))
    return told(missed(rows.rows))


if __name__ == "__main__":
    sys.exit(main())
