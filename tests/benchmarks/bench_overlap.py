"""`python -m tests.benchmarks.bench_overlap`: when the buckets of DDP are ready, in a pair of processes over gloo.

A bucket is summed over the processes from the moment when the last of its gradients was accumulated, beside what is left of the
backward. For each bucket: the share of the backward's CPU time (of the thread that runs it) that had passed. A sum that begins
at 100 % overlaps with nothing. Rows: the bare module; a plan as one node of autograd, which gives its gradients at its end; a
plan as a chain of nodes. Gradients of the three are compared to the last bit. Writes build/bench/overlap.json.
"""

import contextlib
import copy
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import torch
from torch import nn
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

import remat.exec
from remat.exec._run import runtime
from remat.zoo import GPT2

OUT = Path("build/bench/overlap.json")
STEPS, BUCKET_MIB, BUDGET = 6, 0.5, "60%"
ROWS = ("bare", "one node", "chain")


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and its batch, the same on both."""
    torch.manual_seed(0)
    tokens = torch.randint(256, (4, 64))
    return GPT2(layers=6, width=128, heads=4, context=64), (tokens, tokens)


def rows_of(rank: int) -> dict[str, dict[str, Any]]:
    """Shares and gradients of each row."""
    bare, batch = build()
    planned = remat.exec.wrap(copy.deepcopy(bare), None, BUDGET, seconds=3)
    rows: dict[str, dict[str, Any]] = {}
    for name in ROWS:
        module = copy.deepcopy(bare) if name == "bare" else planned
        for parameter in module.parameters():
            parameter.grad = None
        alone = name == "one node"
        with mock.patch.object(runtime, "is_awaited", lambda leaves: False) if alone else contextlib.nullcontext():
            rows[name] = shares(DistributedDataParallel(module, bucket_cap_mb=BUCKET_MIB), batch)
        rows[name]["gradients"] = [parameter.grad.clone() for parameter in module.parameters()]
    return rows


def shares(parallel: nn.Module, batch: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """The share of the backward after which each bucket is ready, medians of some steps."""
    ready: list[float] = []
    clock: Callable[[], float] = time.thread_time

    def hook(_state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        ready.append(clock())
        summed = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return summed.then(lambda future: future.value()[0] / 2)

    parallel.register_comm_hook(None, hook)  # type: ignore[operator]
    found = []
    for step in range(STEPS):
        parallel.zero_grad(set_to_none=True)
        torch.manual_seed(step)
        loss = parallel(*batch)
        ready.clear()
        start = clock()
        loss.backward()
        total = clock() - start
        if step > 1:  # DDP makes its buckets anew in its second step
            found.append([(at - start) / total for at in ready])
    return {"ready": numpy.median(found, axis=0).tolist()}


def worker(rank: int, store: str, out: str) -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    rows = rows_of(rank)
    first = rows["bare"]["gradients"]
    for row in rows.values():
        row["exact"] = all(map(torch.equal, first, row.pop("gradients")))
    if rank == 0:
        Path(out).write_text(json.dumps(rows))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        torch.multiprocessing.spawn(worker, (f"{folder}/store", str(out)), nprocs=2)
        rows = json.loads(out.read_text())
    print(f"torch {torch.__version__}, GPT-2 of 6 layers, buckets of {BUCKET_MIB} MiB, budget {BUDGET}, two processes")
    for name, row in rows.items():
        marks = " ".join(f"{share:4.0%}" for share in row["ready"])
        print(f"{name:10} {'exact' if row['exact'] else 'DIFFERS':8} buckets ready at {marks}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1))
    late = [name for name in ("chain",) if numpy.mean(rows[name]["ready"]) > 0.9]
    wrong = [name for name, row in rows.items() if not row["exact"]]
    print(
        "\n".join(
            [*(f"MISSED {name}: buckets wait for the end" for name in late), *(f"MISSED {name}" for name in wrong)]
        )
    )
    return 1 if late or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
