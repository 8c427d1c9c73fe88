"""`remat inspect MODULE:FACTORY`: what a model's training step consists of, or where it cannot be captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.factories import DIFFERENTIABLE, FACTORY, SETTINGS, factory_of
from remat.cli.words import say
from remat.errors import Uncapturable
from remat.units import format_bytes

if TYPE_CHECKING:
    from remat.exec._capture.capturing import Captured
    from remat.exec._plan.dissection import Anatomy


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


def inspect(
    factory: FACTORY,
    setting: SETTINGS = None,
    differentiable: DIFFERENTIABLE = "auto",
    with_weights: Annotated[
        bool, typer.Option("--with-weights", help="Build the model with memory: its forward may then read values.")
    ] = False,
    top: Annotated[int, typer.Option(min=0, help="How many lines of saved data, and of guards.")] = 15,
) -> None:
    """Take one training step of the model that FACTORY makes apart: exit code 0, or 3 where it cannot be captured."""
    from remat.exec._plan.dissection import anatomy
    from remat.exec.weightless import graph_estimated

    make = factory_of(factory, setting)
    try:
        captured = _captured(make, differentiable, with_weights=with_weights)
    except Uncapturable as error:
        for line in refusal_lines(error, with_weights=with_weights):
            say(line)
        raise typer.Exit(3) from None
    parts = anatomy(captured, graph_estimated(captured))
    for line in lines(captured.program.name, parts, top):
        say(line)


def _captured(make: Callable[..., Any], differentiable: str, *, with_weights: bool) -> Captured:
    from remat.exec._capture.capturing import capture
    from remat.exec.weightless import capture_without_weights, parts_of

    if not with_weights:
        return capture_without_weights(make, differentiable=differentiable, as_run=True).captured
    module, args, kwargs = parts_of(make())
    return capture(module, args, kwargs, differentiable=differentiable)


def refusal_lines(error: Uncapturable, *, with_weights: bool) -> list[str]:
    """Why a step cannot be captured, where, and what to do."""
    lines = [
        f"captured   no ({error.rule})",
        f"where      {error.where or 'not known'}",
        f"why        {error.what}",
        f"way out    {error.fix or 'leave this module bare.'}",
    ]
    return lines if with_weights else [*lines, "           if it reads values of tensors: --with-weights."]


def lines(name: str, parts: Anatomy, top: int) -> list[str]:
    """A step in a few lines, then a table of what it saves, then its guards."""
    node, count = parts.commonest
    total = sum(saved.total for saved in parts.saved)
    text = [
        f"captured   {name}: {parts.forward} forward and {parts.backward} backward nodes",
        f"unique     {parts.signatures} signatures, the most frequent {count} times ({node})",
        f"random     {parts.draws} nodes draw random numbers, {parts.run_once} may run only once",
        f"saved      {format_bytes(total)} from forward to backward, in {sum(saved.count for saved in parts.saved)} tensors",
        f"guards     {len(parts.guards) or 'none'}",
    ]
    text += [f"           {guard}" for guard in parts.guards[:top]]
    if top and parts.saved:
        text += ["", f"{'saved':>11} {'count':>6} {'each':>11}  by"]
    for saved in parts.saved[:top]:
        only = ", for the backward alone" if saved.only_backward else ""
        by = f"{saved.module or '(the model)'}: {saved.operation}{only}"
        text.append(f"{format_bytes(saved.total):>11} {saved.count:6} {format_bytes(saved.size):>11}  {by}")
    return text
