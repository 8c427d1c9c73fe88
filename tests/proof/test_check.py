"""The checker that stands alone: what it accepts, what it refuses and where, and that it shares nothing with the library."""

import ast
import copy
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from remat.errors import MalformedFile, ProofRefused
from remat.ir import Schedule, dump, validate
from remat.ir.interchange import graph_to_json
from remat.proof import Proof
from remat.proof import check as checker
from tests.proof import planted
from tests.proof.exhaustive import judged
from tests.proof.planted import PLANTED

FILE = Path(checker.__file__)


def is_a_sentence(error):
    """Whether what is wrong ends in one full stop, and its parentheses are closed."""
    what = str(error).partition(" Fix: ")[0]
    return what.endswith(".") and not what.endswith("..") and what.count("(") == what.count(")")


@pytest.mark.parametrize("base", ["tree", "orders", "captured", "nothing", "floor", "link"])
def test_right_proofs_are_accepted(fno, proofs, base):
    proof = Proof(proofs[base])
    verdict = proof.check(fno)
    assert (verdict.budget, verdict.bound) == (proof.budget, proof.bound)
    assert bool(verdict.assumes) == (base == "captured")
    assert (verdict.link is None) == (base != "link")
    if verdict.bound is not None:
        assert verdict.bound > fno.time  # it says something


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.what)
def test_a_wrong_proof_is_refused_with_the_place(fno, proofs, plant, monkeypatch):
    step = checker.Step(graph_to_json(fno))
    monkeypatch.setattr(planted, "KEPT_DATUM", step.stays.index(True))
    monkeypatch.setattr(planted, "READ_DATUM", max(step.reads[110]))
    document = copy.deepcopy(proofs[plant.base])
    plant.change(document)
    assert document != proofs[plant.base]
    with pytest.raises(ProofRefused) as refusal:
        Proof(document).check(fno)
    assert refusal.value.rule in ("T-PROOF", "T-GRAPH", "T-JSON")
    assert is_a_sentence(refusal.value)
    assert re.fullmatch(plant.where, refusal.value.where), refusal.value


def test_there_are_enough_kinds():
    assert len({plant.what for plant in PLANTED}) == len(PLANTED) >= 25


@pytest.mark.parametrize("part", ["time", "size", "run_once", "draws", "keep"])
def test_the_proof_of_another_graph_is_refused(fno, proofs, part):
    document = graph_to_json(fno)
    if part == "time":
        document["computes"][5]["options"][0][0] += 1
    elif part == "size":
        document["data"][5]["size"] += 1
    elif part == "keep":
        next(one for one in document["data"] if one["kind"] == "activation")["keep"] = True
    else:
        document["computes"][5][part] = True
    for proof in proofs.values():
        with pytest.raises(checker.Refused, match="another graph"):
            checker.check(document, proof)


GRAPHS = {
    "layers": lambda g: g.update(layers=[{}]),
    "another form": lambda g: g.update(format="remat-graph/9"),
    "an unknown key": lambda g: g.update(links=[]),
    "an unknown key of a node": lambda g: g["computes"][3].update(free=True),
    "an unknown key of a datum": lambda g: g["data"][3].update(free=True),
    "two options": lambda g: g["computes"][3]["options"].append([1, 1]),
    "a boolean size": lambda g: g["data"][3].update(size=True),
    "a negative time": lambda g: g["computes"][3].update(options=[[-1, 0]]),
    "a size of 64 bits": lambda g: g["data"][3].update(size=1 << 63),
    "a float": lambda g: g["computes"][3].update(options=[[1.0, 0]]),
    "a flag of text": lambda g: g["computes"][3].update(draws="no"),
    "two losses": lambda g: g["computes"][3].update(phase="loss"),
    "phases out of order": lambda g: g["computes"].reverse(),
    "an unknown phase": lambda g: g["computes"][3].update(phase="middle"),
    "an unknown kind": lambda g: g["data"][3].update(kind="scratch"),
    "a gradient of a parameter that is not kept": lambda g: next(
        d for d in g["data"] if d["kind"] == "param_grad"
    ).update(keep=False),
    "an input with writers": lambda g: g["data"][3].update(kind="input", keep=False),
    "one name twice": lambda g: g["computes"][3].update(name=g["data"][0]["name"]),
    "a read of nothing": lambda g: g["computes"][3].update(reads=["nothing"]),
    "writers that disagree": lambda g: next(d for d in g["data"] if d.get("writers")).update(
        writers=[g["computes"][-1]["name"]]
    ),
    "a read of what comes later": lambda g: g["computes"][0].update(reads=[g["computes"][-1]["writes"][0]]),
}


@pytest.mark.parametrize("change", GRAPHS.values(), ids=GRAPHS)
def test_a_graph_that_breaks_a_rule_is_refused(fno, proofs, change):
    document = graph_to_json(fno)
    change(document)
    with pytest.raises(checker.Refused) as refusal:
        checker.check(document, proofs["tree"])
    assert refusal.value.rule == "T-GRAPH" and refusal.value.where.startswith("graph"), refusal.value


TEXTS = {
    "truncated": lambda text: text[:-20],
    "a key twice": lambda text: text.replace(b'"bits":', b'"bits":60,"bits":'),
    "a float": lambda text: text.replace(b'"budget":', b'"budget":0.5e'),
    "not a number": lambda text: text.replace(b'"bound":', b'"bound":NaN,"b":'),
    "not UTF-8": lambda text: text.replace(b"instants", b"\xff\xfe"),
    "an endless number": lambda text: text.replace(b'"bits":', b'"bits":' + b"9" * 5000),
    "nested too deep": lambda text: b"[" * 100_000,
    "half a gzip file": lambda text: gzip.compress(text)[:-30],
}


@pytest.mark.parametrize("change", TEXTS.values(), ids=TEXTS)
def test_a_file_that_is_no_proof_is_refused(tmp_path, fno, proofs, change):
    path = tmp_path / "proof.json"
    path.write_bytes(change(Proof(proofs["tree"]).text.encode()))
    with pytest.raises(ProofRefused) as refusal:
        Proof.load(path).check(fno)
    assert refusal.value.where and refusal.value.fix and is_a_sentence(refusal.value)


@pytest.mark.parametrize("text", ["3", "null", "[]", '"x"'])
def test_json_that_is_no_object_is_told_the_form_of_a_proof(tmp_path, fno, text):
    (tmp_path / "proof.json").write_text(text)
    with pytest.raises(
        ProofRefused, match=r"T-PROOF: at proof: format is None, and that of a proof is 'remat-proof/1'\."
    ):
        Proof.load(tmp_path / "proof.json").check(fno)


def test_what_a_proof_lacks_is_named(fno, proofs):
    document = proofs["tree"]
    for lacking, words in {
        ("theorem", "budget"): "at proof: has no budget, theorem",
        ("trees",): "at proof: has no trees",
    }.items():
        with pytest.raises(ProofRefused, match=words):
            Proof({key: value for key, value in document.items() if key not in lacking}).check(fno)
    for theorem in ("fermat", ["floor"]):
        with pytest.raises(ProofRefused, match=r"at proof: theorem is .*, and there are floor,"):
            Proof({**document, "theorem": theorem}).check(fno)


@pytest.mark.parametrize("base", ["floor", "nothing"])
def test_what_is_impossible_is_so_within_a_smaller_budget(fno, proofs, base):
    document = proofs[base] | {"budget": proofs[base]["budget"] - 10**6}
    assert Proof(document).check(fno).budget == document["budget"]


def test_files_round_trip(tmp_path, fno, proofs):
    proof = Proof(proofs["orders"])
    for name in ("proof.json", "proof.json.gz"):
        proof.dump(tmp_path / name)
        assert Proof.load(tmp_path / name) == proof
    assert (tmp_path / "proof.json.gz").stat().st_size < (tmp_path / "proof.json").stat().st_size / 3


def test_the_file_runs_alone(tmp_path, fno, proofs):
    dump(fno, tmp_path / "graph.json")
    Proof(proofs["floor"]).dump(tmp_path / "proof.json")
    alone = tmp_path / "check.py"
    alone.write_text(FILE.read_text())
    command = [sys.executable, "-I", str(alone), "graph.json", "proof.json"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 0 and "bound=None" in said.stdout, said
    wrong = proofs["floor"] | {"budget": proofs["floor"]["budget"] + 1}
    (tmp_path / "proof.json").write_text(json.dumps(wrong))
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 1 and "T-PROOF" in said.stderr, said


def test_the_file_is_short_and_imports_the_standard_library_alone():
    text = FILE.read_text()
    module = ast.parse(text)
    imported = {
        name.split(".")[0]
        for one in ast.walk(module)
        if isinstance(one, ast.Import | ast.ImportFrom)
        for name in ([one.module] if isinstance(one, ast.ImportFrom) else [alias.name for alias in one.names])
    }
    assert imported <= set(sys.stdlib_module_names)
    said = [one.body[0] for one in ast.walk(module) if hasattr(one, "body") and isinstance(one.body, list) and one.body]
    prose = {
        line
        for one in said
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)
        for line in range(one.lineno, one.end_lineno + 1)
    }
    code = [
        line
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in prose
    ]
    assert len(code) <= 250


def test_the_checker_reads_a_graph_as_the_library_does(fno):
    step = checker.Step(graph_to_json(fno))
    assert step.required == fno.required
    assert [tuple(sorted(one)) for one in step.before] == list(fno.before_first_run)
    assert step.base == validate(fno, Schedule.from_runs(fno, sorted(fno.required))).time


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_proofs_of_random_legal_graphs_never_exceed_the_optimum(first):
    verdicts = [judged(seed) for seed in range(first, first + 20)]
    assert [fault for verdict in verdicts for fault in verdict.faults] == []
    assert sum(verdict.proofs for verdict in verdicts) > 100
    assert sum(verdict.raised for verdict in verdicts) > 10 < sum(verdict.tight for verdict in verdicts)


def test_a_graph_of_no_text_is_refused_when_it_is_read(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text("{")
    with pytest.raises(MalformedFile):
        from remat.ir import load

        load(path)
