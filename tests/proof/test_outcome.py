"""`certified` and `claimed`: what outcomes carry, what merging, links and transforms do with proofs, and the command line."""

import pickle
import re

import pytest
from attrs import evolve

from remat.algorithms import (
    IMPOSSIBLE,
    ClassBound,
    Floor,
    MultiInstant,
    Outcome,
    Polish,
    Problem,
    SingleInstant,
    auto,
    best,
    gap,
    store_all_peak,
    sweep,
)
from remat.algorithms._core.evidence import Evidence, Written
from remat.algorithms._core.outcome import Plan
from remat.algorithms._core.solver import Solver
from remat.cli import main
from remat.errors import BadArgument, ProofRefused
from remat.ir import Link, dump, parse_text
from remat.proof import Proof
from tests.proof.conftest import LINK, captured
from tests.proof.vipr import verified

GRAPH = parse_text("""\
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
""")
BOUNDS = Polish((Floor(), SingleInstant(mixed=1)), stop=gap(0))


@pytest.fixture(scope="module")
def unet():
    return captured("unet")


def problem(graph, share, **settings):
    return Problem(graph=graph, budget=int(store_all_peak(graph) * share), **settings)


def test_what_relaxed_formulations_prove_is_certified_without_asking(unet):
    outcome = Polish((SingleInstant(mixed=0),), stop=gap(0)).solve(problem(unet, 0.5))
    assert outcome.word == "certified" and outcome.certified == outcome.lower > unet.time
    assert outcome.proof.leaves == 1 and outcome.proof.check(unet).bound == outcome.lower


def test_integers_are_claimed_until_a_proof_is_asked_for(unet):
    claimed = BOUNDS.solve(problem(unet, 0.35))
    assert claimed.word == "claimed" and unet.time < claimed.certified < claimed.lower
    proved = BOUNDS.solve(problem(unet, 0.35), proof=True)
    assert proved.word == "certified" and proved.certified == proved.lower >= claimed.lower
    assert any(line.startswith("certified at") for line in proved.trail)
    assert proved.proof.budget == problem(unet, 0.35).budget


def test_a_limit_of_leaves_lowers_what_is_proved_and_the_trail_says_so(fno):
    outcome = BOUNDS.solve(problem(fno, 0.35, proof_leaves=2), seed=0)
    assert outcome.lower == IMPOSSIBLE or outcome.certified <= outcome.lower
    outcome = BOUNDS.solve(problem(fno, 0.5, proof_leaves=2))
    assert outcome.word == "claimed" and fno.time < outcome.certified < outcome.lower
    assert any("less than the" in line and "claimed" in line for line in outcome.trail)


@pytest.mark.parametrize("share", [0.25, 0.1])
def test_that_no_schedule_exists_is_certified(unet, share):
    outcome = BOUNDS.solve(problem(unet, share))
    assert (outcome.lower, outcome.certified, outcome.word) == (IMPOSSIBLE, IMPOSSIBLE, "certified")
    assert outcome.proof.bound is None and outcome.proof.check(unet).bound is None


def test_nothing_to_save_is_certified_by_the_nodes_that_must_run(unet):
    outcome = auto.solve(problem(unet, 1.0))
    assert outcome.certified == outcome.lower == outcome.upper == unet.time
    assert outcome.proof.document["instants"] == []


def test_solvers_without_proofs_claim():
    outcome = Outcome(lower=3)
    assert outcome.proof is None and outcome.certified is None and outcome.word == "claimed"


def test_merging_keeps_the_stronger_proof(unet):
    weak = Polish((SingleInstant(mixed=0, heaviest=0, after_loss=0),), stop=gap(0)).solve(problem(unet, 0.35))
    strong = BOUNDS.solve(problem(unet, 0.35), proof=True)
    for merged in (weak.merge(strong), strong.merge(weak)):
        assert merged.certified == strong.certified > weak.certified
    assert best(Polish((SingleInstant(mixed=0),), stop=gap(0))).solve(problem(unet, 0.35)).certified > unet.time


def test_a_solver_without_copies_proves_nothing_of_a_problem_with_a_link(unet):
    outcome = BOUNDS.solve(problem(unet, 0.35, link=Link.symmetric(gb_per_s=12)), proof=True)
    assert outcome.proof is None and outcome.certified is None


def test_a_proof_with_a_link_is_of_this_link_alone(fno, proofs):
    evidence = Written(fno, Proof(proofs["link"]))
    linked = problem(fno, 0.4, link=LINK)
    assert _SaysWithCopies(evidence).solve(linked).certified == evidence.bound > fno.time
    for other in (None, evolve(LINK, to_host=None)):
        assert _SaysWithCopies(evidence).solve(evolve(linked, link=other)).proof is None
    mistaken = Written(fno, Proof(proofs["link"]))
    mistaken.link = evolve(LINK, to_host=None)
    with pytest.raises(ProofRefused, match="over the link"):
        mistaken.proof()


def test_the_command_line_proves_and_checks_with_a_link(tmp_path, capsys):
    dump(GRAPH, tmp_path / "graph.json")
    given = [str(tmp_path / "graph.json"), "--budget", "13", "--link", "0.25GB/s", "-o", str(tmp_path / "proof.json")]
    assert main(["prove", *given]) == 0
    proof = Proof.load(tmp_path / "proof.json")
    assert proof.theorem == "link" and proof.link == Link.symmetric(gb_per_s=0.25)
    assert main(["check", str(tmp_path / "graph.json"), str(tmp_path / "proof.json")]) == 0
    assert f"link       {proof.link}" in capsys.readouterr().out
    with pytest.raises(ProofRefused, match="waits"):
        proof.vipr(GRAPH)


def test_budgets_of_a_sweep_share_proofs_downwards_only(unet):
    peak = store_all_peak(unet)
    curve = sweep(unet, [int(peak * 0.35), int(peak * 0.7)], Polish((SingleInstant(mixed=0),), stop=gap(0)))
    small, large = (point.outcome for point in curve.points)
    assert small.certified >= large.certified
    assert small.proof.budget >= int(peak * 0.35) and large.proof.budget >= int(peak * 0.7)


def test_a_wrong_proof_of_a_solver_is_refused_when_it_is_asked_for(unet):
    right = BOUNDS.solve(problem(unet, 0.35))
    wrong = Proof(right.proof.document | {"bound": right.proof.bound + 1})
    outcome = _Says(Written(unet, wrong)).solve(problem(unet, 0.35))
    with pytest.raises(ProofRefused, match=r"proof.trees\[0\].tree\[0\]"):
        _ = outcome.proof


def test_evidence_of_another_problem_is_not_taken(unet, fno):
    evidence = BOUNDS.solve(problem(unet, 0.35)).evidence
    assert _Says(evidence).solve(problem(unet, 0.5)).proof is None  # a larger budget
    assert _Says(evidence).solve(problem(fno, 0.1)).proof is None  # another graph
    assert _Says(evidence).solve(problem(unet, 0.3)).proof is not None


class _Shows(Solver):
    """Shows the class bound it was made with."""

    def __init__(self, bound):
        self.bound = bound

    def plan(self, problem, clock, seed):
        return Plan(class_bounds=(self.bound,))


class _SaysWithCopies(Solver):
    """Gives the evidence it was made with, of schedules with copies."""

    models_link = True

    def __init__(self, evidence):
        self.evidence = evidence

    def plan(self, problem, clock, seed):
        return Plan(lower=problem.graph.time, evidence=self.evidence)


class _Says(Solver):
    """Gives the evidence it was made with."""

    def __init__(self, evidence):
        self.evidence = evidence

    def plan(self, problem, clock, seed):
        return Plan(lower=problem.graph.time, evidence=self.evidence)


def test_several_instants_are_certified_for_their_class_and_for_every_schedule(unet):
    given = problem(unet, 0.5)
    (claimed,) = MultiInstant(rounds=2).solve(given).class_bounds
    assert claimed.word == "claimed" and claimed.certified == unet.time < claimed.value
    outcome = MultiInstant(rounds=2).solve(given, proof=True)
    (bound,) = outcome.class_bounds
    assert bound.word == "certified" and bound.certified == bound.value >= claimed.value
    assert outcome.proof.theorem == "instants" and unet.time < outcome.certified == outcome.lower <= bound.value
    assert [line.count("captured order") for line in outcome.trail if line.startswith("certified at")] == [1, 0]


def test_where_orders_are_many_the_class_alone_is_certified(fno):
    outcome = MultiInstant(rounds=1).solve(problem(fno, 0.7, proof_leaves=3))
    (bound,) = outcome.class_bounds
    assert bound.proof.theorem == "captured" and bound.proof.check(fno).assumes == bound.assumes
    assert bound.proof.leaves <= 3


def test_the_proof_of_a_class_is_none_of_every_schedule(fno, proofs):
    evidence = Written(fno, Proof(proofs["captured"]))
    outcome = _Says(evidence).solve(problem(fno, 0.5))
    with pytest.raises(ProofRefused, match="only schedules with first runs in the captured order"):
        _ = outcome.certified
    bound = ClassBound(value=evidence.bound, assumes="first runs in the captured order", evidence=evidence)
    assert bound.certified == evidence.bound and bound.word == "certified"
    with pytest.raises(ProofRefused, match="not staged schedules"):
        _ = ClassBound(value=3, assumes="staged schedules", evidence=evidence).proof


def test_merging_keeps_the_proof_of_a_class(fno, proofs):
    evidence = Written(fno, Proof(proofs["captured"]))
    bare = ClassBound(value=evidence.bound, assumes="first runs in the captured order")
    proved = evolve(bare, evidence=evidence)
    for merged in (
        Outcome(class_bounds=(bare,)).merge(Outcome(class_bounds=(proved,))),
        Outcome(class_bounds=(proved, bare)),
    ):
        assert (
            merged.merge(Outcome()).class_bounds == (bare,)
            and merged.merge(Outcome()).class_bounds[0].word == "certified"
        )


def test_evidence_of_a_class_bound_of_another_problem_is_not_taken(unet, fno, proofs):
    evidence = Written(fno, Proof(proofs["captured"]))
    bound = ClassBound(value=evidence.bound, assumes="first runs in the captured order", evidence=evidence)
    assert [
        _Shows(bound).solve(problem(graph, share)).class_bounds[0].word
        for graph, share in ((fno, 0.5), (fno, 0.6), (unet, 0.5))
    ] == [
        "certified",
        "claimed",
        "claimed",
    ]


def test_outcomes_with_evidence_are_pickled(unet):
    outcome = BOUNDS.solve(problem(unet, 0.35))
    again = pickle.loads(pickle.dumps(outcome))
    assert isinstance(again.evidence, Evidence) and again.certified == outcome.certified


def test_proof_is_a_flag(unet):
    with pytest.raises(BadArgument):
        BOUNDS.solve(problem(unet, 0.35), proof=3)
    with pytest.raises(BadArgument):
        problem(unet, 0.35, proof_leaves=-1)


def test_the_command_line_proves_and_checks(tmp_path, capsys, unet, fno):
    graph, other, proof = tmp_path / "unet.json.gz", tmp_path / "fno.json", tmp_path / "proof.json.gz"
    dump(unet, graph)
    dump(fno, other)
    solver = "Polish((Floor(), SingleInstant(mixed=1)), stop=gap(0))"
    assert main(["prove", str(graph), "--budget", "35%", "--solver", solver, "-o", str(proof)]) == 0
    assert "(certified)" in capsys.readouterr().out
    assert main(["check", str(graph), str(proof)]) == 0
    out = capsys.readouterr().out
    assert "no schedule takes less than" in out and "S-KEEP" in out and "instants, 1 leaves" in out
    assert main(["check", str(graph), str(proof), "--budget", "30%"]) == 0
    capsys.readouterr()
    assert main(["check", str(graph), str(proof), "--budget", "40%"]) == 1
    assert "T-BUDGET" in capsys.readouterr().err
    assert main(["check", str(other), str(proof)]) == 1
    assert "T-PROOF: at proof: is of another graph" in capsys.readouterr().err
    assert main(["prove", str(graph), "--budget", "35%", "--solver", "StoreAll()", "-o", str(proof)]) == 3
    assert main(["solve", str(graph), "--budget", "35%", "--solver", solver, "--proof", str(proof)]) in (0, 3)
    assert Proof.load(proof).check(unet).bound > unet.time


def test_the_command_line_writes_proofs_of_classes_and_texts(tmp_path, capsys, unet):
    graph, proof, captured_order, text = (tmp_path / name for name in ("unet.json.gz", "p.json", "c.json", "p.vipr"))
    dump(unet, graph)
    command = ["prove", str(graph), "--budget", "50%", "-o", str(proof), "--solver", "MultiInstant(rounds=1)"]
    assert main([*command, "--class-proof", str(captured_order), "--vipr", str(text)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^class +\d+ ns \(certified\), of this class: first runs in the captured order$", out, re.M)
    assert Proof.load(captured_order).check(unet).bound >= Proof.load(proof).check(unet).bound > unet.time
    assert verified(text.read_text()) == Proof.load(proof).bound - unet.time
    command[-1] = "SingleInstant(mixed=0)"
    assert main([*command, "--class-proof", str(captured_order)]) == 3
    assert "no bound of a class is certified" in capsys.readouterr().err
    command[3] = "10%"
    command[-1] = "Floor()"
    assert main([*command, "--vipr", str(text)]) == 1
    assert "T-VIPR" in capsys.readouterr().err
