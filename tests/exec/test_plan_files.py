"""Plans as files: replayed in another process without a solver, refused where they are not of the step, torch or budget."""

import contextlib
import copy
import json
import subprocess
import sys

import pytest
import torch
from attrs import evolve
from torch import nn

import remat.exec
from remat.algorithms import Solver
from remat.errors import BadArgument, StalePlan
from remat.exec import RematWarning
from remat.exec._cost import machine
from remat.exec._plan.replaying import fingerprint
from remat.exec._program.digest import program_digest
from remat.ir import Run, Schedule, read_plans
from tests.exec.support import LIGHT, SMALL, differences, train

EASY = {"solver": LIGHT, "rehearse": False, "on_uncapturable": "raise"}


class Net(nn.Module):
    def __init__(self, width=32, layers=4, activation=nn.GELU, probability=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.activation = activation()
        self.dropout = nn.Dropout(probability)

    def forward(self, x, weight=None):
        for layer in self.layers:
            x = self.dropout(self.activation(layer(x)))
        return x.square().mean() if weight is None else (x * weight).square().mean()


def batch(rows=64, width=32, dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(rows, width, dtype=dtype)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file with the plan of a net at 70 %."""
    path = tmp_path_factory.mktemp("plans") / "net.json"
    wrapped = remat.exec.wrap(Net(), batch(), "70%", **EASY | {"rehearse": True})
    assert remat.exec.report(wrapped).reruns > 0
    remat.exec.save_plan(wrapped, path)
    return path


@contextlib.contextmanager
def without_solvers():
    """Inside, a solver that is asked for a plan fails the test."""

    def solve(self, *_, **__):
        raise AssertionError(f"{self!r} was asked")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Solver, "solve", solve)
        yield


@pytest.fixture
def no_solver(saved):
    with without_solvers():
        yield


def replayed(saved, module=None, sample=None, **how):
    return remat.exec.wrap(
        module or Net(), batch() if sample is None else sample, plan=saved, **{"cost": "measure"} | how
    )


# -- replayed ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_replayed_as_it_was_without_a_solver(saved, no_solver):
    wrapped = replayed(saved)
    report, (plan,) = remat.exec.report(wrapped), read_plans(saved).plans
    assert report.schedule == plan.schedule and report.graph == plan.graph and report.budget == plan.budget
    assert report.lower == plan.lower and report.measured_peak == plan.rehearsal[0] <= report.budget
    assert str(saved) in report.origin and "another machine" not in report.origin and "plan from" in str(report)
    assert differences(train(Net(), (batch(),)), train(wrapped, (batch(),))) == []
    wrapped.zero_grad(set_to_none=True)
    x = batch()
    assert remat.exec.measure_step(lambda: wrapped(x).backward()).peak <= report.budget


def test_a_plan_without_a_sample_is_replayed_at_the_first_call(saved, no_solver):
    wrapped = remat.exec.wrap(Net(), plan=remat.exec.load_plan(saved))
    wrapped(batch()).backward()
    assert remat.exec.report(wrapped).reruns > 0


SCRIPT = """
import sys, torch, remat.exec
from remat.zoo import GPT2
torch.manual_seed(0)
model = GPT2(layers=2, width=32, heads=2, vocabulary=64, context=32)
tokens = torch.randint(64, (4, 32))
path = sys.argv[2]
if sys.argv[1] == "save":
    wrapped = remat.exec.wrap(model, (tokens, tokens), "60%", seconds=1)
    remat.exec.save_plan(wrapped, path)
else:
    wrapped = remat.exec.wrap(model, (tokens, tokens), plan=path)
    wrapped(tokens, tokens).backward()
    assert not {"numba", "cvxpy", "highspy"} & set(sys.modules), "a planner was loaded"
    report = remat.exec.report(wrapped)
    assert report.ran == "plan" and report.reruns > 0
"""


def test_a_plan_of_one_process_runs_in_another_without_a_solver(tmp_path):
    for word in ("save", "load"):
        command = [sys.executable, "-c", SCRIPT, word, str(tmp_path / "plan.json.gz")]
        subprocess.run(command, check=True)


def test_every_small_case_is_replayed_exactly(tmp_path):
    for name, case in SMALL.items():
        module, sample = case.instantiate(torch.float64)
        wrapped = remat.exec.wrap(copy.deepcopy(module), sample, "90%", on_infeasible="best", cost="estimate", **EASY)
        remat.exec.save_plan(wrapped, tmp_path / name)
        with without_solvers():
            again = replayed(tmp_path / name, copy.deepcopy(module), sample, cost="estimate", rehearse=False)
        assert remat.exec.report(again).schedule == remat.exec.report(wrapped).schedule
        assert differences(train(module, sample), train(again, sample), case.tied) == [], name


def test_all_plans_of_a_module_are_saved_and_found_again(tmp_path):
    path = tmp_path / "plans.json"
    wrapped = remat.exec.wrap(Net(), batch(64), "70%", **EASY)
    wrapped(batch(48)).backward()
    assert len(remat.exec.save_plan(wrapped, path).plans) == 2
    with without_solvers():
        again = replayed(path, sample=batch(48))
        again(batch(64)).backward()
    assert remat.exec.report(again).origin
    # what was not needed yet stays in the file
    assert len(remat.exec.save_plan(replayed(path), tmp_path / "again.json").plans) == 2


def test_another_shape_after_the_first_step_is_planned(saved):
    wrapped = replayed(saved, **EASY)
    wrapped(batch(32)).backward()
    report = remat.exec.report(wrapped)
    assert not report.origin and report.budget == read_plans(saved).budget


def test_a_loss_outside_is_neither_audited_nor_planned_again(tmp_path):
    def module():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16))

    x = torch.randn(64, 16)
    wrapped = remat.exec.wrap(module(), x, "90%", loss_reserve="64KiB", **EASY)
    remat.exec.save_plan(wrapped, tmp_path / "plan.json")
    with without_solvers():
        again = replayed(tmp_path / "plan.json", module(), x)
        for _ in range(3):
            again(x).square().mean().backward()
    assert remat.exec.report(again).loss_reserve == 64 * 2**10


def test_on_another_machine_costs_are_measured_and_the_note_says_so(saved, no_solver, monkeypatch):
    monkeypatch.setattr(machine, "_processor", lambda: "another processor")
    report = remat.exec.report(replayed(saved))
    assert "times of another machine" in report.origin and report.lower == 0
    assert report.schedule == read_plans(saved).plans[0].schedule
    assert report.predicted_peak <= report.budget and report.measured_peak <= report.budget


def test_another_patch_of_torch_is_another_machine(saved, no_solver):
    other = evolve(read_plans(saved), torch=".".join([*torch.__version__.split(".")[:2], "99"]))
    assert "times of another machine" in remat.exec.report(replayed(other)).origin


def test_the_fingerprint_does_not_know_the_device(saved):
    program = remat.exec.capture(Net(), (batch(),)).program
    there = torch.device("cuda", 1)

    def moved(value):
        return evolve(value, spec=evolve(value.spec, device=there))

    other = evolve(program, device=there, values={name: moved(value) for name, value in program.values.items()})
    assert program_digest(other) != program_digest(program)
    assert fingerprint(other) == fingerprint(program) == read_plans(saved).plans[0].fingerprint


# -- refused -----------------------------------------------------------------------------------------------------------


def frozen():
    net = Net()
    net.layers[2].weight.requires_grad_(False)
    return net


def tied():
    net = Net()
    net.layers[1].weight = net.layers[0].weight
    return net


def constant(value):
    """A net with a number of its own in the forward."""

    class Scaled(Net):
        def forward(self, x):
            return super().forward(x) * value

    return type("Net", (Scaled,), {})()


STALE = {
    "a layer more": (lambda: Net(layers=5), batch, "parameter layers.4.weight float32[32, 32] is not in the plan"),
    "a layer less": (lambda: Net(layers=3), batch, "parameter layers.3.weight float32[32, 32] of the plan is not here"),
    "another width": (lambda: Net(16), lambda: batch(width=16), "float32[16, 16] here and float32[32, 32] in the plan"),
    "another type": (
        lambda: Net().double(),
        lambda: batch(dtype=torch.float64),
        "float64[32, 32] here and float32[32, 32]",
    ),
    "a frozen layer": (frozen, batch, "parameter layers.2.weight is float32[32, 32], no gradient here"),
    "another batch": (Net, lambda: batch(63), "input 0 is float32[63, 32], no gradient here"),
    "another argument": (Net, lambda: (batch(), batch()), "input 1 float32[64, 32], no gradient is not in the plan"),
    "another activation": (lambda: Net(activation=nn.ReLU), batch, "the first operation that differs is relu"),
    "another probability": (lambda: Net(probability=0.2), batch, "the first operation that differs"),
    "no dropout": (lambda: Net(probability=0.0), batch, "operations here and"),
    "a tied weight": (tied, batch, "parameter layers.1.weight float32[32, 32] of the plan is not here"),
    "an input with a gradient": (Net, lambda: batch().requires_grad_(), "input 0 is float32[64, 32] here"),
    "another layout": (Net, lambda: batch().t().contiguous().t(), "the first operation that differs"),
    "an operation more": (lambda: constant(0.5), batch, "operations here and"),
    "another class": (lambda: type("Other", (Net,), {})(), batch, "the module is a Other, and the plan is of a Net"),
}


@pytest.mark.parametrize("name", STALE)
def test_a_plan_that_is_not_of_the_step_is_refused_with_what_differs(saved, no_solver, name):
    module, sample, says = STALE[name]
    with pytest.raises(StalePlan) as caught:
        replayed(saved, module(), sample())
    assert caught.value.rule == "X-STALE" and says in str(caught.value), str(caught.value)
    assert caught.value.differs and caught.value.fix and str(caught.value).count("\n") == 0


def test_another_constant_makes_another_step(tmp_path):
    plans = remat.exec.save_plan(remat.exec.wrap(constant(0.5), batch(), "100%", **EASY), tmp_path / "plan.json")
    with without_solvers(), pytest.raises(StalePlan, match="the first operation that differs is mul"):
        replayed(plans, constant(0.25))


def test_evaluation_is_another_step_once_it_is_called(saved, no_solver):
    wrapped = remat.exec.wrap(Net(), plan=saved).eval()
    with pytest.raises(StalePlan, match="the first operation that differs"):
        wrapped(batch())


def test_a_schedule_of_another_step_is_refused_though_its_fingerprint_agrees(saved, no_solver):
    file = read_plans(saved)
    (plan,) = file.plans
    runs = [step for step in plan.schedule.steps if isinstance(step, Run)]
    other = Schedule.from_runs(plan.graph, [plan.graph.node_index[run.node] for run in runs][:-1])
    with pytest.raises(StalePlan, match=r"X-STALE.*its schedule is not one of this step"):
        replayed(evolve(file, plans=(evolve(plan, schedule=other),)))


def test_autocast_makes_another_step(saved, no_solver):
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(StalePlan, match="operation"):
        replayed(saved)


def test_another_minor_version_of_torch_is_refused_before_any_work(saved):
    other = evolve(read_plans(saved), torch="1.13.1")
    with pytest.raises(StalePlan, match=r"torch is .* here and 1\.13 in the plan"):
        remat.exec.wrap(Net(), plan=other)


def test_a_budget_that_the_plan_does_not_fit_is_refused_with_both_numbers(saved, no_solver):
    needs = remat.exec.report(replayed(saved)).predicted_peak
    with pytest.raises(StalePlan) as caught:
        replayed(saved, budget=needs - 1)
    assert (
        caught.value.rule == "X-FIT" and f"({needs} B)" in str(caught.value) and f"({needs - 1} B)" in str(caught.value)
    )
    assert remat.exec.report(replayed(saved, budget=needs)).predicted_peak == needs


def test_a_refusal_does_not_wear_off(saved, no_solver):
    wrapped = remat.exec.wrap(Net(layers=5), plan=saved)
    for _ in range(2):
        with pytest.raises(StalePlan):
            wrapped(batch())


@pytest.mark.parametrize(
    ("change", "module"), [({"torch": "1.13.1"}, Net), ({}, lambda: Net(layers=5)), ({"budget": 1}, Net)]
)
def test_asked_to_plan_what_is_stale_it_warns_and_plans(saved, change, module):
    plans = evolve(read_plans(saved), **{key: value for key, value in change.items() if key == "torch"})
    budget = remat.exec.report(replayed(saved)).predicted_peak - 1 if "budget" in change else "80%"
    with pytest.warns(RematWarning, match="planned anew"):
        wrapped = remat.exec.wrap(module(), batch(), budget, plan=plans, on_stale="plan", cost="measure", **EASY)
    report = remat.exec.report(wrapped)
    assert not report.origin and report.predicted_peak <= report.budget and report.reruns > 0


def test_a_plan_of_another_torch_still_gives_its_budget(saved):
    plans = evolve(read_plans(saved), torch="1.13.1")
    with pytest.warns(RematWarning, match="planned anew"):
        wrapped = remat.exec.wrap(Net(), batch(), plan=plans, on_stale="plan", **EASY)
    assert remat.exec.report(wrapped).budget == plans.budget


def test_what_has_no_plan_is_not_saved(tmp_path):
    for module in (Net(), remat.exec.wrap(Net(), budget="70%"), remat.exec.wrap(Net(), batch())):
        with pytest.raises(BadArgument, match="X-REPORT"):
            remat.exec.save_plan(module, tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", [{"plan": 3}, {"on_stale": "ask"}])
def test_wrong_arguments(how):
    with pytest.raises(BadArgument, match="X-ARG"):
        remat.exec.wrap(Net(), batch(), **how)


def test_a_file_that_cannot_be_read_is_refused_before_any_work(tmp_path):
    for path, what in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(BadArgument, match=rf"X-ARG: wrap: plan is .*{what}.*save_plan"):
            remat.exec.wrap(Net(), batch(), "70%", plan=path)


def test_a_damaged_file_is_refused_before_any_work(saved, tmp_path):
    document = json.loads(saved.read_text())
    document["plans"][0]["schedule"]["steps"].pop()
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(remat.RematError, match="F-CHECKSUM"):
        remat.exec.wrap(Net(), plan=tmp_path / "plan.json")


def test_copies_and_pickles_keep_the_file(saved, no_solver):
    wrapped = copy.deepcopy(remat.exec.wrap(Net(), plan=saved))
    wrapped(batch()).backward()
    assert remat.exec.report(wrapped).origin
