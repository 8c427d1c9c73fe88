"""`python -m tests.site.solvers`: writes docs/reference/solvers.md, what each registered solver accepts, proves, needs and costs.

Nothing in the table is an author's claim: each solver of the registry is asked whether it refuses three small steps, solves them,
and solves a captured U-Net, each in a process of its own, which also says which packages were loaded.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from remat.algorithms import IMPOSSIBLE, Clock, Linearise, Outcome, Problem, Solver
from remat.algorithms._plugins.expression import parse
from remat.algorithms._plugins.registry import registered
from remat.ir import Graph, GraphBuilder, Kind, LayerOption, Link, Offload, Schedule, load, read_joint_graph, validate

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "solvers.md"
UNET = ROOT / "tests" / "data" / "whole" / "unet2.json.gz"
SECONDS = 5
"""Most time of the solve that is measured."""
SHARE = 0.7
"""Budget of every solve, of the peak of keeping everything."""
ARGUMENTS = {
    "Corrected": "Corrected(Condense(Segments(2)), HIlp())",
    "From": "From(Dtr())",
    "Polish": "Polish((MultiStart(), Delete()))",
    "WithCopies": "WithCopies(quick)",
}
"""Solvers that are nothing without others."""
PACKAGES = ("numba", "cvxpy", "highspy", "scipy", "pyscipopt")

HEAD = """# What each solver accepts, proves, needs and costs

Made by `python -m tests.site.solvers` from the registry: each solver is asked whether it refuses three small steps, solves
those it accepts at {share:.0%} of their peak, and solves a captured U-Net ({nodes} nodes; chain solvers through
`Linearise() >> …`). Settings are the defaults.

* **accepts**: *chain* (a chain of stages, as `Linearise()` makes one of any step), *flat* (any step with one option per
  node), *layers* (a condensed step with options; `Revolve` wants equal stages, which `UnitCost() >> Revolve()` makes), *link*
  (it plans copies to the host where the problem has a link).
* **proves**: *bound* (for every schedule, above the time of every node once), *optimum* (the bound met the plan on one of the
  steps), *impossible* (it told that no schedule fits one byte), *class* (a bound of its class of schedules). With a `*`:
  certified, by a proof that [one file checks](proofs.md), where `proof=True` asks for it. A dash is of these steps: it is no
  theorem.
* **needs**: packages that were loaded, besides attrs and numpy; *a start*: another solver's plan, as `warm(X, seed=…)` or an
  earlier pass of `Polish` gives it.
* **seconds**: CPU time of the solve of the U-Net, kernels compiled, at most {seconds} s of planning; `—`: refused, or no plan
  in that time. One machine, once, while others computed: an order of magnitude.

What each does, and from which paper: [algorithms](algorithms.md); settings: [the API](api/solvers.md). Solvers of other
packages are in the registry too; `remat solve GRAPH --budget B --solver NAME --explain` says why one refuses a graph.

| solver | accepts | proves | needs | seconds |
|---|---|---|---|---|
"""


def expression_of(name: str) -> str:
    """The expression that is tried for a registered name."""
    return ARGUMENTS.get(name, name if not isinstance(parse(name), type) else f"{name}()")


def names() -> list[str]:
    """What the library itself registers as solvers, in the order of the alphabet."""
    return sorted(registered("solvers"), key=str.lower)


def small(skips: bool, layers: bool = False) -> Graph:
    """Five forward nodes and their backward: a chain, with values that skip a node, or with two options a layer."""
    b = GraphBuilder("small")
    b.data("x", 0, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(5):
        b.data(f"a{i}", 4 + 2 * (i % 2))
        b.data(f"g{i}", 4, Kind.GRADIENT if i else Kind.INPUT_GRAD)
        skip = [f"a{i - 2}"] if skips and i > 1 else []
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x", *skip], writes=[f"a{i}"], time=2 + i, scope=f"net.{i}")
    b.loss("L", reads=["a4"], writes=["t"], time=1)
    for i in reversed(range(5)):
        reads = [f"a{i - 1}" if i else "x", f"a{i}", "t" if i == 4 else f"g{i + 1}"]
        b.backward(f"B{i}", reads=reads, writes=[f"g{i}"], time=4 + i, twin=f"F{i}", scope=f"net.{i}")
        if layers:
            options = [
                LayerOption(forward=2 + i, backward=4 + i, phantom=3),
                LayerOption(forward=3 + i, backward=5 + i, phantom=0),
            ]
            b.layer(f"F{i}", f"B{i}", options, phantom=f"P{i}")
    return b.build()


def peak_of(graph: Graph) -> int:
    """The peak of the captured order [bytes]."""
    return validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak


def linear(graph: Graph) -> Graph:
    """The same step as a chain of stages, as chain solvers read it."""
    return Linearise().apply(Problem(graph=graph, budget=peak_of(graph)), clock=Clock(None), seed=0).problem.graph


STEPS = {"chain": linear(small(skips=False)), "flat": small(skips=True), "layers": small(skips=True, layers=True)}


def accepted(solver: Solver) -> list[str]:
    """The kinds of steps that it does not refuse."""
    return [kind for kind, graph in STEPS.items() if solver.refuses(graph) is None]


def copies(solver: Solver, graph: Graph) -> bool:
    """Whether it plans copies of a step over a link."""
    problem = Problem(graph=graph, budget=int(peak_of(graph) * SHARE), link=Link.symmetric(gb_per_s=4))
    plan = solver.solve(problem, clock=Clock(SECONDS)).schedule
    return plan is not None and any(isinstance(step, Offload) for step in plan.steps)


def tried(name: str) -> dict[str, object]:
    """The row of a solver, by running it."""
    solver = parse(expression_of(name))
    assert isinstance(solver, Solver)
    accepts = accepted(solver)
    outcomes = []
    for kind in accepts:
        graph = STEPS[kind]
        for budget in (int(peak_of(graph) * SHARE), 1):
            outcome = solver.solve(Problem(graph=graph, budget=budget), clock=Clock(SECONDS), proof=True)
            outcomes.append((outcome, graph.time))
    if any(copies(solver, STEPS[kind]) for kind in ("chain", "flat") if kind in accepts):
        accepts.append("link")
    loaded = [package for package in PACKAGES if package in sys.modules]
    planless = all(outcome.schedule is None and outcome.lower <= trivial for outcome, trivial in outcomes)
    needs = loaded + (["a start"] if planless and name[0].isupper() and solver.takes_start else [])
    return {"accepts": accepts, "proves": proved(outcomes), "needs": needs, "seconds": seconds(name, accepts)}


def proved(outcomes: list[tuple[Outcome, int]]) -> list[str]:
    """What a solver proved on one of the steps at least, beyond that every node runs once; a star where a certificate holds."""
    kinds = {
        "bound": [outcome for outcome, trivial in outcomes if trivial < outcome.lower < IMPOSSIBLE],
        "optimum": [
            outcome for outcome, _ in outcomes if outcome.schedule is not None and outcome.upper == outcome.lower
        ],
        "impossible": [outcome for outcome, _ in outcomes if outcome.lower == IMPOSSIBLE],
    }
    words = [
        word + ("*" if any(outcome.certified == outcome.lower for outcome in reached) else "")
        for word, reached in kinds.items()
        if reached
    ]
    return words + (["class"] if any(outcome.class_bounds for outcome, _ in outcomes) else [])


def seconds(name: str, accepts: list[str]) -> float | None:
    """CPU seconds of the solve of the captured layer, after one that loads and compiles."""
    if not accepts:
        return None
    graph = captured()
    expression = expression_of(name)
    solver = parse(expression if {"flat"} & set(accepts) else f"Linearise() >> {expression}")
    assert isinstance(solver, Solver)
    problem = Problem(graph=graph, budget=int(peak_of(graph) * SHARE))
    for _ in range(2):
        start = time.process_time()
        outcome = solver.solve(problem, clock=Clock(SECONDS))
        taken = time.process_time() - start
    return taken if outcome.schedule is not None or outcome.lower > graph.time else None


def captured() -> Graph:
    """The captured U-Net."""
    try:
        graph = load(UNET)
        assert isinstance(graph, Graph)
        return graph
    except ValueError:
        return read_joint_graph(UNET)


def row(name: str, result: dict[str, object]) -> str:
    """A line of the table."""
    taken = result["seconds"]
    words = [", ".join(result[column]) or "—" for column in ("accepts", "proves", "needs")]  # type: ignore[call-overload]
    return f"| `{name}` | {' | '.join(words)} | {'—' if taken is None else f'{taken:.2g}'} |"


def main() -> None:
    """Write the page; with the name of a solver, print its row as JSON."""
    if len(sys.argv) > 1:
        print(json.dumps(tried(sys.argv[1])))
        return
    lines = []
    for name in names():
        command = [sys.executable, "-m", "tests.site.solvers", name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        lines.append(row(name, json.loads(done.stdout.splitlines()[-1])))
        print(lines[-1], flush=True)
    head = HEAD.format(share=SHARE, nodes=len(captured()), seconds=SECONDS)
    PAGE.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
