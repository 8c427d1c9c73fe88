"""`warm_up()`: run every kernel of the default planner once on a tiny graph, so that numba's cache has them all."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
from attrs import frozen

from remat.algorithms._arrays.graph_arrays import Flat, Floats, Ints, Longs, Seed, flatten
from remat.algorithms._arrays.kernel_cache import cache_folder, mark_full
from remat.algorithms._arrays.liveness import memory_profile, overshoot
from remat.algorithms._arrays.reachability import reached
from remat.algorithms._arrays.rng import fraction, fractions
from remat.algorithms._copies.copy_arrays import NO_LIMIT, Lanes, lanes_of
from remat.algorithms._copies.copy_moves import BOTH, Prices
from remat.algorithms._copies.copy_order import carried, changed_order
from remat.algorithms._copies.copy_polish import fits_without, may_stay, replayed, trial_without, uses_of
from remat.algorithms._copies.copy_shaving import shaved as shave_with_copies
from remat.algorithms._core.compilation import CompileClock
from remat.algorithms._core.processes import end_with_parent
from remat.algorithms._search.deletion import delete
from remat.algorithms._search.on_demand import recompute_on_demand
from remat.algorithms._search.peak_shaving import NO_CEILING, Scoring, shave
from remat.algorithms._search.ruin_recreate import perturbed, perturbed_near_peak
from remat.algorithms._search.shifting import shift
from remat.ir import Graph, GraphBuilder, Kind, Link


@frozen(eq=False)
class Example:
    """The arguments of the kernels: the arrays of a tiny graph, its order, a profile, prices and random numbers."""

    flat: Flat
    order: Ints
    profile: Longs
    price: Floats
    rng: Seed
    budget: int


def example() -> Example:
    """Two layers and their backward, with a budget that one rerun satisfies."""
    flat = flatten(_graph())
    order = np.flatnonzero(flat.required).astype(np.int32)
    rng = np.array([1], np.uint64)
    return Example(flat, order, np.zeros(len(order), np.int64), flat.time.astype(np.float64), rng, 12)


def _graph() -> Graph:
    b = GraphBuilder("warm-up")
    b.data("t", 1, Kind.TANGENT)
    for i in range(3):
        b.data(f"a{i}", 4)
        b.data(f"g{i}", 4, Kind.GRADIENT if i else Kind.INPUT_GRAD)
        b.forward(f"F{i}", reads=[f"a{i - 1}"] if i else [], writes=[f"a{i}"], time=2)
    b.loss("L", reads=["a2"], writes=["t"], time=1)
    for i in (2, 1, 0):
        b.backward(f"B{i}", reads=[f"g{i + 1}" if i < 2 else "t", f"a{i}"], writes=[f"g{i}"], time=3)
    return b.build()


def _shave(e: Example) -> None:
    shave(e.flat, Scoring(e.price, 1.0, 0.0, 0.0, 0), e.order, e.budget, e.rng, NO_CEILING)


def _thin(e: Example) -> None:
    delete(e.flat, e.order, e.budget)


def _shift(e: Example) -> None:
    shift(e.flat, e.order, e.budget, 0.8, 1, e.rng)


def _perturb(e: Example) -> None:
    fraction(e.rng)
    perturbed(e.flat, e.order, (0.3, 0.5, 0.2), e.rng, e.price.copy())


def _perturb_near_peak(e: Example) -> None:
    perturbed_near_peak(e.flat, e.order, e.profile, e.budget, e.rng, e.price.copy())
    overshoot(e.profile, len(e.order), e.budget)


def _recompute(e: Example) -> None:
    recompute_on_demand(e.flat, e.order, e.order[-1:].copy(), np.ones((1, e.flat.size.size), np.bool_))


def _reach(e: Example) -> None:
    reached(e.flat.predecessors, int(e.order[-1]))


def _shave_with_copies(e: Example) -> None:
    prices = Prices(e.price, 1.0, 1.0, 0.0, 0.0, BOTH)
    shave_with_copies(e.flat, _lanes(e), prices, e.order, np.zeros(len(e.order), np.int64), e.rng)


def _polish_copies(e: Example) -> None:
    mask = np.zeros(len(e.order), np.int64)
    mem = replayed(e.flat, _lanes(e), e.order, mask, NO_LIMIT)[2]
    fits_without(e.flat, (e.order, mask), mem, e.budget, 0, uses_of(e.flat, e.order, mask))
    may_stay(e.flat, e.order, mem, e.budget, len(e.order) - 1, 0)
    fractions(e.rng, 1)
    trial_without(e.flat, _lanes(e), e.order, mask, 0, True)
    carried(e.flat, e.order, mask, changed_order(e.flat, e.order, (0, len(e.order)), (0.3, 0.5, 0.2), e.rng))


def _lanes(e: Example) -> Lanes:
    return lanes_of(e.flat, Link.symmetric(gb_per_s=1), e.budget, None)


Task = Callable[[Example], None]

FIRST: tuple[tuple[Task, ...], tuple[Task, ...]] = ((_shave,), (_thin, _recompute, _reach))
"""Each task calls kernels that Python calls. These are what every plan begins with; the halves take about equally long."""

LATER: tuple[tuple[Task, ...], tuple[Task, ...]] = ((_perturb,), (_shift, _perturb_near_peak))
"""What is called after the first plans, in the same halves."""

AT_FIRST_USE: tuple[Task, ...] = (_polish_copies, _shave_with_copies)
"""Likewise of plans with copies, which few need: helpers leave them to their first use."""

HALF_DONE = b"."
"""What a helper writes when a half of `FIRST` is in the cache."""


def warm_up() -> float:
    """Run every kernel once; returns the seconds spent on compiling.

    Kernels in the cache are loaded from it, the others are compiled and added to it.
    """
    inputs = example()
    with CompileClock() as compiled:
        _run((*sum(FIRST, ()), *sum(LATER, ()), *AT_FIRST_USE), inputs)
        mark_full()
    return compiled.seconds


def _run(tasks: Iterable[Callable[[Example], None]], inputs: Example) -> None:
    memory_profile(inputs.flat, inputs.order, len(inputs.order), inputs.profile)  # the tasks read the profile
    for task in tasks:
        task(inputs)


def serve(processes: int) -> None:
    """The work of a helper (see `kernel_prefetch`), which ends with its parent; one helper at a time.

    On several processors it forks after the imports and the profile, which both halves need: they take a second.
    """
    if cache_folder() is None:
        return
    gc.disable()  # a compiler makes many objects and few cycles: collecting took a tenth of the time
    with _locked():
        inputs = example()
        _run((), inputs)
        child = os.fork() if processes > 1 and hasattr(os, "fork") else None
        threading.Thread(target=end_with_parent, daemon=True).start()  # after the fork, which wants a single thread
        if child is None:
            _serve_halves((0, 1), inputs)
        elif child == 0:
            _serve_halves((1,), inputs)
        else:
            _serve_halves((0,), inputs)
            _, status = os.waitpid(child, 0)
            if status:
                raise SystemExit(1)
        if child != 0:
            mark_full()


def _serve_halves(halves: tuple[int, ...], inputs: Example) -> None:
    for half in halves:
        _run(FIRST[half], inputs)
        os.write(1, HALF_DONE)
    for half in halves:
        _run(LATER[half], inputs)


@contextmanager
def _locked() -> Iterator[None]:
    """Hold the lock of the cache; a process that waits for it finds the kernels there."""
    folder = cache_folder()
    try:
        import fcntl
    except ImportError:  # not on every platform; two helpers then do the same work
        yield
        return
    if folder is None:
        yield
        return
    with open(folder / "remat-kernels.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, however the process ends
        yield
