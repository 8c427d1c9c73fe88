"""The evidence pages show the stored rows, all of them, beside the papers' numbers."""

import json
from pathlib import Path

import pytest

from remat.algorithms import HIlp, store_all_peak
from remat.ir import load
from tests.benchmarks import bench_hiremate, bench_rockmate
from tests.benchmarks.paper_rows import Rows, dates, solved
from tests.site import evidence

BLOCKS = Path(__file__).parents[1] / "data" / "blocks"


@pytest.mark.parametrize("path", evidence.PAGES, ids=lambda path: path.name)
def test_the_tables_are_made_from_the_stored_rows(path):
    text = path.read_text()
    assert text == evidence.renewed(text, evidence.PAGES[path]()), "python -m tests.site.evidence"


def test_the_stored_bars_are_held_and_rockmate_is_never_behind_rotor():
    assert bench_rockmate.missed(evidence.stored("rockmate")["rows"]) == []
    assert bench_hiremate.missed(evidence.stored("hiremate")["rows"]) == []


def test_a_late_plan_a_missing_one_and_a_rotor_that_wins_are_missed():
    late = {"bar gpt24": {"time": 1.1, "seconds": 31.0}, "partition large": {"seconds": 10.5}}
    assert len(bench_hiremate.missed(late)) == 2
    assert bench_hiremate.missed({"bar unet": {"time": None, "seconds": 3.0}}) == ["bar unet: no plan"]
    plans = {"rotor": {"50": {"time": 1.1}}, "rockmate": {"50": {"time": 1.2}}}
    assert len(bench_rockmate.missed({"fig6 gpt24": plans, "bar gpt24": {"time": 1.0, "seconds": 21.0}})) == 2


def test_every_model_has_its_words_and_the_papers_numbers():
    shown = {*bench_rockmate.APPENDIX, *bench_rockmate.CURVES, *bench_hiremate.TABLE3, *bench_hiremate.DEPTHS}
    assert shown | set(bench_hiremate.TABLE2) <= set(evidence.NAMES)
    assert set(evidence.PAPER_TABLE3) == set(bench_hiremate.TABLE3) == set(bench_hiremate.PLANNED)
    for model, (_, budgets) in bench_rockmate.APPENDIX.items():
        assert list(evidence.PAPER_APPENDIX[model]) == [str(budget) for budget in budgets]


def test_a_row_that_was_not_run_is_named_and_left_out():
    rows = {"fig4 gpt24 3": {"options": 7, "seconds": 3.0, "times": dict.fromkeys(("70", "50", "35", "25"))}}
    assert evidence.figure4(rows)[2:] == ["| GPT2-medium (4, 512) | 3 × 3 | 7 | 3.0 | — | — | — | — |", ""]
    keys = ["fig4 gpt24 3", "fig4 gpt24 5", "fig4 gpt24 10", "checkmate 2"]
    assert evidence.left_out(rows, keys) == ["figure 4 gpt24 (5, 10)", "checkmate (2)"]
    lines = evidence.conditions({"rows": {}, "versions": {}, "machine": "x", "date": "today"}, "make x", ["a", "b"])
    assert "Not run yet: a, b." in lines


def test_a_refused_graph_is_told_from_one_without_a_plan():
    graph = load(BLOCKS / "gpt2_mlp.json")
    refused = solved(HIlp(entries=1).within(5), graph, store_all_peak(graph))
    assert refused["time"] is None and "a formulation of about" in refused["refused"]
    impossible = solved(HIlp().within(5), graph, 1)
    assert impossible["time"] is None and "refused" not in impossible
    plans = {name: {"time": 1.1, "seconds": 1.0} for name in ("rotor", "rockmate")}
    point = {"nodes": 9, "share": 50.0, "options seconds": 1.0} | plans
    tables = [evidence.figure5({"fig5 2": point, "checkmate 2": row}) for row in (refused, impossible)]
    assert [lines[2].split("|")[-3].strip() for lines in tables] == ["refused", "—"]


def test_rows_are_measured_once_and_a_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.benchmarks.paper_rows.DATA", tmp_path)
    calls = []

    def measure():
        calls.append(1)
        return {"time": 1.0000049, "parts": {"a": None}}

    Rows("page").add("a 1", measure)
    again = Rows("page", only="b")
    again.add("a 1", measure)
    again.add("c", measure)
    again.add("b", measure)
    stored = json.loads((tmp_path / "page.json").read_text())
    assert len(calls) == 2 and list(stored["rows"]) == ["a 1", "b"]
    assert stored["rows"]["b"]["time"] == 1.0 and "cpu" in stored["rows"]["b"]
    assert Rows("page", fresh=True).rows == {}


def test_a_run_that_goes_on_another_day_has_both_dates():
    today = dates(None)
    assert dates(today) == today
    assert dates("2000-01-01") == dates("2000-01-01 to 2000-02-01") == f"2000-01-01 to {today}"
