"""The published systems, each one expression over the parts of this library, with its source and its departures from it.

None of them states a bound for every schedule of a flat graph: each is optimal in a class of schedules, which the trail names.
"""

from __future__ import annotations

from remat.algorithms._chain.linearise import Linearise, Quantise, UnitCost
from remat.algorithms._chain.offload import Autocapper, OffloadOnly, Opportunist
from remat.algorithms._chain.periodic import Periodic
from remat.algorithms._chain.pofo import Pofo
from remat.algorithms._chain.revolve import Revolve
from remat.algorithms._chain.rotor import RkRotor, Rotor
from remat.algorithms._core.option_pool import pool
from remat.algorithms._core.solver import best
from remat.algorithms._hierarchy.condense import Condense
from remat.algorithms._hierarchy.fold_run_once import FoldRunOnce
from remat.algorithms._hierarchy.hpartition import HPartition
from remat.algorithms._staged.corrected import Corrected
from remat.algorithms._staged.form_checkmate import OneOutputPerOp
from remat.algorithms._staged.solver import HIlp, Ilp
from remat.algorithms._whole.dtr import Dtr
from remat.algorithms._whole.tw_remat import TwRemat

# -- chains ------------------------------------------------------------------------------------------------------------

chen = Linearise() >> best(Periodic(), Periodic(balanced=True))
"""Chen et al., 2016: hold every sqrt(n)-th input, or close segments by size. Stages, not operators, are the units; the bound of
the balanced variant is searched over 24 values."""

revolve = Linearise() >> UnitCost() >> Revolve()
"""Griewank and Walther, 2000, on stages made equal: as many checkpoints as the budget holds largest inputs on top of the most
memory-demanding step. The paper assumes equal stages; ours differ, so the plan is only a heuristic here."""

rotor = Linearise() >> Quantise() >> Rotor()
"""Beaumont et al., 2019. Sizes are rounded to max(500, 10 per stage) slots instead of 500; an input that no backward reads is
dropped at once instead of staying until its stage's backward."""

rk_rotor = Linearise() >> Quantise() >> RkRotor()
"""Rockmate, App. C (2023), Algorithms 2 and 3. Here every stage has one option and this is `rotor`; more options come from
`Linearise(blocks=solver.sweep(peaks=…, saves=…))`, which with a MILP is Rockmate. Departures as of `rotor`."""

# -- chains with a link ------------------------------------------------------------------------------------------------

pofo = Linearise() >> Pofo()
"""POFO (Beaumont, Eyraud-Dubois, Shilova, 2021), App. B, 50 slots as in the paper. The loss is one node, which offloads may
overlap and prefetches follow; sizes, and what the link moves, are rounded to the nearest slot with the error carried on, and a
new plan is made for a smaller budget if the true sizes do not fit; the schedule has whole transfers."""

offload_only = Linearise() >> OffloadOnly()
"""The search of POFO without recomputation, in the role of the dynamic program of Beaumont et al., Euro-Par 2020, which
plans without POFO's restriction to offloads before the loss."""

autocapper = Linearise() >> Autocapper()
"""POFO, section 5.1: 40 limits, Rotor under each, then the first idle activations are offloaded until the peak fits."""

opportunist = Linearise() >> Opportunist()
"""POFO, section 5.1: save and offload whenever the link is idle, run without saving meanwhile."""

# -- MILP formulations -------------------------------------------------------------------------------------------------

checkmate = OneOutputPerOp() >> Ilp(warm_start=False).within(3600)
"""Jain et al., 2020: the optimum over staged schedules in the graph's order, here by the event form, which has the same optimum
and the same relaxation, with workspaces in its memory rows. What it proves holds for staged schedules: `class_bounds`."""

rk_checkmate = HIlp(warm_start=False).within(3600)
"""Rockmate, App. B (2023): H-ILP on an undivided graph, with separate data and phantoms, by the event form. Without a warm
start: the paper has no other search that gives a plan to start from."""

rockmate = (
    FoldRunOnce() >> Linearise(blocks=HIlp(gap=0.01).sweep(peaks=20, saves=20).within(10)) >> Quantise() >> RkRotor()
)
"""Rockmate (Zhao et al., 2023): options of each block by rk-Checkmate under 20 x 20 budgets, the chain of blocks by rk-Rotor.
Every undominated option is kept, where the paper keeps a few; stages are cut at 1-separators, and equal ones are solved once. A
block is planned to a gap of 1 %, each kind in at most 10 s: a pair of budgets that has used its share keeps its first plan, which
is of a search that the paper does not have (`HIlp(warm_start=False)` leaves it out). Saves of random states and updates of
buffers are folded: the paper's graphs have none."""

# -- whole graphs, without a MILP --------------------------------------------------------------------------------------

dtr = Dtr("h_eq")
"""Kirisame et al., 2021, replayed offline over the captured order, with the heuristic of its experiments on models. The budget
counts workspaces, and all outputs of a run; ties go to the datum of the smallest index; what cannot be recomputed is banished
as in the paper's appendix B."""

tw_remat = TwRemat()
"""Kumar et al., 2019, with the greedy fit of its public implementation at every budget. The paper has one schedule per graph;
here parts of several sizes are run straight through, two rules of elimination are tried, and the fastest that fits is taken."""

# -- hierarchies -------------------------------------------------------------------------------------------------------

_pool = (HIlp(gap=0.01), rk_rotor, tw_remat)

hiremate = FoldRunOnce() >> best(
    Corrected(
        Condense(
            HPartition(top=30, lower=20, alpha=0.5),
            lower=pool(*_pool).sweep(peaks=6, saves=4),
            middle=pool(*_pool),
            peaks=3,
            saves=3,
            limit=150,
            seconds=3,
        ),
        HIlp(gap=0.01),
        start=rk_rotor,
    ).within(16),
    tw_remat.within(3),
)
"""HiRemate (2024): H-Partition; H-ILP, rk-Rotor and TW-Remat at every level, H-ILP's correction terms at the top; schedules
selected by the rule of section 3.2.2 (`limit`, N_o = 150 here). A group has two budgets, for its peak and for what it holds: 6 x
4, or 3 x 3 where it has groups inside, which rk-Rotor and TW-Remat see as layers if they accept them. H-ILP stops at a gap of
1 %, and the levels below the top have half of the 16 s. It starts from plans that the paper does not have: of a search over run
sequences in the groups of operators (`HIlp(warm_start=False)` leaves it out), of rk-Rotor and of the level without correction
terms at the top. Saves of random states and updates of buffers are folded: the paper's graphs have none."""
