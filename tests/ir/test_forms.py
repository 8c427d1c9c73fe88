"""The published schemas accept what the library writes; files are written whole or not at all."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given

from remat.errors import MalformedFile
from remat.ir import Schedule, condense, dump, dumps, load, loads, parse_text
from remat.ir.plan_file import parse_plans
from remat.testing.strategies import clustered_graphs, scheduled

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@cache
def validator(name):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((REFERENCE / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@given(scheduled(copies=True), clustered_graphs())
def test_the_schemas_accept_what_is_written(example, clustered):
    level = condense(clustered.graph, clustered.clusters, clustered.options).graph
    for graph in (example.graph, level):
        validator("graph").validate(json.loads(dumps(graph)))
    validator("schedule").validate(json.loads(dumps(example.schedule)))


@pytest.mark.parametrize("change", [{"steps": [["jump", "F"]]}, {"steps": [["run"]]}, {"format": "x"}, {"more": 1}])
def test_the_schemas_refuse_what_the_reader_refuses(change):
    document = {"format": "remat-schedule/1", "steps": [["run", "F"]]}
    assert validator("schedule").is_valid(document) and not validator("schedule").is_valid(document | change)


@given(scheduled())
def test_files_of_every_form_come_back(tmp_path_factory, example):
    folder = tmp_path_factory.mktemp("forms")
    for thing in (example.graph, example.schedule):
        for name in ("x.json", "x.json.gz", "x.remat"):
            dump(thing, folder / name)
            assert load(folder / name) == thing
    assert sorted(path.name for path in folder.iterdir()) == ["x.json", "x.json.gz", "x.remat"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError("no room")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="no room"):
        dump(Schedule(()), tmp_path / "s.json")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_archive_is_one_error(tmp_path):
    dump(Schedule(()), tmp_path / "s.json.gz")
    raw = (tmp_path / "s.json.gz").read_bytes()
    for cut in range(2, len(raw)):
        (tmp_path / "cut.gz").write_bytes(raw[:cut])
        with pytest.raises(MalformedFile):
            load(tmp_path / "cut.gz")


def test_a_text_that_begins_with_a_comment_is_read():
    text = "# of a note\n\nremat graph 1\nloss L : -> ; time 1\n"
    assert loads(text) == parse_text(text)


def test_half_a_character_in_a_plan_file_is_refused():
    with pytest.raises(MalformedFile, match="F-CHECKSUM"):
        parse_plans('{"format":"remat-plan/1","checksum":"x","model":"\\ud800"}')
