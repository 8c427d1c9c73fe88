"""Checks that need a process group, in a process of their own: what one process does there never hangs or haunts a suite."""

import datetime
import os
import tempfile
import time
import traceback
from pathlib import Path

import torch

PATIENCE = 120.0


def apart(checks, ranks=1, patience=PATIENCE, last=None):
    """Run functions `check(rank)` one after another in a group of processes; what each said, by name: "ok" or a traceback.

    Args:
        checks: functions of a module, so that a new process finds them.
        ranks: size of the group.
        patience: how long all checks together may take [s].
        last: one more, after which each process exits at once and does not wait for the others.
    """
    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            context.Process(target=_run, args=(checks, last, rank, ranks, folder, patience), daemon=True)
            for rank in range(ranks)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(patience)
        exits = [worker.exitcode for worker in workers]
        for worker in workers:
            worker.kill()
        texts = {
            check.__name__: "\n".join(_said(Path(folder), check, rank) for rank in range(ranks))
            for check in (*checks, *([last] if last else []))
        }
        if last and None in exits:
            texts[last.__name__] += f"\nexits: {exits}"
        return texts


def _said(folder, check, rank):
    file = folder / f"{check.__name__}.{rank}"
    return file.read_text() if file.exists() else "it did not end"


def _run(checks, last, rank, ranks, folder, patience):
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=patience)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=timeout)
    for check in checks:
        _try(check, rank, folder)
    # Leave only when all are done, and without tearing gloo down: its threads now and then never end.
    until = time.monotonic() + patience
    while time.monotonic() < until and not all(
        (Path(folder) / f"{checks[-1].__name__}.{r}").exists() for r in range(ranks)
    ):
        time.sleep(0.01)
    if last is not None:
        _try(last, rank, folder)
    os._exit(0)


def _try(check, rank, folder):
    try:
        check(rank)
        text = "ok"
    except Exception:  # noqa: BLE001 - told to the process that asked
        text = traceback.format_exc()
    part = Path(folder) / f"part.{rank}"
    part.write_text(text)
    part.rename(Path(folder) / f"{check.__name__}.{rank}")
