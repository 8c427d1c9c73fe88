"""The library of instances: records are raised by what is checked, never lowered, and each has its evidence."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from attrs import evolve

from remat.algorithms import Problem, auto
from remat.cli import main
from remat.errors import BadArgument, BudgetExceeded, InvalidSchedule, MalformedFile, ProofRefused, UnsoundBound
from remat.ir import Offload, Run, Schedule, dump, dumps, load, parse_text
from remat.proof.document import Proof
from remat.records.entry import BoundRecord, author, entry_from_json, entry_to_json
from remat.records.judging import claim, enter, faults, judge
from remat.records.library import Library
from remat.records.table import lines
from tests.site import records as page

ROOT = Path(__file__).parents[2]
REPOSITORY = Library(page.FOLDER)
DATE = "2026-11-22"
CHAIN = """\
remat graph 1
graph chain
data a0 3
data a1 4
data a2 5
data t 1 tangent
data g2 2 gradient
data g1 2 gradient
data w 1 param_grad
forward F0 : -> a0 ; time 3
forward F1 : a0 -> a1 ; time 5
forward F2 : a1 -> a2 ; time 7
loss L : a2 -> t ; time 1
backward B2 : t a1 a2 -> g2 ; time 4
backward B1 : g2 a0 a1 -> g1 ; time 4
backward B0 : g1 a0 -> w ; time 2
"""
"""At 13 bytes, 86 % of its peak, F0 must run twice."""
SHARE = 86


@pytest.fixture(scope="module")
def chain():
    return parse_text(CHAIN)


@pytest.fixture(scope="module")
def best(chain):
    """An optimal outcome at 13 bytes."""
    return auto.solve(Problem(graph=chain, budget=13), proof=True)


@pytest.fixture
def library(tmp_path, chain):
    """One graph, at 100, 86 and 50 % of its peak of 15 bytes."""
    library = Library(tmp_path)
    entry = library.add("chain", chain, "written by hand")
    assert entry.peak == 15
    first = entry.instances[0]
    shares = (100, SHARE, 50)
    instances = [evolve(first, share=share, budget=15 * share // 100 + (share == SHARE)) for share in shares]
    library.write(evolve(entry, instances=tuple(instances)))
    return library


def everything(chain):
    """The slowest schedule within 13 bytes that is made here: the second of two reruns is idle."""
    return Schedule.from_runs(chain, ["F0", "F1", "F2", "L", "B2", "F0", "F0", "B1", "B0"])


# -- raising -----------------------------------------------------------------------------------------------------------


def test_a_record_is_raised_by_what_is_better_alone(library, chain, best):
    slow = judge(library, "chain", SHARE, everything(chain))
    assert [judgement.record for judgement in slow.judgements] == [True]
    enter(library, slow, "first", DATE)
    fast = judge(library, "chain", SHARE, best.schedule)
    assert fast.judgements[0].previous == slow.cost.time == chain.time + 6
    enter(library, fast, "second", DATE)
    plan = library.entry("chain").instance(SHARE).plan
    assert (plan.time, plan.by) == (chain.time + 3, "second")
    again = judge(library, "chain", SHARE, everything(chain))
    assert again.records == () and enter(library, again, "third", DATE) == library.entry("chain")
    assert (
        library.entry("chain").instance(SHARE).plan == plan
        and library.schedule(library.entry("chain").instance(SHARE)) == best.schedule
    )


def test_a_submission_counts_at_every_budget_that_it_holds_for(library, chain, best):
    plan = judge(library, "chain", None, best.schedule)
    assert [judgement.instance.share for judgement in plan.records] == [100, SHARE]
    proof = judge(library, "chain", None, best.proof)
    assert [judgement.instance.share for judgement in proof.records] == [SHARE, 50]
    enter(library, plan, "a", DATE)
    entry = enter(library, judge(library, "chain", None, best.proof), "b", DATE)
    assert [instance.status for instance in entry.instances] == ["feasible", "optimal", "open"]
    assert entry.instance(SHARE).gap == 0 and entry.instance(50).gap is None
    assert list(faults(library, "chain")) == [f"chain/{SHARE}: 86 % of the peak is 12 B, not 13 B"]


def test_a_proof_that_no_schedule_exists_is_the_largest_bound(library, chain):
    outcome = auto.solve(Problem(graph=chain, budget=7), proof=True)
    judgement = judge(library, "chain", 50, outcome.proof).judgements[0]
    assert judgement.record and judgement.value == float("inf")
    entry = enter(library, judge(library, "chain", 50, outcome.proof), "a", DATE)
    assert entry.instance(50).status == "impossible" and library.entry("chain") == entry
    assert judge(library, "chain", 50, outcome.proof).records == ()


# -- refusing ----------------------------------------------------------------------------------------------------------


def broken(chain, best):
    """Submissions that are not valid, with the error that says so."""
    steps = best.schedule.steps
    weak = json.loads(best.proof.text)
    return {
        "nothing": (Schedule(()), InvalidSchedule),
        "a step missing": (Schedule(steps[1:]), InvalidSchedule),
        "another graph": (Schedule((Run("G0"),)), InvalidSchedule),
        "a copy": (Schedule((steps[0], Offload("a0"))), InvalidSchedule),
        "over the budget": (Schedule.from_runs(chain, range(len(chain))), BudgetExceeded),
        "a larger bound": (Proof(weak | {"bound": weak["bound"] + 1}), ProofRefused),
        "a proof of another graph": (Proof(weak | {"graph": "0" * 64}), ProofRefused),
        "a smaller budget": (Proof(weak | {"budget": 12}), ProofRefused),
        "no proof": (Proof({"format": "remat-proof/1"}), ProofRefused),
    }


INVALID = (
    "nothing", "a step missing", "another graph", "a copy", "over the budget", "a larger bound", "a proof of another graph",
    "a smaller budget", "no proof",
)  # fmt: skip


@pytest.mark.parametrize("kind", INVALID)
def test_what_is_not_valid_is_refused_and_changes_nothing(library, chain, best, kind):
    before = {path: path.read_bytes() for path in library.folder.rglob("*") if path.is_file()}
    cases = broken(chain, best)
    assert tuple(cases) == INVALID
    evidence, error = cases[kind]
    with pytest.raises(error):
        judge(library, "chain", SHARE, evidence)
    assert {path: path.read_bytes() for path in library.folder.rglob("*") if path.is_file()} == before


def test_a_proof_for_a_class_of_schedules_is_refused(library, best, monkeypatch):
    verdict = best.proof.check(library.graph(library.entry("chain")))._replace(assumes="the captured order")
    monkeypatch.setattr(Proof, "check", lambda self, graph: verdict)
    with pytest.raises(ProofRefused, match="R-CLASS"):
        judge(library, "chain", SHARE, best.proof)


def test_a_schedule_and_a_proof_that_contradict_each_other_are_a_bug(library, chain, best, monkeypatch):
    verdict = best.proof.check(chain)
    monkeypatch.setattr(Proof, "check", lambda self, graph: verdict._replace(bound=chain.time + 4))
    wrong = judge(library, "chain", SHARE, best.proof)
    enter(library, wrong, "a", DATE)
    with pytest.raises(UnsoundBound, match="A-BOUND"):
        judge(library, "chain", SHARE, best.schedule)
    library.add("twin", chain, "the same")
    entry = library.entry("twin")
    library.write(evolve(entry, instances=tuple(evolve(i, budget=13) for i in entry.instances)))
    enter(library, judge(library, "twin", 70, best.schedule), "a", DATE)
    with pytest.raises(UnsoundBound, match="A-BOUND"):
        judge(library, "twin", 70, best.proof)


def test_evidence_that_is_too_large_is_refused_and_the_record_stays(library, chain, best, monkeypatch):
    enter(library, judge(library, "chain", SHARE, everything(chain)), "a", DATE)
    monkeypatch.setattr("remat.records.library.MOST_EVIDENCE", 10)
    with pytest.raises(BadArgument, match="R-SIZE"):
        enter(library, judge(library, "chain", SHARE, best.schedule), "b", DATE)
    instance = library.entry("chain").instance(SHARE)
    assert instance.plan.by == "a" and library.schedule(instance) == everything(chain)
    assert not [path for path in (library.folder / "chain").iterdir() if path.name.startswith(".")]


# -- claims ------------------------------------------------------------------------------------------------------------


def test_a_claim_stands_until_a_proof_reaches_it_or_a_schedule_refutes_it(library, chain, best):
    claim(library, "chain", SHARE, BoundRecord(bound=chain.time + 1, by="a", date=DATE))
    claim(library, "chain", SHARE, BoundRecord(bound=chain.time, by="b", date=DATE))
    assert library.entry("chain").instance(SHARE).claim.by == "a"
    assert library.entry("chain").instance(SHARE).status == "open", "a claim is no evidence"
    enter(library, judge(library, "chain", SHARE, best.proof), "c", DATE)
    assert library.entry("chain").instance(SHARE).claim is None
    claim(library, "chain", 100, BoundRecord(bound=chain.time + 9, by="a", date=DATE))
    enter(library, judge(library, "chain", 100, best.schedule), "d", DATE)
    assert library.entry("chain").instance(100).claim is None
    with pytest.raises(BadArgument, match="R-CLAIM"):
        claim(library, "chain", 100, BoundRecord(bound=None, by="a", date=DATE))


# -- files -------------------------------------------------------------------------------------------------------------


def test_an_entry_comes_back_and_keeps_to_the_schema(library, chain, best):
    schema = json.loads((ROOT / "docs" / "reference" / "instances.schema.json").read_text())
    enter(library, judge(library, "chain", None, best.schedule), "Ana Lü, Ostrava", DATE)
    claim(library, "chain", 50, BoundRecord(bound=None, by="a", date=DATE))
    document = entry_to_json(library.entry("chain"))
    assert entry_from_json(document) == library.entry("chain")
    jsonschema.validate(document, schema)
    for change in ({"format": "remat-instances/2"}, {"name": "../up"}, {"digest": "0"}, {"more": 1}, {"nodes": -1}):
        with pytest.raises(MalformedFile):
            entry_from_json(document | change)
        assert not jsonschema.Draft202012Validator(schema).is_valid(document | change), change


@pytest.mark.parametrize("name", ["", " a", "a\n", "a\x1b[31m", "a" * 81, "\u202eb"])
def test_a_finder_has_a_name_that_can_be_printed(name):
    with pytest.raises(BadArgument, match="R-AUTHOR"):
        author(name)


def test_evidence_that_was_changed_is_a_fault(library, chain, best):
    enter(library, judge(library, "chain", SHARE, best.schedule), "a", DATE)
    enter(library, judge(library, "chain", SHARE, best.proof), "a", DATE)
    instance = library.entry("chain").instance(SHARE)
    known = len(list(faults(library, "chain")))
    dump(everything(chain), library.evidence_path(instance, "schedule"))
    library.evidence_path(instance, "proof").unlink()
    changed = list(faults(library, "chain"))
    assert len(changed) == known + 1 and "R-EVIDENCE" in changed[-1], "the first that is wrong at an instance"
    dump(best.schedule, library.evidence_path(instance, "schedule"))
    assert "No such file" in list(faults(library, "chain"))[-1]
    (library.folder / "chain" / "graph.json.gz").write_bytes(
        (page.FOLDER / "torch-gradient-penalty" / "graph.json.gz").read_bytes()
    )
    assert len(list(faults(library, "chain"))) == 1 and "fingerprint" in next(faults(library, "chain"))


@pytest.mark.parametrize("text", ["{}", "", "[", '{"format": "remat-instances/1", "name": "../up"}'])
def test_a_damaged_entry_is_named_and_one_fault_of_the_library(library, chain, capsys, text):
    library.add("whole", chain, "written by hand")
    path = library.folder / "chain" / "instances.json"
    path.write_text(text)
    assert main(["records", "list", "--library", str(library.folder)]) == 1
    assert f"at {path}, " in capsys.readouterr().err
    assert main(["records", "verify", "--library", str(library.folder)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert (
        said[0].startswith("chain: F-") and f"at {path}, " in said[0] and said[-1].startswith("2 graphs, 0 schedules")
    )
    assert said[-1].endswith(" 1 faults")
    assert main(["records", "verify", "nope", "--library", str(library.folder)]) == 1
    assert "R-INSTANCE" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["graph.json.gz", f"{SHARE}.schedule.json.gz"])
def test_what_cannot_be_read_says_which_file_it_is(library, chain, best, file):
    enter(library, judge(library, "chain", SHARE, best.schedule), "ann", DATE)
    (library.folder / "chain" / file).write_text("{}")
    assert any(f"at {library.folder / 'chain' / file}, " in fault for fault in faults(library, "chain"))


@pytest.mark.parametrize("name", ["", "Up", "../up", ".hidden", "a/b"])
def test_a_graph_has_the_name_of_a_folder(library, chain, name):
    with pytest.raises(BadArgument, match="R-INSTANCE"):
        library.add(name, chain, "")
    with pytest.raises(BadArgument, match="R-INSTANCE"):
        library.add("chain", chain, "a name that is taken")


# -- the command -------------------------------------------------------------------------------------------------------


def call(capsys, *words):
    code = main(["records", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_says_what_a_submission_is_worth_and_enters_it(library, chain, best, capsys, tmp_path):
    plan, proof = tmp_path / "s.remat", tmp_path / "p.json.gz"
    dump(best.schedule, plan)
    best.proof.dump(proof)
    where = ("--library", library.folder)
    code, out, _ = call(capsys, "check", f"chain/{SHARE}", plan, *where)
    assert code == 0 and f"chain/{SHARE}" in out and "RECORD" in out and "before none" in out and "entered" not in out
    assert library.entry("chain").instance(SHARE).plan is None
    assert call(capsys, "check", "chain", plan, "--by", "me", *where)[0] == 0
    code, out, _ = call(capsys, "check", "chain", plan, "--json", *where)
    document = json.loads(out)
    assert code == 3 and document["instances"][1]["previous"] == document["instances"][1]["value"] == chain.time + 3
    assert call(capsys, "check", f"chain/{SHARE}%", proof, "--by", "me", *where)[0] == 0
    code, out, _ = call(capsys, "list", *where)
    assert code == 0 and re.search(rf"chain/{SHARE} +13 +1\.1154 +1\.1154 +0\.000% +- +optimal +me, ", out)
    documents = json.loads(call(capsys, "list", "--json", *where)[1])
    assert documents[0]["instances"][1]["status"] == "optimal"
    library.write(evolve(library.entry("chain"), instances=library.entry("chain").instances[1:2]))
    code, out, _ = call(capsys, "verify", *where)
    assert code == 1 and out.splitlines()[-1] == "1 graphs, 1 schedules, 1 proofs, 1 faults"


BAD = {
    "no such graph": (["check", "nothing", "s.json"], "R-INSTANCE"),
    "no such graph, and no file": (["check", "nothing", "gone.json"], "R-INSTANCE"),
    "no such share": (["check", "chain/33", "s.json"], "R-INSTANCE"),
    "no share": (["check", "chain/x", "s.json"], "R-INSTANCE"),
    "a graph": (["check", "chain", "g.json"], "C-KIND"),
    "no file": (["check", "chain", "gone.json"], "gone.json"),
    "not JSON": (["check", "chain", "text.json"], "F-"),
    "another form": (["check", "chain", "form.json"], "F-FORMAT"),
    "an endless number": (["check", "chain", "number.json"], "F-"),
    "a wrong proof": (["check", "chain", "proof.json"], "T-PROOF"),
    "a wrong schedule": (["check", "chain", "empty.json"], "S-PHASE"),
    "a bad name": (["check", "chain", "s.json", "--by", "a\x1b[2J"], "R-AUTHOR"),
    "no library": (["list", "--library", "empty"], "R-LIBRARY"),
    "a listed name": (["list", "nothing"], "R-INSTANCE"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_submission_is_one_clear_error(library, chain, best, capsys, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    dump(best.schedule, "s.json")
    dump(chain, "g.json")
    dump(Schedule(()), "empty.json")
    Path("text.json").write_text("not JSON")
    Path("form.json").write_text('{"format": "x"}')
    Path("number.json").write_text(f'{{"format": {"9" * 5000}}}')
    Path("proof.json").write_text('{"format": "remat-proof/1", "theorem": "floor"}')
    words, rule = BAD[kind]
    code, out, err = call(capsys, *words, *([] if "--library" in words else ["--library", library.folder]))
    assert code == 1 and out == "" and err.startswith("error: ") and err.count("\n") == 1 and rule in err, err


# -- the library of the repository -------------------------------------------------------------------------------------


def test_the_page_is_made_from_the_library():
    assert page.PAGE.read_text() == page.page(REPOSITORY), "python -m tests.site.records"


def test_every_entry_of_the_repository_keeps_to_the_schema_and_has_its_evidence():
    validator = jsonschema.Draft202012Validator(
        json.loads((ROOT / "docs" / "reference" / "instances.schema.json").read_text())
    )
    evidence = {"graph.json.gz", "instances.json"}
    for name in REPOSITORY.names:
        entry = REPOSITORY.entry(name)
        validator.validate(entry_to_json(entry))
        expected = {f"{i.share}.schedule.json.gz" for i in entry.instances if i.plan is not None}
        expected |= {f"{i.share}.proof.json.gz" for i in entry.instances if i.bound is not None}
        assert {path.name for path in (REPOSITORY.folder / name).iterdir()} == evidence | expected, name
    assert len(REPOSITORY.names) >= 40
    assert len(lines([REPOSITORY.entry(name) for name in REPOSITORY.names])) == 4 * len(REPOSITORY.names) + 1


def test_the_library_is_small():
    assert sum(path.stat().st_size for path in REPOSITORY.folder.rglob("*")) < 4 * 2**20


@pytest.mark.parametrize("name", sorted(REPOSITORY.names, key=lambda name: REPOSITORY.entry(name).nodes)[:12])
def test_records_hold(name):
    """The twelve smallest graphs; `remat records verify` checks all, as `make records` does."""
    assert list(faults(REPOSITORY, name)) == []


def test_the_library_is_readable_without_this_library():
    name = REPOSITORY.names[0]
    graph = load(REPOSITORY.folder / name / "graph.json.gz")
    assert json.loads(dumps(graph))["format"] == "remat-graph/1"
