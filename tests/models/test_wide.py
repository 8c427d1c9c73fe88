"""The wide zoo: enough kinds of architectures under unique names, two fixed halves, captured without weights."""

from remat.exec.weightless import capture_without_weights
from remat.ir import Phase
from tests.benchmarks.bench_wide import line_of, missed
from tests.models.catalogue import HALVES, half_of, wide_models
from tests.models.wide_entry import step_of

KINDS = {
    "derivatives", "recurrent", "tree", "messages", "dense", "u-shaped", "nested-skips", "experts", "state-space", "two-tower",
    "adversarial", "3d", "deep-equal",
}  # fmt: skip


def test_torch_alone_has_thirty_architectures_of_every_kind_under_unique_names():
    models = wide_models(("torch",))
    assert len({model.name for model in models}) == len(models) >= 30
    assert {model.name.partition("-")[0] for model in models} == {"torch"}
    assert set().union(*(model.tags for model in models)) >= KINDS


def test_the_hash_of_a_name_decides_its_half_for_good():
    known = {"torch-tree": "develop", "torch-burgers": "report", "hf-t5": "develop", "timm-densenet121": "report"}
    assert {name: half_of(name) for name in known} == known
    names = [model.name for model in wide_models(("torch",))]
    shares = [sum(half_of(name) == half for name in names) / len(names) for half in HALVES]
    assert min(shares) > 0.4


def test_a_step_with_derivatives_in_its_loss_is_captured_without_weights():
    model = {model.name: model for model in wide_models(("torch",))}["torch-gradient-penalty"]
    graph = capture_without_weights(lambda: step_of(model)).graph()
    phases = [node.phase for node in graph.computes]
    twice = [node for node in graph.computes if node.phase is Phase.FORWARD and "convolution_backward" in node.name]
    assert phases.count(Phase.LOSS) == 1 and phases.count(Phase.BACKWARD) > 50
    assert len(twice) >= 4, "the slope of the critic is part of the forward"


def test_rows_show_their_numbers_and_what_ended_them():
    base = {
        "name": "torch-x",
        "half": "report",
        "status": "feasible",
        "captured_order": None,
        "beside": {"dtr": "refuses"},
    }
    good = base | {
        "share": "0.5",
        "nodes": 9,
        "time": 1.01,
        "bound": 1.0,
        "gap": 1.0,
        "plan_cpu": 2.0,
        "bound_cpu": 3.0,
    }
    low = {"name": "torch-x", "share": "lowest", "status": "lowest", "lowest": 0.2, "impossible": 0.15, "time": 1.5}
    low |= {"plan_cpu": 1.0, "bound_cpu": 1.0}
    killed = {"name": "torch-x", "share": "0.25", "status": "not done after 5 s"}
    assert line_of(good) == "torch-x 0.5 | 1.0100 | 1.0000 | 1.000 | - | 2.0 | 3.0 | refuses"
    assert "apart 0.050" in line_of(low) and line_of(killed).endswith("not done after 5 s")
    bars, misses = missed([good, low, killed])
    assert len(bars) == 5 and [bar.split()[0] for bar in misses] == ["median", "gap", "plan", "above", "lowest"]
    assert missed([good | {"gap": 0.05}, low | {"impossible": 0.18}])[1] == []
