"""Who is asked: `auto`, the floor and every bound; every other solver; expressions of transforms and partitioners."""

from remat.algorithms import (
    Condense,
    Corrected,
    Exhaustive,
    From,
    Given,
    HIlp,
    HPartition,
    Ilp,
    Intervals,
    Linearise,
    MultiStart,
    OneOutputPerOp,
    Polish,
    Quantise,
    RkRotor,
    Segments,
    SingleInstant,
    StoreAll,
    TwRemat,
    Undivided,
    UnitCost,
    WithCopies,
    best,
    hierarchical,
    pool,
    quick,
    warm,
)
from remat.algorithms._plugins.registry import entries

BOUNDS = (
    "auto",
    "Floor",
    "CutFloor",
    "SingleInstant",
    "MultiInstant",
    "AnyOrder",
    "BranchAndBound",
    "SavedSetKnapsack",
    "TightenedKnapsack",
    "FullRelaxation",
)
"""Asked at every budget where something changes."""

LINKED = (
    "auto",
    "quick",
    "WithCopies",
    "pofo",
    "offload_only",
    "autocapper",
    "opportunist",
    "Floor",
    "CutFloor",
    "TightenedKnapsack",
    "Exhaustive",
)
"""Asked once more with a link, where more is possible than without."""


def _sweep(solver):
    return solver.sweep(peaks=2, saves=1)


def made():
    """Solvers that are expressions here: options of graphs by partitions, chains, settings that are not the defaults."""
    block = HIlp(warm_start=False).sweep(peaks=2, saves=2, workers=1)
    top = HIlp(warm_start=False)
    return {
        "HIlp(published)": HIlp(form="published"),
        "HIlp(checkmate)": HIlp(form="checkmate"),
        "HIlp(backward-once)": HIlp(reruns="backward-once"),
        "HIlp(window)": HIlp(window=2, warm_start=False),
        "Ilp(cold)": Ilp(warm_start=False),
        "checkmate(published)": OneOutputPerOp() >> Ilp(form="checkmate"),
        "rockmate": Linearise(blocks=block) >> Quantise() >> RkRotor(),
        "chain of options": Linearise(blocks=_sweep(Exhaustive())) >> RkRotor(),
        "pinned chain": Linearise(1.0) >> UnitCost() >> RkRotor(),
        "hierarchy of intervals": hierarchical(Intervals(2), lower=block, top=top),
        "hierarchy of segments": hierarchical(Segments(2), lower=_sweep(Exhaustive()), top=top),
        "H-partition": hierarchical(HPartition(top=3, lower=2), lower=_sweep(Exhaustive()), middle=top, top=top),
        "undivided": hierarchical(Undivided(), lower=block, top=top),
        "pool": hierarchical(Intervals(2), lower=pool(block, _sweep(TwRemat())), top=best(top, StoreAll())),
        "condensed": Condense(Intervals(2), lower=_sweep(StoreAll())) >> HIlp(warm_start=False),
        "warm": warm(HIlp(), seed=StoreAll()),
        "From": From(StoreAll()),
        "WithCopies": WithCopies(quick),
        "Polish": Polish((MultiStart(), SingleInstant())),
        "Corrected": Corrected(Condense(Intervals(2), lower=_sweep(StoreAll())), HIlp(warm_start=False)),
        "Given": hierarchical(Given(()), lower=block, top=StoreAll()),
    }


def every():
    """All by name. Registered solvers that need arguments stand in `made`; those that start processes are asked in this one."""
    expressions = made()
    found = {}
    for name, entry in entries("solvers").items():
        if entry.origin == "remat" and name not in expressions:
            one = entry.load()
            found[name] = one() if isinstance(one, type) else one
    return found | expressions
