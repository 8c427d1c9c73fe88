"""Plans as files: they round-trip, are written whole, and every damage is refused with one message and its place."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from attrs import evolve

from remat.cli import main
from remat.errors import BadArgument, IllFormed, MalformedFile
from remat.ir import (
    Drop,
    Link,
    Offload,
    PlanFile,
    Prefetch,
    Run,
    SavedPlan,
    Schedule,
    read_plans,
    write_plans,
)
from tests.graphs import tiny_step

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


RERUN = (Run("F"), Run("H"), Drop("a"), Run("L"), Drop("h"), Run("F"), Run("B"), Drop("a"))


def plan(letter="a", **changed):
    settings = {
        "fingerprint": letter * 64, "tensors": ("parameter w float32[2, 2]", "input 0 float32[1, 2], no gradient"),
        "graph": tiny_step(), "schedule": Schedule(RERUN), "budget": 12, "overhead": 2, "reserve": 1, "audited": True,
        "lower": 10, "planner": "auto", "trail": ("auto: a plan", "über"), "rehearsal": (9, 0, 12),
    }  # fmt: skip
    return SavedPlan(**(settings | changed))


def file(*plans, **changed):
    settings = {
        "model": "Tiny", "remat": "0.1.0", "torch": "2.13.0", "machine": "a processor, 1 thread", "budget": 12,
        "costs_by": "measure", "costs": {"mm([2,2])": (5, 3, (4, None)), "µ": (1, 0, ())},
    }  # fmt: skip
    return PlanFile(plans=plans or (plan(),), **(settings | changed))


def checked(document):
    """A document with the checksum that it should have."""
    rest = {key: value for key, value in document.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {**rest, "checksum": hashlib.sha256(text.encode()).hexdigest()}


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
def test_plans_come_back_as_they_were(tmp_path, name):
    away = (*RERUN[:2], Offload("a"), *RERUN[3:5], Prefetch("a"), *RERUN[6:])
    copies = plan("c", schedule=Schedule(away), lower=0, budget=50, link=Link(to_host=5, to_device_latency=3))
    plans = file(plan("a"), plan("b", rehearsal=None, lower=0, audited=False), copies)
    write_plans(plans, tmp_path / name)
    assert read_plans(tmp_path / name) == plans
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes()[:2] == (b"\x1f\x8b" if name.endswith("gz") else b'{"')


def test_the_checksum_is_the_documented_one(tmp_path):
    write_plans(file(), tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    assert document == checked(document)


@pytest.fixture(scope="module")
def schema():
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads((REFERENCE / "plan.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def test_the_schema_accepts_what_is_written_and_refuses_other_shapes(tmp_path, schema):
    write_plans(file(plan("a"), plan("b", rehearsal=None), plan("c", link=Link(to_device=5))), tmp_path / "p.json")
    text = (tmp_path / "p.json").read_text()
    schema.validate(json.loads(text))
    refused = {name for name, (change, rule, _) in CONTENT.items() if rule in ("F-FORMAT", "F-KEY", "F-TYPE")}
    for name in refused:
        document = json.loads(text)
        CONTENT[name][0](document)
        assert not schema.is_valid(document), name


def at(document, *keys):
    for key in keys:
        document = document[key]
    return document


def put(*keys, value):
    def change(document):
        at(document, *keys[:-1])[keys[-1]] = value

    return change


def without(*keys):
    def change(document):
        del at(document, *keys[:-1])[keys[-1]]

    return change


SCHEDULE = ("plans", 0, "schedule", "steps")
CONTENT = {
    "another version": (put("format", value="remat-plan/2"), "F-FORMAT", "$.format"),
    "a schedule in place of plans": (put("format", value="remat-schedule/1"), "F-FORMAT", "$.format"),
    "a graph of another version": (
        put("plans", 0, "graph", "format", value="remat-graph/9"), "F-FORMAT", "$.plans[0].graph.format",
    ),
    "no torch": (without("torch"), "F-KEY", "$"),
    "no fingerprint": (without("plans", 0, "fingerprint"), "F-KEY", "$.plans[0]"),
    "an unknown key": (put("plans", 0, "speed", value=1), "F-KEY", "$.plans[0]"),
    "a fingerprint that is none": (put("plans", 0, "fingerprint", value="abc"), "F-TYPE", "$.plans[0].fingerprint"),
    "a budget in words": (put("budget", value="6GiB"), "F-TYPE", "$.budget"),
    "a budget below nothing": (put("plans", 0, "budget", value=-1), "G-RANGE", "$.plans[0]"),
    "a cost of two numbers": (put("costs", "µ", value=[1, 0]), "F-TYPE", "$.costs['µ']"),
    "a cost with a fraction": (put("costs", "µ", value=[1.5, 0, []]), "F-TYPE", "$.costs['µ']"),
    "tensors that are no text": (put("plans", 0, "tensors", value=[1]), "G-TUPLE", "$.plans[0]"),
    "a trail that is no text": (put("plans", 0, "trail", value=[None]), "F-TYPE", "$.plans[0].trail[0]"),
    "a rehearsal of two numbers": (put("plans", 0, "rehearsal", value=[1, 2]), "F-TYPE", "$.plans[0].rehearsal"),
    "a link of three numbers": (put("plans", 0, "link", value=[1, 2, 3]), "F-TYPE", "$.plans[0].link"),
    "a link with a fraction": (put("plans", 0, "link", value=[1.5, 2, 3, 0]), "F-TYPE", "$.plans[0].link"),
    "copies without a link": (put(*SCHEDULE, 2, value=["offload", "a"]), "F-PLAN", "$.plans[0].schedule"),
    "no plans": (put("plans", value=[]), "F-PLAN", "$.plans"),
    "an unknown node": (put(*SCHEDULE, 0, value=["run", "G"]), "F-PLAN", "$.plans[0].schedule"),
    "a step that is none": (put(*SCHEDULE, 0, value=["walk", "F"]), "F-STEP", "$.plans[0].schedule.steps[0]"),
    "a step that is missing": (without(*SCHEDULE, 5), "F-PLAN", "$.plans[0].schedule"),
    "a plan over its budget": (put("plans", 0, "budget", value=9), "F-PLAN", "$.plans[0].schedule"),
    "a plan over what is left of its budget": (put("plans", 0, "overhead", value=4), "F-PLAN", "$.plans[0].schedule"),
    "a bound above the plan": (put("plans", 0, "lower", value=11), "F-PLAN", "$.plans[0].lower"),
    "a graph that is none": (put("plans", 0, "graph", "computes", value=[]), "G-", "$.plans[0].graph"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENT)
def test_content_that_cannot_be_is_refused_with_its_place(tmp_path, name):
    change, rule, where = CONTENT[name]
    write_plans(file(), tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    change(document)
    (tmp_path / "p.json").write_text(json.dumps(checked(document)))
    with pytest.raises(MalformedFile) as caught:
        read_plans(tmp_path / "p.json")
    assert caught.value.rule.startswith(rule) and caught.value.where == where
    assert caught.value.fix and str(caught.value).count("\n") == 0


def test_one_step_may_not_stand_twice(tmp_path):
    write_plans(file(plan("a"), plan("b", budget=20)), tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    document["plans"][1]["fingerprint"] = "a" * 64
    (tmp_path / "p.json").write_text(json.dumps(checked(document)))
    with pytest.raises(MalformedFile, match="F-PLAN"):
        read_plans(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fingerprint", "zz"), ("fingerprint", "a" * 64 + "\n"), ("fingerprint", 3), ("tensors", ["x"]), ("graph", 3),
        ("schedule", RERUN), ("budget", 12.0), ("audited", 1), ("trail", (3,)), ("trail", "auto"), ("trail", ("\ud800",)),
        ("rehearsal", (1, 2)), ("rehearsal", (1, 2, -3)), ("rehearsal", [1, 2, 3]), ("link", 3),
    ],
)  # fmt: skip
def test_no_plan_is_born_that_no_file_may_hold(field, value):
    with pytest.raises(IllFormed, match=f"G-.*SavedPlan: {field} .*Fix: give"):
        plan(**{field: value})


@pytest.mark.parametrize(
    "changed",
    [
        {"plans": [plan()]}, {"plans": (3,)}, {"costs": 3}, {"costs": {"\ud800": (0, 0, ())}}, {"costs": {1: (0, 0, ())}},
        {"costs": {"mm": (0, 0, [1])}}, {"costs": {"mm": (0, 0)}}, {"costs": {"mm": (0.5, 0, ())}},
    ],
)  # fmt: skip
def test_no_file_of_plans_is_born_that_cannot_be_written(changed):
    with pytest.raises(IllFormed, match=f"G-.*PlanFile: {next(iter(changed))} .*Fix: give"):
        evolve(file(), **changed)


REFUSED = {
    "no plans": ((), "at plans: there is no plan"),
    "one step twice": ((plan("a"), plan("a", budget=20)), "at plans: two plans are of one step"),
    "a plan over its budget": ((plan("b"), plan("a", budget=9)), r"at plans\[1\]\.schedule: .*S-MEM"),
    "a bound above the plan": ((plan("a", lower=11),), r"at plans\[0\]\.lower: a lower bound of 11 ns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_read_is_not_written_and_leaves_the_old_file(tmp_path, name):
    plans, words = REFUSED[name]
    write_plans(file(), tmp_path / "p.json")
    with pytest.raises(BadArgument, match=f"F-PLAN: {words}.* Fix: "):
        write_plans(evolve(file(), plans=plans), tmp_path / "p.json")
    assert read_plans(tmp_path / "p.json") == file() and len(list(tmp_path.iterdir())) == 1


def twice(raw):
    return raw.replace(b'"budget":12', b'"budget":12,"budget":12', 1)


BYTES = {
    "nothing": (lambda raw: b"", "F-JSON"),
    "cut short": (lambda raw: raw[: len(raw) // 2], "F-JSON"),
    "a digit changed": (lambda raw: raw.replace(b'"budget":12', b'"budget":13', 1), "F-CHECKSUM"),
    "a letter of a machine changed": (lambda raw: raw.replace(b"a processor", b"b processor"), "F-CHECKSUM"),
    "a key twice": (twice, "F-KEY"),
    "not UTF-8": (lambda raw: raw.replace("ü".encode(), b"\xfc"), "F-UTF8"),
    "a gzip cut short": (lambda raw: gzip.compress(raw)[:-20], "F-GZIP"),
    "no number": (lambda raw: raw.replace(b'"budget":12', b'"budget":NaN', 1), "F-TYPE"),
    "a list": (lambda raw: b"[]", "F-FORMAT"),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_were_damaged_are_refused(tmp_path, name):
    damage, rule = BYTES[name]
    write_plans(file(), tmp_path / "p.json")
    raw = (tmp_path / "p.json").read_bytes()
    assert damage(raw) != raw
    (tmp_path / "p.json").write_bytes(damage(raw))
    with pytest.raises(MalformedFile) as caught:
        read_plans(tmp_path / "p.json")
    assert caught.value.rule == rule


# -- the command line --------------------------------------------------------------------------------------------------


def call(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def saved(tmp_path):
    write_plans(file(plan("a"), plan("b", budget=20)), tmp_path / "p.json.gz")
    return tmp_path / "p.json.gz"


def test_show_says_what_plans_are_for(saved, capsys):
    code, out, _ = call(capsys, "show", saved)
    assert code == 0
    assert "plans of Tiny: 2, remat 0.1.0, torch 2.13.0" in out and "a processor, 1 thread" in out
    assert "plan 1: bbbbbbbbbbbb, inputs 0 float32[1, 2]" in out and "10 ns, gap 0.00%" in out


def test_show_prints_and_draws_one_of_the_plans(saved, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    code, out, _ = call(
        capsys, "show", saved, "--plan", 1, "--text", "--memory", tmp_path / "m.png", "--dot", tmp_path / "g.dot"
    )
    assert code == 0 and out.startswith("remat schedule 1\nrun F\n")
    assert (tmp_path / "m.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "g.dot").read_text().startswith("digraph {")


def test_validate_replays_each_plan_within_its_budget_or_another(saved, capsys):
    code, out, _ = call(capsys, "validate", saved)
    assert code == 0 and out.count("time       10 ns") == 2 and "recomputed 2 ns in 1 reruns" in out
    code, _, err = call(capsys, "validate", saved, "--budget", 10)
    assert code == 1 and "S-MEM" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("show", "p", "--plan", 2), "C-PLAN"), (("validate", "p", "p"), "which have a schedule each"),
        (("solve", "p", "--budget", 10), "holds plans, not a graph"), (("validate", "g"), "no schedule is given"),
        (("validate", "g", "p"), "holds plans, not a schedule"),
    ],
)  # fmt: skip
def test_wrong_calls_on_plans_give_one_message(saved, tmp_path, capsys, words, says):
    from remat.ir import dump

    dump(tiny_step(), tmp_path / "g.json")
    paths = {"p": saved, "g": tmp_path / "g.json"}
    code, _, err = call(capsys, *(paths.get(word, word) for word in words))
    assert code == 1 and says in err and err.count("\n") == 1
