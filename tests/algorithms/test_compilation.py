"""Compilation of the kernels: counted apart, out of deadlines, filled ahead, without a cache, interrupted."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest
from numba import njit
from numba.extending import overload

from remat.algorithms._arrays import jit, kernel_cache, kernel_sources
from remat.algorithms._core import compilation
from remat.algorithms._core import startup as once
from remat.algorithms._core.clock import Clock
from remat.algorithms._core.compilation import CompileClock, compile_seconds, compile_tally, counted_as_compiling
from remat.algorithms._core.interruption import Uninterrupted
from remat.algorithms._core.outcome import Status
from remat.algorithms._core.problem import Problem
from remat.algorithms._core.solver import Solver
from remat.algorithms._search import kernel_prefetch
from remat.algorithms._search.passes import RuinAndRecreate
from remat.algorithms._search.warmup import warm_up
from tests.algorithms.test_runs_liveness import chain

ROOT = Path(__file__).parents[2]


def run(code, **environment):
    """What a fresh process prints, in this environment."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


# -- counting ----------------------------------------------------------------------------------------------------------


def test_a_kernel_that_compiles_is_counted_and_one_that_is_compiled_is_not():
    function = njit(lambda x: x + 1)
    with CompileClock() as first:
        function(1)
    with CompileClock() as second:
        function(2)
    assert first.seconds > 0
    assert second.seconds == 0


def test_compilation_in_another_thread_is_not_counted_here():
    function = njit(lambda x: x + 2)
    with CompileClock() as compiled:
        thread = threading.Thread(target=function, args=(1,))
        thread.start()
        thread.join()
    assert len(function.signatures) == 1
    assert compiled.seconds == 0


@pytest.fixture
def ticks(monkeypatch):
    """The time of day of the clocks, set by hand [s]."""
    now = SimpleNamespace(seconds=100.0)
    fake = SimpleNamespace(monotonic=lambda: now.seconds)
    monkeypatch.setattr(compilation, "time", fake)
    monkeypatch.setattr(once, "time", fake)
    return now


def test_nested_compilations_count_once_and_those_that_go_on_count_so_far(ticks):
    before = compile_seconds()
    with counted_as_compiling():
        ticks.seconds += 2
        with counted_as_compiling():
            ticks.seconds += 3
            assert compile_seconds() - before == 5
    ticks.seconds += 7
    assert compile_seconds() - before == 5


def test_a_deadline_leaves_compilation_out(ticks):
    clock = Clock(10)
    inner = clock.nested(8)
    with counted_as_compiling():
        ticks.seconds += 60
        assert not clock.expired
    assert (clock.elapsed, clock.remaining, inner.remaining) == (0, 10, 8)
    ticks.seconds += 9
    assert inner.expired
    assert not clock.expired
    ticks.seconds += 1
    assert clock.expired


def test_a_clock_read_in_another_thread_leaves_out_the_compilation_of_its_own(ticks):
    clock, read = Clock(10), []
    with counted_as_compiling():
        ticks.seconds += 60
    thread = threading.Thread(target=lambda: read.append(clock.remaining))
    thread.start()
    thread.join()
    assert read == [10]


def test_clocks_bring_in_no_compiler():
    run(
        "import sys, remat.algorithms._core.clock, remat.algorithms._core.compilation; assert 'numba' not in sys.modules"
    )


# -- filling the cache ahead -------------------------------------------------------------------------------------------

PLANS = """
import importlib, pkgutil
from remat.algorithms import _arrays, _search
from numba.core.dispatcher import Dispatcher
from remat.algorithms._whole.baselines import store_all_peak
from remat.algorithms._search.auto import auto
from remat.algorithms._core.problem import Problem
from remat.algorithms._search.passes import Relieve
from remat.ir import read_joint_graph

names = [m.name for room in (_arrays, _search) for m in pkgutil.iter_modules(room.__path__, room.__name__ + ".")]
modules = [importlib.import_module(name) for name in names]
kernels = {k.py_func.__qualname__: k for m in modules for k in vars(m).values() if isinstance(k, Dispatcher)}

graph = read_joint_graph("tests/data/captured/unet.json.gz")

def plan(*shares):
    for share in shares:
        auto.within(2).solve(Problem(graph=graph, budget=int(store_all_peak(graph) * share)))

def plan_near_the_floor():
    plan(0.15)
    Relieve(work=2e5).solve(Problem(graph=graph, budget=int(store_all_peak(graph) * 0.15)))
"""


def test_warming_up_leaves_no_kernel_of_the_default_planner_to_compile():
    code = """
    from remat.algorithms._search.warmup import warm_up
    warm_up()
    before = {name: list(kernel.signatures) for name, kernel in kernels.items()}
    plan(0.5, 0.25)
    plan_near_the_floor()
    assert all(before.values()), before
    assert {name: list(kernel.signatures) for name, kernel in kernels.items()} == before
    """
    run(PLANS + textwrap.dedent(code))


def test_after_helpers_have_filled_an_empty_cache_no_kernel_of_a_plan_compiles(tmp_path):
    code = """
    from remat.algorithms._search.kernel_prefetch import await_kernels, prefetch
    assert prefetch()
    assert not prefetch()
    plan(0.5, 0.25)
    assert sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels.values()) > 0
    print(sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels.values()))
    assert not prefetch()
    plan_near_the_floor()
    print(sorted(name for name, kernel in kernels.items() if kernel.stats.cache_misses))
    """
    compiled = run(PLANS + textwrap.dedent(code), NUMBA_CACHE_DIR=str(tmp_path)).stdout.splitlines()
    assert compiled == ["0", "[]"]


def test_a_helper_and_its_fork_end_when_their_parent_is_killed(tmp_path):
    code = """
    import os, pathlib, signal, time
    from remat.algorithms._search import kernel_prefetch
    assert kernel_prefetch.prefetch()
    pid = kernel_prefetch._helper.process.pid
    while not (forks := pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        time.sleep(0.05)
    print(pid, *forks, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    parent = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment
    )
    helpers = [int(pid) for pid in parent.stdout.split()]
    assert len(helpers) == 2, parent.stderr
    until = time.monotonic() + 60
    while any(alive(pid) for pid in helpers):
        assert time.monotonic() < until
        time.sleep(0.05)


def alive(pid):
    """Whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_helpers_that_fail_leave_the_work_to_this_process(tmp_path, monkeypatch, caplog):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    monkeypatch.setattr(kernel_prefetch, "_surely_incomplete", lambda: True)
    caplog.set_level("INFO", logger="remat")
    assert kernel_prefetch.prefetch()
    outcome = RuinAndRecreate(work=500.0).solve(Problem(graph=chain(8), budget=21))
    assert outcome.status is Status.FEASIBLE
    assert "compiled here" in caplog.text


def test_a_cache_is_full_for_these_sources_only(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cache, "cache_folder", lambda: tmp_path)
    assert kernel_cache.is_incomplete()
    kernel_cache.mark_full()
    assert not kernel_cache.is_incomplete()
    monkeypatch.setattr(kernel_cache, "_state", lambda: "other sources")
    assert kernel_cache.is_incomplete()


def test_the_seconds_of_a_warm_up_are_none_the_second_time():
    warm_up()
    assert warm_up() == 0


ONE_KERNEL = """
import numpy as np
from remat.algorithms._arrays.graph_arrays import flatten
from remat.algorithms._arrays.liveness import memory_profile
from tests.algorithms.test_exhaustive import unit_chain

flat = flatten(unit_chain(4))
order = np.flatnonzero(flat.required).astype(np.int32)
print(memory_profile(flat, order, len(order), np.empty(len(order), np.int64)))
"""


def test_kernels_of_other_sources_are_dropped(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    peak = run(ONE_KERNEL, **cache).stdout
    (stamp,) = tmp_path.rglob(kernel_sources.STAMP)
    stamp.write_text("the digest of other sources")
    for index in tmp_path.rglob("*.nbi"):  # as where a class has been renamed
        index.write_bytes(pickle.dumps(numba.__version__, -1) + b"cremat.algorithms\nNoSuchName\n.")
    assert run(ONE_KERNEL, **cache).stdout == peak
    assert stamp.read_text() == kernel_sources.sources_digest()


def test_a_cache_of_other_sources_that_cannot_be_written_is_not_used(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "kernel.nbi").touch()
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError()))
    assert not kernel_sources.drop_stale(folder)
    (folder / kernel_sources.STAMP).write_text(kernel_sources.sources_digest())
    assert kernel_sources.drop_stale(folder)


# -- without a place for a cache ---------------------------------------------------------------------------------------


def test_kernels_work_where_neither_the_package_nor_the_home_can_be_written(tmp_path):
    shutil.copytree(ROOT / "remat", tmp_path / "remat", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (path for path in (tmp_path / "remat").rglob("*") if path.is_dir()):
        (folder / "__pycache__").write_text("a file here, so that no folder can be made, not even by root")
    code = """
    import remat.algorithms._chain.pofo, remat.algorithms._whole.dtr
    from remat.algorithms._search.kernel_prefetch import prefetch
    from remat.algorithms._arrays.kernel_cache import cache_folder
    from remat.algorithms._arrays.liveness import memory_profile
    from remat.algorithms._search.warmup import example
    given = example()
    assert memory_profile(given.flat, given.order, len(given.order), given.profile) == 17  # a0 a1 a2 t g2, of 4 4 4 1 4 bytes
    assert cache_folder() is None
    assert not prefetch()
    """
    nowhere = {
        "HOME": "/dev/null",
        "XDG_CACHE_HOME": "/dev/null/cache",
        "NUMBA_CACHE_DIR": "",
        "LOCALAPPDATA": "/dev/null",
    }
    done = run(code, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1", **nowhere)
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1


# -- interrupted -------------------------------------------------------------------------------------------------------


def test_an_interruption_inside_a_kernel_keeps_the_best_plan():
    problem = Problem(graph=chain(60), budget=120)
    solver = RuinAndRecreate(work=1e12)
    RuinAndRecreate(work=1e5).solve(problem)  # compiled, or loaded
    before = signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    try:
        for k in range(20):  # at other moments; nearly all of them are inside a kernel
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.2 + 0.0013 * k)
            outcome = solver.solve(problem)
            assert outcome.status is Status.FEASIBLE
            assert any("was interrupted" in line for line in outcome.trail)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_ctrl_c_comes_through_between_kernels_that_compile():
    passed = []

    def press():
        """Is compiled as `pressed` says."""

    @overload(press)
    def pressed():
        if not passed:
            signal.raise_signal(signal.SIGINT)
            passed.append("in the middle of the compiler")
        return lambda: 7

    function = njit(lambda: press())
    with pytest.raises(KeyboardInterrupt):
        function()
    assert passed == ["in the middle of the compiler"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert function() == 7  # numba goes on as if nothing had been


@pytest.fixture
def handler():
    before = signal.getsignal(signal.SIGINT)
    yield before
    signal.signal(signal.SIGINT, before)


def test_a_compilation_that_ctrl_c_kept_from_beginning_ends_without_a_trace(handler):
    listener, tally = jit._Listener(), compile_tally()
    listener.on_end(None)  # numba ends what has not begun
    listener.on_start(None)
    assert signal.getsignal(signal.SIGINT) is not handler
    began = tally.seconds
    time.sleep(0.01)
    assert tally.seconds > began
    listener.on_end(None)
    assert signal.getsignal(signal.SIGINT) is handler
    ended = tally.seconds
    time.sleep(0.01)
    assert tally.seconds == ended


def test_the_handler_of_now_is_put_back_not_an_earlier_one(handler):
    waits = Uninterrupted()
    with pytest.raises(KeyboardInterrupt), waits:
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with waits:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_that_the_handler_sets_stays_and_each_press_is_heard(handler):
    heard = []

    def second(number, frame):
        """For the next time."""

    def first(number, frame):
        heard.append(number)
        signal.signal(signal.SIGINT, second)

    signal.signal(signal.SIGINT, first)
    with Uninterrupted() as waits:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert heard == []
        waits.release()
        assert len(heard) == 2
    assert signal.getsignal(signal.SIGINT) is second


class Broken(Solver):
    """A solver with an error of the interpreter's own kind that is no interruption."""

    def plan(self, problem, clock, seed):
        raise SystemError("returned NULL without setting an exception")


def test_another_system_error_is_not_taken_for_an_interruption():
    with pytest.raises(SystemError, match="without setting"):
        Broken().solve(Problem(graph=chain(3), budget=100))
