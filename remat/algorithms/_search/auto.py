"""`auto`: what plans when nobody names a solver. One expression; see docs/explanation/planner.md."""

from __future__ import annotations

from remat.algorithms._core.solver import Solver, best
from remat.algorithms._search.any_order import AnyOrder
from remat.algorithms._search.floor import Floor
from remat.algorithms._search.lp_rounding import SavedSet
from remat.algorithms._search.passes import Continuation, MultiStart, PeakShaving, Relieve, RuinAndRecreate
from remat.algorithms._search.pipeline import Polish
from remat.algorithms._search.single_instant import SingleInstant
from remat.algorithms._whole.baselines import PerLayerCheckpoint

POOR = 0.005
"""Plan over proved bound, less one, above which every means is tried."""

GOOD = 0.0015
"""Plan over proved bound, less one, above which a longer search is worth its time."""

DONE = 0.0005
"""Plan over proved bound, less one, at which everything stops."""

auto: Solver = (
    Polish(
        (
            Floor(),
            MultiStart(),
            SingleInstant(gap=0.001),
            SavedSet(),
            Continuation(),
            Relieve(),
            RuinAndRecreate(work=1e7, gap=DONE),
            RuinAndRecreate(work=5e7, gap=GOOD, disorder=0.3),
            AnyOrder(gap=POOR),
            Continuation(step=0.97, steps=6, tries=6, gap=POOR),
            RuinAndRecreate(work=5e7, gap=POOR, afresh=True, disorder=0.3),
        ),
        gap=DONE,
    )
    | PerLayerCheckpoint()
)
"""The default planner."""

quick: Solver = Polish((Floor(), MultiStart(starts=8), SingleInstant(mixed=0), SavedSet(instants=2)), gap=0.05)
"""A plan and a bound in a fraction of the time of `auto`, where many budgets are asked."""

cheap: Solver = best(PeakShaving().within(0.3), PerLayerCheckpoint())
"""A plan in hundredths of a second on hundreds of nodes, where a deadline left none."""

ANY = 1e6
"""A gap that every plan is within: the first that is found will do."""

probe: Solver = Polish((PeakShaving(), MultiStart(starts=4)), gap=ANY)
"""Any plan, where it is asked how small a budget may be; proves nothing."""

prover: Solver = Polish((SingleInstant(mixed=0), SavedSet(instants=2)), gap=ANY)
"""Whether there can be a plan, and one where that shows it: for budgets where `probe` finds none."""
