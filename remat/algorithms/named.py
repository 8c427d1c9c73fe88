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
from remat.algorithms._core.solver import best
from remat.algorithms._hierarchy.condense import hierarchical
from remat.algorithms._hierarchy.hpartition import HPartition
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

rockmate = Linearise(blocks=HIlp().sweep(peaks=20, saves=20)) >> Quantise() >> RkRotor()
"""Rockmate (Zhao et al., 2023): options of each block by rk-Checkmate, the chain of blocks by rk-Rotor. Every undominated option
is kept, where the paper keeps a few; stages are cut at 1-separators, and equal ones are solved once. `HIlp` starts from a plan of
its own search, which the paper does not have (`warm_start=False` leaves it out)."""

# -- whole graphs, without a MILP --------------------------------------------------------------------------------------

dtr = Dtr("h_eq")
"""Kirisame et al., 2021, replayed offline over the captured order, with the heuristic of its experiments on models. The budget
counts workspaces, and all outputs of a run; ties go to the datum of the smallest index; what cannot be recomputed is banished
as in the paper's appendix B."""

tw_remat = TwRemat()
"""Kumar et al., 2019, with the greedy fit of its public implementation at every budget. The paper has one schedule per graph;
here parts of several sizes are run straight through, two rules of elimination are tried, and the fastest that fits is taken."""

# -- hierarchies -------------------------------------------------------------------------------------------------------

hiremate = hierarchical(
    HPartition(top=30, lower=20, alpha=0.5),
    lower=HIlp().within(20).sweep(peaks=4, saves=4),
    middle=HIlp().within(20),
    top=HIlp().within(600),
)
"""HiRemate (2024): H-Partition, H-ILP at every level. The paper's pool also holds rk-Rotor and TW-Remat: give
`lower=pool(…)`, and `middle=pool(…)`. Every undominated option of a group is kept. A group has two budgets: for its peak, and for
what it holds. The top level is planned without H-ILP's correction terms: its memory is that of the replayed layers (`Corrected`
has them). `HIlp` starts from a plan of its own search, which the paper does not have (`warm_start=False` leaves it out)."""
