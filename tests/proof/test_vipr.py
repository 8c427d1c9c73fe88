"""Texts in VIPR 1.0: what a verifier of that format says of them, of wrong ones, and what has no form there."""

import math
import re

import pytest

from remat.algorithms import store_all_peak
from remat.algorithms._proving.certificate import Claim, base_proof, grow, step_of
from remat.cli.prove import write_vipr
from remat.errors import BadArgument, ProofRefused
from remat.proof import Proof
from tests.proof.exhaustive import graph_of
from tests.proof.vipr import Wrong, verified


@pytest.fixture(scope="module")
def texts(fno, proofs):
    return {base: Proof(proofs[base]).vipr(fno) for base in ("tree", "orders", "captured", "nothing")}


@pytest.mark.parametrize("base", ["tree", "orders", "captured", "nothing"])
def test_a_verifier_of_the_format_finds_the_bound_of_the_proof(fno, proofs, texts, base):
    proof = Proof(proofs[base])
    base_time = step_of(fno).base
    expected = math.inf if proof.bound is None else proof.bound - base_time
    assert [verified(text) for text in texts[base]] == [expected] * len(proof.document["trees"])
    assert expected > 0


def test_every_kind_of_reason_is_used(texts):
    kinds = {kind for text in texts["tree"] for kind in re.findall(r"\{ (\w+)", text)}
    assert kinds == {"asm", "lin", "rnd", "uns"}


def line_with(text, mark):
    """The first line with a mark."""
    return next(line for line in text.splitlines() if mark in line)


def one_case(text):
    """The last line shows one case only."""
    *rest, last = text.splitlines()
    reason = last[last.index("{") :]
    return "\n".join([*rest, last.replace(reason, f"{{ lin 1  {reason.split()[2]} 1 }} -1")]) + "\n"


CHANGES = {
    "a bound raised by one": lambda text: re.sub(r"RTP range (\d+)", lambda m: f"RTP range {int(m[1]) + 1}", text),
    "no schedule, from leaves of cost": lambda text: re.sub(r"RTP range \d+ inf", "RTP infeas", text),
    "a leaf raised by one": lambda text: re.sub(
        r"G (\d+)  OBJ  \{ rnd", lambda m: f"G {int(m[1]) + 1}  OBJ  {{ rnd", text
    ),
    "a multiplier of the other sign": lambda text: re.sub(r"(OBJ  \{ rnd \d+  \d+ )-", r"\1", text, count=1),
    "an assumption that is not discharged": one_case,
    "a split with a gap": lambda text: re.sub(r"G 1  (1  \d+ 1)  \{ asm", r"G 2  \1  { asm", text),
    "a budget that is larger": lambda text: re.sub(r"(mem_0 L )(\d+)", lambda m: f"{m[1]}{2 * int(m[2])}", text),
    "a line left out": lambda text: text.replace(line_with(text, "{ uns") + "\n", "", 1),
    "a text that ends early": lambda text: text[: len(text) // 2],
    "a variable that is no integer": lambda text: re.sub(r"INT (\d+)\n0 1 ", lambda m: f"INT {m[1]}\n1 1 ", text),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_verifier_refuses_a_wrong_text(texts, change):
    (text,) = texts["tree"]
    wrong = change(text)
    assert wrong != text
    with pytest.raises(Wrong):
        verified(wrong)


def test_what_has_no_rows_has_no_text(fno, proofs):
    with pytest.raises(ProofRefused, match="a floor is proved by sets of data") as refusal:
        Proof(proofs["floor"]).vipr(fno)
    assert (refusal.value.rule, refusal.value.where) == ("T-VIPR", "proof.theorem")
    with pytest.raises(ProofRefused, match="no instants") as refusal:
        base_proof(step_of(fno), 10**12).vipr(fno)
    assert refusal.value.rule == "T-VIPR"


def test_a_wrong_proof_is_not_exported(fno, proofs):
    with pytest.raises(ProofRefused) as refusal:
        Proof(proofs["tree"] | {"bound": proofs["tree"]["bound"] + 1}).vipr(fno)
    assert refusal.value.rule == "T-PROOF"


@pytest.mark.parametrize("seed", range(12))
def test_texts_of_random_legal_graphs_prove_what_their_proofs_do(seed):
    graph = graph_of(seed)
    step, checked = step_of(graph), 0
    peak = store_all_peak(graph)
    instants = [v for v in sorted(step.required) if step.phase[v]][:2]
    for budget in {peak - 1, peak * 2 // 3, peak // 2} - {-1}:
        proof = grow(step, Claim(budget, instants, math.inf), leaves=20).proof
        extra = math.inf if proof.bound is None else proof.bound - step.base
        assert {verified(text) for text in proof.vipr(graph)} == {extra}
        checked += 1
    assert checked


def test_a_text_does_not_take_the_place_of_another_file_of_the_command(texts, proofs, fno, tmp_path):
    proof, graph, wanted = Proof(proofs["orders"]), tmp_path / "fno.json", tmp_path / "text.vipr"
    second = tmp_path / "text-2.vipr"
    assert len(texts["orders"]) > 1
    for others, reads in (((second, None), graph), ((None, None), second)):
        with pytest.raises(BadArgument, match="C-OUTPUT"):
            write_vipr(proof, fno, wanted, others=others, reads=reads)
        assert not list(tmp_path.iterdir())
    write_vipr(proof, fno, wanted, others=(tmp_path / "proof.json", None), reads=graph)
    assert [wanted.read_text(), second.read_text()] == list(texts["orders"][:2])
