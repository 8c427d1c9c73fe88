"""`certified` and `claimed`: what outcomes carry, what merging, links and transforms do with proofs, and the command line."""

import pickle

import pytest

from remat.algorithms import (
    IMPOSSIBLE,
    Floor,
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
from remat.ir import Link, dump
from remat.proof import Proof
from tests.proof.conftest import captured

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


def test_a_problem_with_a_link_has_no_proof(unet):
    outcome = BOUNDS.solve(problem(unet, 0.35, link=Link.symmetric(gb_per_s=12)), proof=True)
    assert outcome.proof is None and outcome.certified is None


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


class _Says(Solver):
    """Gives the evidence it was made with."""

    def __init__(self, evidence):
        self.evidence = evidence

    def plan(self, problem, clock, seed):
        return Plan(lower=problem.graph.time, evidence=self.evidence)


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
