"""`remat doctor [MODULE:FACTORY]`: versions, back ends that solve, compiled kernels; what of a model does not repeat."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

import remat
from remat.cli.factories import METAVAR, SETTINGS, factory_of
from remat.cli.words import say
from remat.errors import BackendMissing, RematError

if TYPE_CHECKING:
    from remat.algorithms import Problem, Solver

PACKAGES = (
    "torch", "attrs", "numpy", "scipy", "numba", "llvmlite", "cvxpy", "highspy", "pyscipopt", "matplotlib", "typer", "rich",
)  # fmt: skip
FAILED = "failed"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    factory: Annotated[
        str | None,
        typer.Argument(metavar=METAVAR, help="Also run each kind of operation of this model's step several times."),
    ] = None,
    setting: SETTINGS = None,
) -> None:
    """Look at this installation: exit code 0, or 1 where something that is installed does not work or does not repeat."""
    bad = False
    for line in (*versions(), *devices(), *kernels()):
        say(line)
    for line in back_ends():
        bad |= FAILED in line
        say(line)
    if factory is not None:
        for line, repeats in operations(factory, setting or []):
            bad |= not repeats
            say(line)
    if bad:
        raise typer.Exit(1)


def versions() -> Iterator[str]:
    """Versions of what this library works with."""
    yield f"remat      {remat.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    for name in PACKAGES:
        try:
            yield f"           {name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"           {name} is not installed"


def devices() -> Iterator[str]:
    """Where steps can run here."""
    try:
        import torch

        from remat.exec._cost.machine import machine_of
    except ImportError:
        yield "device     none: torch is not installed (pip install 'remat[exec]')"
        return
    yield f"device     {machine_of(torch.device('cpu'))}"
    count = torch.cuda.device_count()
    yield from (f"           {machine_of(torch.device('cuda', at))}" for at in range(count))
    if not count:
        yield "           no CUDA device"


def kernels() -> Iterator[str]:
    """Whether the planner's kernels are compiled."""
    try:
        from remat.algorithms._arrays.kernel_cache import cache_folder, is_incomplete
    except ImportError as error:
        yield f"kernels    none: {error}"
        return
    folder = cache_folder()
    if folder is None:
        yield "kernels    compiled in every process: set NUMBA_CACHE_DIR to a folder that can be written"
    elif is_incomplete():
        yield f"kernels    not all compiled: run `remat warm-up`, or let the first plan wait; cache {folder}"
    else:
        yield f"kernels    compiled, in {folder}"


def tiny() -> Problem:
    """A step whose plan must run one node twice; the least time is 13 ns."""
    from remat.algorithms import Problem
    from remat.ir import GraphBuilder, Kind

    builder = GraphBuilder("tiny")
    for name, size, kind in (
        ("x", 0, Kind.INPUT),
        ("t", 1, Kind.TANGENT),
        ("g", 1, Kind.PARAM_GRAD),
        ("d", 1, Kind.GRADIENT),
    ):
        builder.data(name, size, kind)
    builder.data("a", 6)
    builder.data("b", 6)
    builder.forward("A", reads=["x"], writes=["a"], time=2)
    builder.forward("B", reads=["a"], writes=["b"], time=3)
    builder.loss("L", reads=["b"], writes=["t"], time=1)
    builder.backward("D", reads=["t", "b"], writes=["d"], time=2, twin="B")
    builder.backward("G", reads=["d", "a"], writes=["g"], time=3, twin="A")
    return Problem(graph=builder.build(), budget=13)


LEAST = 13


def back_ends() -> Iterator[str]:
    """Which solvers of MILPs are installed, and whether they solve a tiny problem; the default planner likewise."""
    from remat.algorithms import HIlp
    from remat.algorithms._milp.backends import Cvxpy, Highs

    for name, backend in (("HiGHS", Highs()), ("SCIP", Cvxpy(solver="SCIP"))):
        try:
            backend.check()
        except BackendMissing as error:
            yield f"{'back end':<10} {name}: not installed ({error.fix})"
            continue
        yield f"{'back end':<10} {name}: {verdict(HIlp(backend=backend, warm_start=False))}"
    from remat.algorithms._arrays.kernel_cache import cache_folder, is_incomplete

    if cache_folder() is None or is_incomplete():
        yield "planner    not tried: its kernels are not compiled"
    else:
        from remat.algorithms import auto

        yield f"planner    auto: {verdict(auto)}"


def verdict(solver: Solver) -> str:
    """What a solver makes of the tiny problem."""
    try:
        outcome = solver.solve(tiny())
    except (RematError, RuntimeError, ValueError, ImportError, OSError) as error:
        return f"{FAILED}: {type(error).__name__}: {error}"
    time = None if outcome.cost is None else outcome.cost.time
    return (
        f"works ({time} ns, at least {outcome.lower})"
        if time == LEAST
        else f"{FAILED}: {time} ns where {LEAST} is the least"
    )


def operations(factory: str, settings: list[str]) -> Iterator[tuple[str, bool]]:
    """What of a model's step does not repeat; with each line, whether it is well."""
    from remat.exec._cost.repeating import RUNS, determinism
    from remat.exec.weightless import capture_without_weights

    make = factory_of(factory, settings)
    result = determinism(capture_without_weights(make, as_run=True).captured.program)
    yield f"model      {result.tried} kinds of operations, each run {RUNS} times on the same inputs", True
    for op, count in zip(result.varying, result.counts, strict=True):
        place = op.scope or "the model"
        yield (
            f"differs    {op.target} in {place} ({op.phase.value}), and {count - 1} more: what is recomputed differs too",
            False,
        )
    for op in result.failed:
        yield f"not tried  {op.target} in {op.scope or 'the model'} does not run on inputs made for it", True
    if result.varying:
        yield "           see torch.use_deterministic_algorithms", True
    else:
        yield "repeats    all of them, bit for bit", True
