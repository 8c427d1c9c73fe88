"""The gallery: pages made from the stored curves, a picture with words for each model, and plan files that are there."""

import json
import math
import re

import pytest
from attrs import evolve

from remat.ir import validate
from remat.records.entry import BoundRecord, Instance, PlanRecord
from tests.site import gallery
from tests.site.gallery_models import GROUPS, PIECES

CURVES = json.loads(gallery.CURVES.read_text())
NAMES = [name for pieces in PIECES.values() for name in pieces]


def test_at_least_twenty_models_are_shown_each_once():
    assert list(PIECES) == list(GROUPS)
    assert len(NAMES) == len(set(NAMES)) >= 20
    assert set(CURVES) == set(NAMES)


@pytest.mark.parametrize("path", gallery.pages(CURVES), ids=lambda path: path.name)
def test_the_pages_are_made_from_the_stored_curves(path):
    assert path.read_text() == gallery.pages(CURVES)[path], "python -m tests.site.gallery --draw"


def test_every_model_has_a_picture_with_words_a_command_and_a_plan_file():
    text = "".join(gallery.page(group, CURVES) for group in GROUPS)
    shown = dict(re.findall(r"!\[([^\]]{60,})\]\(([\w.-]+\.svg)\)", text))
    assert sorted(shown.values()) == sorted(f"{name}.svg" for name in NAMES)
    assert {path.name for path in gallery.FOLDER.glob("*.svg")} == set(shown.values())
    for name in NAMES:
        assert f"remat sweep docs/benchmarks/instances/{name}/graph.json.gz" in text
        assert (gallery.LIBRARY.folder / name / f"{CURVES[name]['plan']}.schedule.json.gz").exists()


def test_every_picture_is_of_its_model_and_all_of_them_are_small():
    for pieces in PIECES.values():
        for name, piece in pieces.items():
            picture = (gallery.FOLDER / f"{name}.svg").read_text()
            assert f"<dc:title>{piece.title}</dc:title>" in picture and "no plan is faster" in picture
            assert not re.search(r'(?:href|src)="https?:', picture), "nothing is loaded from other hosts"
    assert sum(path.stat().st_size for path in gallery.FOLDER.iterdir()) < 1.5 * 2**20


@pytest.mark.parametrize("name", NAMES)
def test_a_curve_falls_with_memory_above_its_bound_and_is_of_the_graph_of_the_library(name):
    curve, entry = CURVES[name], gallery.LIBRARY.entry(name)
    assert (curve["digest"], curve["peak"], curve["time"]) == (entry.digest, entry.peak, entry.time)
    assert len(curve["further"]) == len(gallery.FURTHER) and len(curve["points"]) == len(gallery.FURTHER) + 4
    times = [math.inf if point["time"] is None else point["time"] for point in curve["points"]]
    bounds = [math.inf if point["lower"] is None else point["lower"] for point in curve["points"]]
    assert [point["share"] for point in curve["points"]] == sorted(point["share"] for point in curve["points"])
    assert times == sorted(times, reverse=True) and bounds == sorted(bounds, reverse=True)
    assert all(bound <= time for bound, time in zip(bounds, times, strict=True))
    for instance in entry.instances:  # records are only ever raised
        (shown,) = (point["time"] for point in curve["points"] if point["share"] == instance.share)
        assert shown is None or instance.plan is not None


def test_the_plan_file_of_a_model_is_a_plan_within_the_budget_it_names():
    name = NAMES[-1]
    entry = gallery.LIBRARY.entry(name)
    instance = entry.instance(CURVES[name]["plan"])
    cost = validate(gallery.LIBRARY.graph(entry), gallery.LIBRARY.schedule(instance), instance.budget)
    assert cost.peak <= instance.budget


def test_a_plan_serves_larger_budgets_and_a_bound_smaller_ones():
    points = [
        {"share": 25, "time": None, "lower": 3}, {"share": 30, "time": 7, "lower": 6}, {"share": 50, "time": 9, "lower": 5},
    ]  # fmt: skip
    assert [point["time"] for point in gallery.joined(points)] == [None, 7, 7]
    assert [point["lower"] for point in gallery.joined(points)] == [6, 6, 5]
    impossible = [{"share": 25, "time": None, "lower": 3}, {"share": 30, "time": None, "lower": None}]
    assert [point["lower"] for point in gallery.joined(impossible)] == [None, None]


def test_a_record_is_shown_with_the_larger_of_its_bounds():
    instance = Instance(graph="g", share=50, budget=8, plan=PlanRecord(time=9, peak=8, by="a", date="2026-11-22"))
    bound, claim = (BoundRecord(bound=value, by="a", date="2026-11-22") for value in (5, 7))
    assert gallery.recorded(instance)["lower"] == 0
    assert gallery.recorded(evolve(instance, bound=bound, claim=claim)) == {"share": 50, "time": 9, "lower": 7}
    assert gallery.recorded(evolve(instance, plan=None, bound=evolve(bound, bound=None)))["lower"] is None


@pytest.mark.parametrize(
    ("title", "anchor"),
    [("U-Net++", "u-net"), ("Burgers' equation", "burgers-equation"), ("wav2vec 2.0", "wav2vec-20")],
)
def test_an_anchor_is_the_one_that_markdown_makes(title, anchor):
    assert gallery.anchor(title) == anchor
