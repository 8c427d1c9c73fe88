"""Solvers over the IR and the algebra that composes them. Names load lazily: cvxpy and numba only where they are used.

A new public name has three lines here: its import for type checkers, its name in `__all__`, and its module in the table of its
kind, which the registry reads. The published systems are in `remat.algorithms.named`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat._lazy import lazy
from remat.algorithms._plugins.registry import register

if TYPE_CHECKING:
    from remat.algorithms._bounds.floor import proved_floor
    from remat.algorithms._chain.linearise import Linearise, linearised
    from remat.algorithms._chain.offload import Autocapper, OffloadOnly, Opportunist
    from remat.algorithms._chain.periodic import Periodic
    from remat.algorithms._chain.pofo import Pofo
    from remat.algorithms._chain.quantise import Quantise, UnitCost, unit_budget, unit_chain
    from remat.algorithms._chain.revolve import Revolve, extra_runs
    from remat.algorithms._chain.rotor import RkRotor, Rotor, rotor_values
    from remat.algorithms._copies.copy_passes import (
        BoundMarks,
        CopiesAlone,
        LargerBudgets,
        ReplaceReruns,
        RuinCopies,
        ShaveBoth,
        ShavePostponed,
    )
    from remat.algorithms._copies.link_passes import LinkFloor, LinkInstants
    from remat.algorithms._copies.with_copies import WithCopies
    from remat.algorithms._core.clock import Clock, Progress
    from remat.algorithms._core.compilation import CompileClock
    from remat.algorithms._core.conditions import is_flat, nodes_at_most
    from remat.algorithms._core.option_pool import Pool, pool
    from remat.algorithms._core.options import Limited, OptionSource, Sweep, undominated
    from remat.algorithms._core.outcome import IMPOSSIBLE, NOTHING, ClassBound, Outcome, Plan, Status
    from remat.algorithms._core.problem import Problem
    from remat.algorithms._core.solver import Best, First, Solver, When, Within, best, first
    from remat.algorithms._core.transforms import Applied, Through, Transform
    from remat.algorithms._core.warm_started import Warm, WarmStarted, warm
    from remat.algorithms._curves.budget_sweep import lowest_budget, sweep
    from remat.algorithms._curves.tradeoff import Choice, Choices, choices
    from remat.algorithms._hierarchy.condense import Condense, Given, hierarchical
    from remat.algorithms._hierarchy.fold_run_once import FoldRunOnce
    from remat.algorithms._hierarchy.hpartition import HPartition
    from remat.algorithms._hierarchy.merge import Merge
    from remat.algorithms._hierarchy.partition import Intervals, Partitioner, Segments, Undivided
    from remat.algorithms._milp.answer import Answer
    from remat.algorithms._milp.backend import Backend, Hints, Limits
    from remat.algorithms._milp.backends import Cvxpy, Highs
    from remat.algorithms._milp.cp_sat import CpSat
    from remat.algorithms._milp.in_child import InChild
    from remat.algorithms._milp.milp_model import MilpModel
    from remat.algorithms._plugins.expression import parse
    from remat.algorithms._search.any_order import AnyOrder
    from remat.algorithms._search.auto import auto, plan_first, quick, raise_bound
    from remat.algorithms._search.branch_and_bound import BranchAndBound
    from remat.algorithms._search.checkpoints import Checkpoints
    from remat.algorithms._search.coarse_to_fine import CoarseToFine
    from remat.algorithms._search.enumeration import Enumerate
    from remat.algorithms._search.floor import CutFloor, Floor
    from remat.algorithms._search.from_solver import From
    from remat.algorithms._search.kernel_prefetch import prefetch
    from remat.algorithms._search.lp_rounding import SavedSet
    from remat.algorithms._search.multi_instant import MultiInstant
    from remat.algorithms._search.oscillation import Oscillation
    from remat.algorithms._search.passes import (
        Continuation,
        Delete,
        MultiStart,
        PeakShaving,
        Relieve,
        RuinAndRecreate,
        ShavingParams,
        Shift,
    )
    from remat.algorithms._search.pipeline import Polish
    from remat.algorithms._search.postpone import Postpone
    from remat.algorithms._search.single_instant import HardestInstants, SingleInstant
    from remat.algorithms._search.stop import (
        any_plan,
        disputed,
        gaining,
        gap,
        gap_above,
        no_plan,
        nodes_up_to,
        worked_up_to,
    )
    from remat.algorithms._search.warmup import warm_up
    from remat.algorithms._staged.corrected import Corrected
    from remat.algorithms._staged.form_checkmate import OneOutputPerOp
    from remat.algorithms._staged.knapsack import FullRelaxation, SavedSetKnapsack, TightenedKnapsack
    from remat.algorithms._staged.solver import HIlp, Ilp
    from remat.algorithms._whole.baselines import PerLayerCheckpoint, StoreAll, least_time, store_all_peak
    from remat.algorithms._whole.dtr import Dtr
    from remat.algorithms._whole.exhaustive import Exhaustive
    from remat.algorithms._whole.lower_sets import LowerSets
    from remat.algorithms._whole.tw_remat import TwRemat

__all__ = [
    "IMPOSSIBLE",
    "NOTHING",
    "Answer",
    "AnyOrder",
    "Applied",
    "Autocapper",
    "Backend",
    "Best",
    "BoundMarks",
    "BranchAndBound",
    "Checkpoints",
    "Choice",
    "Choices",
    "ClassBound",
    "Clock",
    "CoarseToFine",
    "CompileClock",
    "Condense",
    "Continuation",
    "CopiesAlone",
    "Corrected",
    "CpSat",
    "CutFloor",
    "Cvxpy",
    "Delete",
    "Dtr",
    "Enumerate",
    "Exhaustive",
    "First",
    "Floor",
    "FoldRunOnce",
    "From",
    "FullRelaxation",
    "Given",
    "HIlp",
    "HPartition",
    "HardestInstants",
    "Highs",
    "Hints",
    "Ilp",
    "InChild",
    "Intervals",
    "LargerBudgets",
    "Limited",
    "Limits",
    "Linearise",
    "LinkFloor",
    "LinkInstants",
    "LowerSets",
    "Merge",
    "MilpModel",
    "MultiInstant",
    "MultiStart",
    "OffloadOnly",
    "OneOutputPerOp",
    "Opportunist",
    "OptionSource",
    "Oscillation",
    "Outcome",
    "Partitioner",
    "PeakShaving",
    "PerLayerCheckpoint",
    "Periodic",
    "Plan",
    "Pofo",
    "Polish",
    "Pool",
    "Postpone",
    "Problem",
    "Progress",
    "Quantise",
    "Relieve",
    "ReplaceReruns",
    "Revolve",
    "RkRotor",
    "Rotor",
    "RuinAndRecreate",
    "RuinCopies",
    "SavedSet",
    "SavedSetKnapsack",
    "Segments",
    "ShaveBoth",
    "ShavePostponed",
    "ShavingParams",
    "Shift",
    "SingleInstant",
    "Solver",
    "Status",
    "StoreAll",
    "Sweep",
    "Through",
    "TightenedKnapsack",
    "Transform",
    "TwRemat",
    "Undivided",
    "UnitCost",
    "Warm",
    "WarmStarted",
    "When",
    "WithCopies",
    "Within",
    "any_plan",
    "auto",
    "best",
    "choices",
    "disputed",
    "extra_runs",
    "first",
    "gaining",
    "gap",
    "gap_above",
    "hierarchical",
    "is_flat",
    "least_time",
    "linearised",
    "lowest_budget",
    "no_plan",
    "nodes_at_most",
    "nodes_up_to",
    "parse",
    "plan_first",
    "pool",
    "prefetch",
    "proved_floor",
    "quick",
    "raise_bound",
    "rotor_values",
    "store_all_peak",
    "sweep",
    "undominated",
    "unit_budget",
    "unit_chain",
    "warm",
    "warm_up",
    "worked_up_to",
]

_SOLVERS = {
    "AnyOrder": "_search.any_order",
    "BranchAndBound": "_search.branch_and_bound",
    "Autocapper": "_chain.offload",
    "Checkpoints": "_search.checkpoints",
    "CoarseToFine": "_search.coarse_to_fine",
    "Continuation": "_search.passes",
    "Corrected": "_staged.corrected",
    "CutFloor": "_search.floor",
    "Delete": "_search.passes",
    "Dtr": "_whole.dtr",
    "Enumerate": "_search.enumeration",
    "Exhaustive": "_whole.exhaustive",
    "Floor": "_search.floor",
    "From": "_search.from_solver",
    "FullRelaxation": "_staged.knapsack",
    "HIlp": "_staged.solver",
    "Ilp": "_staged.solver",
    "LowerSets": "_whole.lower_sets",
    "MultiInstant": "_search.multi_instant",
    "MultiStart": "_search.passes",
    "OffloadOnly": "_chain.offload",
    "Opportunist": "_chain.offload",
    "Oscillation": "_search.oscillation",
    "PeakShaving": "_search.passes",
    "PerLayerCheckpoint": "_whole.baselines",
    "Periodic": "_chain.periodic",
    "Pofo": "_chain.pofo",
    "Polish": "_search.pipeline",
    "Postpone": "_search.postpone",
    "Relieve": "_search.passes",
    "Revolve": "_chain.revolve",
    "RkRotor": "_chain.rotor",
    "Rotor": "_chain.rotor",
    "RuinAndRecreate": "_search.passes",
    "SavedSet": "_search.lp_rounding",
    "SavedSetKnapsack": "_staged.knapsack",
    "Shift": "_search.passes",
    "HardestInstants": "_search.single_instant",
    "SingleInstant": "_search.single_instant",
    "StoreAll": "_whole.baselines",
    "TightenedKnapsack": "_staged.knapsack",
    "TwRemat": "_whole.tw_remat",
    "WithCopies": "_copies.with_copies",
    "auto": "_search.auto",
    "plan_first": "_search.auto",
    "quick": "_search.auto",
    "raise_bound": "_search.auto",
}
_TRANSFORMS = {
    "Condense": "_hierarchy.condense",
    "FoldRunOnce": "_hierarchy.fold_run_once",
    "Linearise": "_chain.linearise",
    "Merge": "_hierarchy.merge",
    "OneOutputPerOp": "_staged.form_checkmate",
    "Quantise": "_chain.quantise",
    "UnitCost": "_chain.quantise",
}
_PARTITIONERS = {
    "Given": "_hierarchy.condense",
    "HPartition": "_hierarchy.hpartition",
    "Intervals": "_hierarchy.partition",
    "Segments": "_hierarchy.partition",
    "Undivided": "_hierarchy.partition",
}
_BACKENDS = {
    "CpSat": "_milp.cp_sat",
    "Cvxpy": "_milp.backends",
    "Highs": "_milp.backends",
    "InChild": "_milp.in_child",
}
_WORDS = {
    "BoundMarks": "_copies.copy_passes",
    "CopiesAlone": "_copies.copy_passes",
    "LargerBudgets": "_copies.copy_passes",
    "LinkFloor": "_copies.link_passes",
    "LinkInstants": "_copies.link_passes",
    "ReplaceReruns": "_copies.copy_passes",
    "RuinCopies": "_copies.copy_passes",
    "ShaveBoth": "_copies.copy_passes",
    "ShavePostponed": "_copies.copy_passes",
    "ShavingParams": "_search.passes",
    "any_plan": "_search.stop",
    "best": "_core.solver",
    "disputed": "_search.stop",
    "first": "_core.solver",
    "gaining": "_search.stop",
    "gap": "_search.stop",
    "gap_above": "_search.stop",
    "hierarchical": "_hierarchy.condense",
    "is_flat": "_core.conditions",
    "no_plan": "_search.stop",
    "nodes_at_most": "_core.conditions",
    "nodes_up_to": "_search.stop",
    "pool": "_core.option_pool",
    "warm": "_core.warm_started",
    "worked_up_to": "_search.stop",
}
_SCORES = ("h_dtr", "h_dtr_eq", "h_local", "lru", "msps", "random", "size")
_OTHERS = {
    "Answer": "_milp.answer",
    "Applied": "_core.transforms",
    "Backend": "_milp.backend",
    "Best": "_core.solver",
    "Choice": "_curves.tradeoff",
    "Choices": "_curves.tradeoff",
    "ClassBound": "_core.outcome",
    "Clock": "_core.clock",
    "CompileClock": "_core.compilation",
    "First": "_core.solver",
    "Hints": "_milp.backend",
    "IMPOSSIBLE": "_core.outcome",
    "Limits": "_milp.backend",
    "MilpModel": "_milp.milp_model",
    "NOTHING": "_core.outcome",
    "OptionSource": "_core.options",
    "Limited": "_core.options",
    "Outcome": "_core.outcome",
    "Partitioner": "_hierarchy.partition",
    "Plan": "_core.outcome",
    "Pool": "_core.option_pool",
    "Problem": "_core.problem",
    "Progress": "_core.clock",
    "Solver": "_core.solver",
    "Status": "_core.outcome",
    "Sweep": "_core.options",
    "Through": "_core.transforms",
    "Transform": "_core.transforms",
    "Warm": "_core.warm_started",
    "WarmStarted": "_core.warm_started",
    "When": "_core.solver",
    "Within": "_core.solver",
    "choices": "_curves.tradeoff",
    "extra_runs": "_chain.revolve",
    "least_time": "_whole.baselines",
    "linearised": "_chain.linearise",
    "lowest_budget": "_curves.budget_sweep",
    "parse": "_plugins.expression",
    "prefetch": "_search.kernel_prefetch",
    "proved_floor": "_bounds.floor",
    "rotor_values": "_chain.rotor",
    "store_all_peak": "_whole.baselines",
    "sweep": "_curves.budget_sweep",
    "undominated": "_core.options",
    "unit_budget": "_chain.quantise",
    "unit_chain": "_chain.quantise",
    "warm_up": "_search.warmup",
}
_SYSTEMS = (
    "autocapper",
    "checkmate",
    "chen",
    "dtr",
    "hiremate",
    "offload_only",
    "opportunist",
    "pofo",
    "revolve",
    "rk_checkmate",
    "rk_rotor",
    "rockmate",
    "rotor",
    "tw_remat",
)


def _at(table: dict[str, str]) -> dict[str, str]:
    return {name: f"remat.algorithms.{module}:{name}" for name, module in table.items()}


register("solvers", _at(_SOLVERS | dict.fromkeys(_SYSTEMS, "named")))
register("transforms", _at(_TRANSFORMS))
register("partitioners", _at(_PARTITIONERS))
register("backends", _at(_BACKENDS))
register("words", _at(_WORDS))
register("scores", _at(dict.fromkeys(_SCORES, "_dtr.scores")))

if not TYPE_CHECKING:
    _WHERE = _at(_SOLVERS | _TRANSFORMS | _PARTITIONERS | _BACKENDS | _WORDS | _OTHERS)
    __getattr__, __dir__ = lazy(__name__, _WHERE)
