"""`auto`: the default planner, and `plan_first`, the one of `wrap`. Each is one expression; see docs/explanation/planner.md."""

from __future__ import annotations

from attrs import evolve

from remat.algorithms._copies.copy_passes import ReplaceReruns, ShaveBoth
from remat.algorithms._copies.link_passes import LinkInstants
from remat.algorithms._copies.with_copies import WithCopies
from remat.algorithms._core.solver import Solver, best
from remat.algorithms._search.any_order import AnyOrder
from remat.algorithms._search.branch_and_bound import BranchAndBound
from remat.algorithms._search.checkpoints import Checkpoints
from remat.algorithms._search.coarse_to_fine import CoarseToFine
from remat.algorithms._search.enumeration import Enumerate
from remat.algorithms._search.floor import CutFloor, Floor
from remat.algorithms._search.lp_rounding import SavedSet
from remat.algorithms._search.oscillation import Oscillation
from remat.algorithms._search.passes import Continuation, MultiStart, PeakShaving, Relieve, RuinAndRecreate
from remat.algorithms._search.pipeline import Polish
from remat.algorithms._search.postpone import Postpone
from remat.algorithms._search.single_instant import HardestInstants, SingleInstant
from remat.algorithms._search.stop import (
    any_plan,
    gaining,
    gap,
    gap_above,
    no_plan,
    nodes_up_to,
    worked_up_to,
)
from remat.algorithms._whole.baselines import PerLayerCheckpoint, StoreAll

POOR = 0.005
"""Gap (plan over bound, minus one) above which all passes are tried."""

GOOD = 0.0015
"""Gap above which `wrap` searches longer."""

FAIR = 0.001
"""Gap above which longer searches and better bounds are worth their time."""

DONE = 0.0005
"""Gap at which the search stops."""

NEAR = 0.01
"""Gap up to which only searches that bring something go on."""

CLOSE = 0.015
"""Gap up to which branching for several seconds is likely to reach `NEAR`."""

WIDE = 0.05
"""Gap above which the search is repeated."""

FAR = 0.1
"""Gap above which it begins anew."""

LONG = 25.0
"""Seconds of planning work up to which it is repeated."""

FEW = 250
"""Nodes up to which searches wait for bounds from several instants, and plans from their solutions."""

SOME = 1000
"""Nodes up to which a plan does, once searches bring little: on larger graphs they take many seconds."""

ROUGH: Solver = MultiStart(starts=8)
"""Plans for larger budgets, from which searches with copies start."""

AGAIN = RuinAndRecreate(work=5e7, restart=True, disorder=0.3, gathering=0.2)
"""A search that begins again from another plan."""

THOROUGH: Solver = Polish(
    (MultiStart(starts=8), Continuation().if_(no_plan), RuinAndRecreate(work=1e7, disorder=0.3), AGAIN)
)
"""As `ROUGH`, where there is no plan without copies: what a search with copies begins from decides much then."""

UNDOING = RuinAndRecreate(work=1.6e8, disorder=0.3, undone=0.5, gathering=0.2, served=8)
"""For wide gaps: it also puts postponed runs back."""

REACHING = Oscillation(seconds=2.0)
"""For a first plan where shaving finds none."""

NEW_STARTS = Oscillation(seconds=9.0, searches=3, temperature=0.003)
"""For plans far from the bound: where a search begins decides much there, so several begin."""

ONWARD = Oscillation(seconds=12.0, restart=False, temperature=0.003)
"""For gaps of at most `WIDE`: from the best plan, on both sides of the budget. Most of what it brings comes at its end."""

COARSE = CoarseToFine(
    coarse=Oscillation(seconds=4.0, temperature=0.003),
    fine=Oscillation(seconds=8.0, temperature=0.003),
    last=Oscillation(seconds=6.0, restart=False, temperature=0.003),
)
"""For wider gaps, which are of graphs with many small nodes."""

LONG_SEARCH = RuinAndRecreate(work=6.5e8, disorder=0.3, gathering=0.2, served=8, others=0, patience=0.5)
"""Some seconds, half of which may bring nothing."""

LAST_SEARCH = evolve(LONG_SEARCH, gathering=0.0, patience=1)
"""For small gaps: `gaining` alone says when to stop."""

auto: Solver = WithCopies(
    Polish(
        (
            Floor(),
            MultiStart(),
            CutFloor().if_(no_plan),
            SingleInstant(mixed=0),
            HardestInstants(count=1).if_(gap_above(FAIR)),
            SavedSet(),
            Enumerate(),
            Postpone().if_(no_plan),
            REACHING.if_(no_plan),
            Continuation().if_(no_plan),
            Relieve().if_(no_plan),
            RuinAndRecreate(work=1e7),
            RuinAndRecreate(work=5e7, disorder=0.3).if_(gap_above(FAIR)).if_(gap(WIDE)),
            UNDOING.if_(gap_above(WIDE)),
            Checkpoints().if_(gap_above(FAIR)),
            AnyOrder().if_(gap_above(FAIR)),
            Continuation(step=0.97, steps=6, attempts=6).if_(gap_above(POOR)),
            AGAIN.if_(gap_above(POOR)),
            NEW_STARTS.if_(gap_above(FAR)).if_(worked_up_to(LONG)),
            UNDOING.if_(gap_above(WIDE)).if_(worked_up_to(LONG)),
            evolve(UNDOING, restart=True).if_(gap_above(WIDE)).if_(worked_up_to(LONG)),
            ONWARD.if_(gap_above(NEAR), throughout=False).if_(gap_above(POOR)).if_(gap(WIDE)).if_(worked_up_to(LONG)),
            LONG_SEARCH.if_(gap_above(NEAR)).if_(worked_up_to(LONG)),
            COARSE.if_(gap_above(WIDE), throughout=False).if_(gap_above(POOR)).if_(any_plan),
            BranchAndBound(effort=1.2e8).if_(gap_above(NEAR)).if_(gap(CLOSE)),
            LAST_SEARCH.if_(gap_above(FAIR)).if_(gap(NEAR)).if_(gaining(2.5)),
        ),
        stop=gap(DONE),
    )
    | PerLayerCheckpoint(),
    rough=ROUGH,
    thorough=THOROUGH,
)
"""The default planner; with a link it plans copies too."""

plan_first: Solver = WithCopies(
    Polish(
        (
            Floor(),
            PeakShaving(),
            CutFloor().if_(no_plan),
            Postpone().if_(no_plan),
            SingleInstant(mixed=0),
            SavedSet(),
            Enumerate(),
            MultiStart().if_(gap_above(GOOD)),
            REACHING.if_(no_plan),
            Continuation().if_(no_plan),
            Relieve().if_(no_plan),
            AnyOrder(effort=1e7).if_(gap_above(POOR)).if_(nodes_up_to(FEW)),
            RuinAndRecreate(work=1e7),
            Checkpoints().if_(gap_above(GOOD)),
            RuinAndRecreate(work=5e7, disorder=0.3).if_(gap_above(GOOD)).if_(gaining()),
            Continuation(step=0.97, steps=6, attempts=6).if_(gap_above(POOR)).if_(gaining(1)),
            AGAIN.if_(gap_above(POOR)).if_(gaining(1)),
            AnyOrder(effort=1e7).if_(gap_above(POOR)).if_(nodes_up_to(SOME)),
        ),
        stop=gap(DONE),
    )
    | PerLayerCheckpoint(),
    rough=ROUGH,
    thorough=THOROUGH,
)
"""The planner of `remat.exec.wrap`: as `auto`, but it proves only what costs little, and stops when work brings little."""

raise_bound: Solver = Polish(
    (SingleInstant(mixed=0), HardestInstants(count=1), AnyOrder().if_(gap_above(POOR))),
    stop=gap(DONE),
)
"""The bounds that `plan_first` leaves out; give it the plan as a start (`warm`), so that it ends when they are close."""

raise_link_bound: Solver = WithCopies(StoreAll(), moves=(LinkInstants(),))
"""The bound for schedules with copies, where there is a link."""

quick: Solver = Polish((Floor(), MultiStart(starts=8), SingleInstant(mixed=0), SavedSet(instants=2)), stop=gap(0.05))
"""A plan and a bound in a fraction of the time of `auto`, for many budgets."""

cheap: Solver = best(PeakShaving().within(0.3), PerLayerCheckpoint())
"""A plan in hundredths of a second on hundreds of nodes, for where a deadline left no plan."""

probe: Solver = Polish((PeakShaving(), MultiStart(starts=4)), stop=any_plan)
"""Any plan, to find the smallest budget that has one; proves nothing."""

swap: Solver = WithCopies(StoreAll(), moves=(ShaveBoth(halvings=0), ReplaceReruns()))
"""A plan with copies in little time, for the smallest budget that has one over a link."""

prover: Solver = Polish((SingleInstant(mixed=0), SavedSet(instants=2)), stop=any_plan)
"""Proves that no plan exists, or finds one: for budgets at which `probe` finds none."""
