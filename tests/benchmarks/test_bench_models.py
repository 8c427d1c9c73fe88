"""The benchmark of models tells each kind of miss, and only those; it goes on where it stopped."""

import json

import pytest
from torch import nn

from tests.benchmarks import bench_models
from tests.benchmarks.model_trial import gaps


def trial(**changes):
    good = {
        "dtype": "float32", "share": "70%", "status": "captured", "message": "", "gaps": [], "asked": None, "budget": 100,
        "floor": None, "predicted": 90, "measured": 90, "guards": 2, "wrong": [], "wrong_count": 0, "unsteady": False,
        "seconds": {"capture": 1.0},
    }  # fmt: skip
    return good | changes


def row(*trials):
    return {"name": "hf-x", "tags": [], "trials": list(trials), "wall": 1.0}


PLANTED = {
    "internal error: KeyError": {"status": "error", "message": "KeyError: 'val'"},
    "no plan at the smallest budget": {"status": "infeasible", "message": "no plan"},
    "two bare runs differ": {"unsteady": True},
    ": wrong in 1 places: step 0: loss": {"wrong": ["step 0: loss off by 1"], "wrong_count": 1},
    "after the refusal wrong in 1": {"status": "refused", "wrong": ["step 0: loss off by 1"], "wrong_count": 1},
    "names no line": {"status": "refused", "message": "X-TRACE: no", "gaps": ["line"]},
    "over budget: 101 of 100 B": {"measured": 101},
}


@pytest.mark.parametrize("line", PLANTED)
def test_a_planted_miss_is_told(line):
    (told,) = bench_models.misses(row(trial(**PLANTED[line])))
    assert line in told


def test_a_good_model_and_a_clear_refusal_miss_nothing():
    refusal = row(trial(status="refused", message="X-TRACE: `inner` at model.py:3 …", measured=None, budget=None))
    rows = [row(trial(), trial(measured=100)) for _ in range(9)] + [refusal]
    sums, lines = bench_models.summary(rows)
    assert lines == []
    assert sums[0].startswith("9 of 10 captured, 1 refused")
    assert bench_models.summary([*rows, refusal])[1] == ["captured 9 of 11, 90% asked"]
    assert "X-TRACE" in bench_models.page(rows, sums)


def test_trials_that_disagree_are_a_miss():
    mixed = row(trial(), trial(status="refused", message="X-TRACE"))
    assert bench_models.misses(mixed) == ["hf-x (all): captured in one trial and refused in another"]


def test_a_refusal_is_asked_for_module_line_and_way_out():
    module = nn.Sequential(nn.Linear(2, 2))
    assert gaps("aten.item in `0` (Linear) at net.py:12", "use a mask.", module) == []
    assert gaps("aten.item depends on values", "", module) == ["module", "line", "way out"]


def test_what_the_same_sources_wrote_is_taken_again(tmp_path, monkeypatch, capsys):
    asked = []

    def process(name, path, timeout):
        asked.append(name)
        path.write_text(json.dumps(row(trial())))

    monkeypatch.setattr(bench_models, "OUT", tmp_path)
    monkeypatch.setattr(bench_models, "run_process", process)
    for key, fresh in (("a", False), ("a", False), ("b", False), ("b", True)):
        bench_models.result_of("hf-x", key, 1, fresh)
    assert asked == ["hf-x"] * 3
    monkeypatch.setattr(bench_models, "run_process", lambda *_: "timeout: not done after 1 s")
    assert "timeout" in bench_models.misses(bench_models.result_of("hf-x", "c", 1, False))[0]
    assert "hf-x" in capsys.readouterr().out


def test_a_process_that_crashes_or_hangs_is_a_message(tmp_path):
    assert "crash" in bench_models.run_process("hf-no-such-model", tmp_path / "x.json", 60)
    assert "timeout" in bench_models.run_process("torch-vae", tmp_path / "y.json", 0.05)
