"""Stacks that train in several processes: each process judges its own run as a single one is judged, and all must be good."""

from __future__ import annotations

import json
import os
import socket
import traceback
from pathlib import Path

import attrs
import torch

from tests.models.operators import declare_torchvision_operators
from tests.stacks.stack import Row, Stack, judged

PATIENCE = 600.0
"""Seconds after which processes that have not ended are ended."""


def row_of(stack: Stack, kind: str, folder: Path) -> Row:
    """Run a stack, in as many processes as it is for, and judge it.

    Raises:
        RuntimeError: with what a process raised, or that it did not end.
    """
    if stack.ranks == 1:
        return judged(stack, kind, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_judge, args=(stack.name, kind, str(folder), rank, port), daemon=True)
        for rank in range(stack.ranks)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
        worker.kill()
    return together([_read(folder / f"{rank}.json") for rank in range(stack.ranks)])


def together(rows: list[Row]) -> Row:
    """What all processes came to: each mark if all have it; a step that one plans and the others replay is planned once."""
    return Row(
        planned=all(row.planned for row in rows),
        exact=all(row.exact for row in rows),
        within=all(row.within for row in rows),
        plannings=sum(row.plannings for row in rows),
        expected=rows[0].expected,
        words="; ".join(f"rank {rank}: {row.words}" for rank, row in enumerate(rows)),
    )


def _read(file: Path) -> Row:
    if not file.exists():
        raise RuntimeError(f"the process of {file.name} did not end")
    record = json.loads(file.read_text())
    if "error" in record:
        raise RuntimeError(record["error"])
    return Row(**record)


def _judge(name: str, kind: str, folder: str, rank: int, port: int) -> None:
    """One process: as torchrun starts it."""
    from tests.stacks.scripts import STACKS

    (stack,) = (stack for stack in STACKS if stack.name == name)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(stack.ranks), "LOCAL_WORLD_SIZE": str(stack.ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    declare_torchvision_operators()
    try:
        record = attrs.asdict(judged(stack, kind, Path(folder) / str(rank)))
    except Exception:  # noqa: BLE001 - told to the process that asked
        record = {"error": traceback.format_exc()}
    part = Path(folder) / f"{rank}.part"
    part.write_text(json.dumps(record))
    part.rename(Path(folder) / f"{rank}.json")
