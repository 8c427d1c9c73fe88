"""`remat estimate MODULE:FACTORY --device H100`: will a model train there, and at what price; nothing is allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.factories import DIFFERENTIABLE, FACTORY, SETTINGS, factory_of
from remat.cli.words import say
from remat.units import format_bytes

if TYPE_CHECKING:
    from remat.exec._plan.needs import ModuleNeeds

NO_BATCH = "none"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("estimate")(estimate)


def estimate(
    factory: FACTORY,
    device: Annotated[
        str, typer.Option(help="Model of a device, as h100; cpu: this machine, whose operations are measured.")
    ] = "cpu",
    optimizer: Annotated[
        str, typer.Option(help='As adamw, "sgd(momentum=0.9)" or my.module:Class; none: none.')
    ] = "adamw",
    memory: Annotated[
        str | None, typer.Option(help='Of the device, as "24GiB"; by default what its model says.')
    ] = None,
    reserve: Annotated[
        str | None, typer.Option(help="Left free for the driver; by default 1 GiB on accelerators.")
    ] = None,
    setting: SETTINGS = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Argument of the factory that is the number of samples; by default batch or batch_size; none: none."
        ),
    ] = None,
    differentiable: DIFFERENTIABLE = "auto",
    depth: Annotated[int, typer.Option(min=0, help="Parts of their paths that tell modules apart; 0: no table.")] = 1,
    seconds: Annotated[float, typer.Option(min=0, help="Deadline of each planning.")] = 10.0,
) -> None:
    """What one training step of the model that FACTORY makes needs on a device: exit code 0 when it can fit, 3 when not."""
    from remat.exec.estimating import batch_argument
    from remat.exec.estimating import estimate as estimated

    make = factory_of(factory, setting)
    samples = batch_argument(make) if batch is None else None if batch == NO_BATCH else batch
    result = estimated(
        make, device=device, optimizer=optimizer, memory=memory, reserve=reserve, batch=samples,
        differentiable=differentiable, depth=max(1, depth), seconds=seconds,
    )  # fmt: skip
    for line in str(result).splitlines():
        say(line)
    for line in table(result.needs.modules) if depth else ():
        say(line)
    if not (result.fits or result.planned):
        raise typer.Exit(3)


def table(modules: tuple[ModuleNeeds, ...]) -> list[str]:
    """A line for each module; one for neighbors that need the same and differ by number alone."""
    from remat.exec._plan.residents import pattern, span

    groups: list[list[ModuleNeeds]] = []
    for module in modules:
        last = groups[-1][-1] if groups else None
        alike = last is not None and _numbers(last) == _numbers(module) and pattern(last.name) == pattern(module.name)
        groups[-1].append(module) if alike else groups.append([module])
    head = f"{'module':<32} {'parameters':>11} {'gradients':>11} {'states':>11} {'at the peak':>11}"
    lines = ["", head]
    for group in groups:
        name = span([module.name or "(the model)" for module in group])
        each = " each" if len(group) > 1 else ""
        cells = (format_bytes(size) for size in _numbers(group[0]))
        lines.append(f"{name:<32} " + " ".join(f"{cell:>11}" for cell in cells) + each)
    return lines


def _numbers(module: ModuleNeeds) -> tuple[int, int, int, int]:
    return module.parameters, module.gradients, module.states, module.at_peak
