"""Plans of other sizes: exact, within the budget, bounded, and said in the report; plans for many shapes before a training."""

import copy
import functools

import pytest
import torch
from attrs import evolve
from torch import nn

import remat.exec
from remat.algorithms import Clock, MultiStart, Outcome, Problem, StoreAll, store_all_peak
from remat.errors import BadArgument, Infeasible
from remat.exec._module.shape_bill import FEWEST, LEAST, ShapeBill
from remat.exec._plan import families
from remat.exec._plan.families import Families, runs_of
from remat.exec._program.digest import structure_digest
from remat.ir import Schedule, validate
from remat.zoo import MLP
from tests.exec.support import LIGHT

SIZES = (64, 58, 50, 44)


@pytest.fixture(autouse=True)
def light(monkeypatch):
    """The default planner takes milliseconds: here plans are moved between sizes, not judged."""
    monkeypatch.setattr("remat.exec._plan.settings.Settings.planner", lambda settings: settings.solver or LIGHT)
    monkeypatch.setattr("remat.exec._plan.solving._cheap", lambda: LIGHT)
    monkeypatch.setattr(families, "MEMBER_WORK", 1e5)
    monkeypatch.setattr(families, "WORK", 1e4)


def sample(rows):
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 24, generator=generator), torch.randn(rows, 8, generator=generator)


def mlp(layers=6):
    torch.manual_seed(0)
    return MLP(layers=layers, width=24)


def wrapped_mlp(budget="45%", model=None, **more):
    settings = {"cost": "estimate", "progress": False} | more
    return remat.exec.wrap(model or mlp(), sample(SIZES[0]), budget, **settings)


@functools.cache
def costed(rows, layers=6):
    captured = remat.exec.capture(mlp(layers), sample(rows), {})
    return captured.program, remat.exec.build_graph(captured.program, remat.exec.estimate(captured.program))


def gradients(model, rows):
    model.zero_grad(set_to_none=True)
    torch.manual_seed(rows)
    loss = model(*sample(rows))
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def test_steps_of_other_sizes_run_plans_of_the_family_exact_and_within_the_budget():
    model = wrapped_mlp(cost="measure")
    bare, budget, provenances = mlp(), remat.exec.report(model).budget, []
    for rows in SIZES:
        results = gradients(model, rows)
        assert all(map(torch.equal, results, gradients(bare, rows)))
        report = remat.exec.report(model)
        provenances.append(report.provenance)
        assert validate(report.graph, report.schedule, budget).peak == report.predicted_peak <= budget
        assert report.store_all_peak > budget  # or nothing would have been needed
        model.zero_grad(set_to_none=True)
        inputs = sample(rows)
        memory = remat.exec.measure_step(lambda inputs=inputs: model(*inputs).backward())
        assert memory.peak <= budget
    assert provenances == ["own", "family", "family", "family"]
    assert "plan from       plans of other sizes" in str(remat.exec.report(model))


def related(table, program, graph, budget, clock=None):
    return table.relation(program, graph, budget, peak=store_all_peak(graph), clock=clock or Clock(), seed=0)


def test_a_size_at_which_no_plan_fits_gets_the_nearest_one_shaved():
    program, graph = costed(64)
    peak = store_all_peak(graph)
    table = Families()
    loose = MultiStart(starts=2).solve(Problem(graph=graph, budget=9 * peak // 10))
    table.learn(program, graph, loose)
    other, smaller = costed(60)
    budget = store_all_peak(smaller) // 2
    (family,) = table.by_structure.values()
    family.overheads[50] = 1.0  # so much that a short search will do
    relation = related(table, other, smaller, budget)
    assert relation.provenance == "repaired"
    assert validate(smaller, relation.outcome.schedule, budget) == relation.outcome.cost


def test_where_nothing_can_be_shaved_to_the_budget_the_size_is_planned_for_itself(monkeypatch):
    program, graph = costed(64)
    table = Families()
    table.learn(program, graph, MultiStart(starts=2).solve(Problem(graph=graph, budget=store_all_peak(graph) - 1)))
    monkeypatch.setattr(families, "_member", lambda *_: Outcome())
    assert related(table, *costed(60), 10) is None
    assert related(Families(), program, graph, 10) is None


def test_a_member_of_one_size_is_a_schedule_of_every_other():
    _, graph = costed(64)
    outcome = MultiStart(starts=2).solve(Problem(graph=graph, budget=6 * store_all_peak(graph) // 10))
    runs = runs_of(graph, outcome)
    for rows in (2, 31, 200):
        _, other = costed(rows)
        cost = validate(other, Schedule.from_runs(other, list(runs)))
        assert cost.reruns == outcome.cost.reruns > 0


def test_structures_are_told_by_operations_and_not_by_sizes():
    digests = [structure_digest(costed(rows, layers)[0]) for rows, layers in ((2, 6), (64, 6), (64, 5))]
    assert digests[0] == digests[1] != digests[2]


def test_a_loop_unrolled_in_time_is_another_structure_at_each_length_and_the_report_says_so():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.Linear(4, 4)

        def forward(self, x):
            state = x[0]
            for step in x[1:]:
                state = torch.tanh(self.cell(state) + step)
            return state.sum()

    model = remat.exec.wrap(Loop(), torch.randn(5, 3, 4), "1GiB", cost="estimate", progress=False)
    model(torch.randn(6, 3, 4)).backward()
    report = remat.exec.report(model)
    assert report.provenance == "unrelated" and "others than those of the sizes planned before" in str(report)
    assert report.measured_peak is not None  # a plan of its own is rehearsed


@pytest.mark.parametrize("settings", [{"family": False}, {"solver": LIGHT}])
def test_every_size_is_planned_for_itself_where_that_is_asked(settings):
    model = wrapped_mlp(**settings)
    gradients(model, SIZES[1])
    report = remat.exec.report(model)
    assert report.provenance == "own" and report.measured_peak is not None and report.reruns > 0


def test_a_family_is_bounded_and_grows(monkeypatch):
    program, graph = costed(32)
    table = Families()
    outcome = MultiStart(starts=2).solve(Problem(graph=graph, budget=6 * store_all_peak(graph) // 10))
    table.learn(program, graph, outcome)
    (family,) = table.by_structure.values()
    other, larger = costed(40)
    assert related(table, other, larger, store_all_peak(larger) // 2) is not None
    assert family.overheads.keys() == family.plans.keys() == {outcome.cost.peak * 100 // store_all_peak(graph), 50}
    for share in range(3 * families.MOST_PLANS):
        family.keep(share, runs_of(graph, outcome))
    assert list(family.plans) == list(range(2 * families.MOST_PLANS, 3 * families.MOST_PLANS))
    assert len(family.sequences()) == len(set(family.sequences())) <= 4
    monkeypatch.setattr(families, "MOST_FAMILIES", 2)
    for layers in (2, 3, 4):
        program, graph = costed(32, layers)
        table.learn(program, graph, StoreAll().solve(Problem(graph=graph, budget=store_all_peak(graph))))
    kept = [structure_digest(costed(8, layers)[0]) for layers in (3, 4)]
    assert list(table.by_structure) == kept and not any(family.sequences() for family in table.by_structure.values())


def test_a_deadline_that_is_over_leaves_the_sequences_and_marks_no_share_as_impossible():
    program, graph = costed(64)
    table = Families()
    outcome = MultiStart(starts=2).solve(Problem(graph=graph, budget=6 * store_all_peak(graph) // 10))
    table.learn(program, graph, outcome)
    relation = related(table, program, graph, outcome.cost.peak, Clock(0.0))
    assert relation.provenance == "family" and relation.outcome.cost.time <= outcome.cost.time
    (family,) = table.by_structure.values()
    assert list(family.overheads) == [100 * outcome.cost.peak // store_all_peak(graph)]


def test_plans_of_a_file_are_of_use_for_other_sizes_too():
    plans = remat.exec.plans_of(wrapped_mlp())
    model = wrapped_mlp(None, plan=plans)
    assert remat.exec.report(model).origin
    gradients(model, SIZES[1])
    assert remat.exec.report(model).provenance == "family"


def test_a_copy_of_the_module_has_the_family_and_adds_to_its_own():
    model = wrapped_mlp()
    other = copy.deepcopy(model)
    gradients(other, SIZES[1])
    assert remat.exec.report(other).provenance == "family"
    (mine,), (theirs,) = (each.__dict__["_remat"].families.by_structure.values() for each in (model, other))
    assert len(mine.plans) < len(theirs.plans) and mine.overheads.keys() < theirs.overheads.keys()


def test_preparing_plans_every_shape_and_names_those_that_do_not_fit():
    model = wrapped_mlp()
    budget, state = remat.exec.report(model).budget, model.__dict__["_remat"]
    before, seen = torch.get_rng_state(), []
    preparation = remat.exec.prepare(model, [sample(50), sample(900), sample(64), sample(4)], progress=seen.append)
    assert torch.equal(before, torch.get_rng_state()) and all(p.grad is None for p in model.parameters())
    assert [fit.shapes[0][1][0] for fit in preparation.fits] == [50, 900, 64, 4]
    assert [fit.fits for fit in preparation.fits] == [True, False, True, True] and seen[0] == preparation.fits[1]
    assert all(fit.peak <= budget for fit in preparation.fits if fit.fits)
    (unfit,) = preparation.unfit
    assert budget < unfit.floor <= unfit.smallest and f"below {unfit.floor} B" in str(preparation)
    with pytest.raises(Infeasible, match="1 of 4 shapes") as caught:
        preparation.check()
    assert (caught.value.floor, caught.value.smallest) == (unfit.floor, unfit.smallest)
    entries = len(state.entries)
    gradients(model, 50)
    assert len(state.entries) == entries == 3


def test_wrap_refuses_shapes_that_do_not_fit_before_anything_is_trained():
    with pytest.raises(Infeasible, match=r"argument 0 \[900, 24\]"):
        wrapped_mlp(shapes=[sample(50), sample(900)])
    for wrong, what in (
        ([], "there are no samples"),
        (5, "5 is no list of calls"),
        (torch.ones(3), "is no list of calls"),
    ):
        with pytest.raises(BadArgument, match=f"X-ARG: wrap: shapes: .*{what}"):
            wrapped_mlp(shapes=wrong)
    with pytest.raises(BadArgument, match="not wrapped"):
        remat.exec.prepare(mlp(), [sample(3)])


def test_the_first_sample_decides_a_share_and_what_runs_bare_is_said():
    model = remat.exec.wrap(mlp(), None, "45%", cost="estimate", progress=False)
    preparation = remat.exec.prepare(model, [sample(64), sample(120)])
    assert preparation.budget == remat.exec.report(wrapped_mlp()).budget
    frozen = mlp().requires_grad_(False)
    bare = remat.exec.prepare(remat.exec.wrap(frozen, None, 1000, cost="estimate", progress=False), [sample(8)])
    assert "runs without a plan: nothing requires a gradient" in str(bare) and bare.unfit


def test_new_shapes_that_cost_much_are_told_once():
    bill = ShapeBill()
    bill.add(0.0, 500.0)  # the first plan is not counted
    for shape in range(FEWEST):
        assert bill.note(1000.0) == ""
        bill.add(510.0 + shape, 510.0 + shape + LEAST / 4)
    assert "took 40 s" in bill.note(600.0) and bill.note(600.0) == ""
    fresh = ShapeBill(since=0.0, spent=2 * LEAST, shapes=FEWEST)
    assert fresh.note(1e5) == ""
    fresh.restart(1e5)
    assert fresh.note(1e5) == "" and fresh.shapes == 0


def test_a_filled_size_that_the_family_is_too_coarse_for_has_one_member_made_for_itself(monkeypatch):
    program, graph = costed(SIZES[0])
    peak = store_all_peak(graph)
    table, budget = Families(), 49 * peak // 100 + 1
    lowest = next(
        outcome
        for share in range(25, 48, 2)
        if (outcome := LIGHT.solve(Problem(graph=graph, budget=share * peak // 100))).schedule is not None
    )
    table.learn(program, graph, lowest)
    (family,) = table.by_structure.values()
    family.overheads[48] = 0.0  # a poor plan is all there is, said to be a good one
    monkeypatch.setattr(families, "FILLED_WORK", 1.0)
    made = []
    original = families._member
    monkeypatch.setattr(families, "_member", lambda *args: made.append(args) or original(*args))
    filled = evolve(program, structure=structure_digest(program))
    relation = related(table, filled, graph, budget)
    assert [args[:2] for args in made] == [(graph, budget)] and family.overheads[49] < lowest.cost.time / graph.time - 1
    assert relation.outcome.cost.peak <= budget and relation.outcome.cost.time < lowest.cost.time
    assert 49 in family.plans and family.plans[49] == runs_of(graph, relation.outcome)
    related(table, filled, graph, budget)
    assert len(made) == 1
    assert family.copied().overheads == family.overheads and family.copied().overheads is not family.overheads
