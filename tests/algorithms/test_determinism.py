"""`auto` gives the same plan for the same problem: in other processes, with other string hashes, and on a busy machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CAPTURED = Path(__file__).parents[1] / "data" / "captured"

PLAN = """
import sys
from remat.algorithms._whole.baselines import store_all_peak
from remat.algorithms._search.auto import auto
from remat.algorithms._core.problem import Problem
from remat.ir import dumps, read_joint_graph

for path, share in zip(sys.argv[1::2], map(float, sys.argv[2::2])):
    graph = read_joint_graph(path)
    outcome = auto.solve(Problem(graph=graph, budget=int(store_all_peak(graph) * share)))
    print(outcome.lower, dumps(outcome.schedule))
"""

PROBLEMS = ("unet", 0.5, "gpt12", 0.35)


def planned(hashes: str) -> bytes:
    """What a fresh process prints: bound and schedule of each problem."""
    files = [str(CAPTURED / f"{one}.json.gz") if isinstance(one, str) else str(one) for one in PROBLEMS]
    environment = os.environ | {"PYTHONHASHSEED": hashes}
    return subprocess.run([sys.executable, "-c", PLAN, *files], check=True, capture_output=True, env=environment).stdout


@contextmanager
def busy_cores() -> Iterator[None]:
    """Something that computes on every core."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for one in burners:
            one.kill()
            one.wait()


@pytest.mark.slow
def test_the_same_plan_byte_for_byte_in_other_processes_and_on_a_busy_machine():
    alone = planned("1")
    assert alone.count(b"\n") >= 2
    with busy_cores():
        assert planned("2") == alone
