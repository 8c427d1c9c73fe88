"""`pool(a, b)`: the union of the options that several solvers or sweeps offer."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.options import Limited, OptionSource, undominated
from remat.algorithms._core.solver import Solver
from remat.errors import BadArgument
from remat.ir import Graph, LayerOption
from remat.settings import Setting, either, instance, tuple_of


def _offers(source: Any) -> bool:
    """Whether something offers options: a pool does if each of its parts does."""
    if isinstance(source, Limited):
        return _offers(source.source)
    return all(map(_offers, source.parts)) if isinstance(source, Pool) else isinstance(source, OptionSource)


A_SOURCE = Setting(
    "an OptionSource, e.g. quick.sweep(peaks=4, saves=4); of a pool of solvers, pool(…).sweep(peaks=…, saves=…)",
    _offers,
)
"""What offers options of a block; a pool with a solver that is not swept does not."""

_part = either(instance(Solver, "quick"), A_SOURCE)


@frozen
class Pool(OptionSource):
    """The options of all parts together; `pool(...).sweep(...)` sweeps the solvers among them."""

    parts: tuple[Solver | OptionSource, ...] = field(validator=tuple_of(_part))

    def __repr__(self) -> str:
        return f"pool({', '.join(map(repr, self.parts))})"

    def sweep(self, *, peaks: int = 8, saves: int = 6) -> Pool:
        """Each solver of the pool under many budgets; parts that already are sweeps stay unchanged."""
        swept = (part.sweep(peaks=peaks, saves=saves) if isinstance(part, Solver) else part for part in self.parts)
        return Pool(tuple(swept))

    def options(self, block: Graph, *, clock: Clock | None = None, seed: int = 0) -> tuple[LayerOption, ...]:
        """The union, without dominated options.

        Raises:
            BadArgument: A-POOL, when a solver of the pool is not swept.
        """
        clock = Clock() if clock is None else clock
        offered: list[LayerOption] = []
        for part in self.parts:
            if isinstance(part, Solver):
                fix = "write pool(…).sweep(peaks=…, saves=…)."
                raise BadArgument("A-POOL", f"{part!r} offers one schedule, not options.", fix=fix)
            offered.extend(part.options(block, clock=clock.nested(), seed=seed))
        return undominated(offered)


def pool(*parts: Solver | OptionSource) -> Pool:
    """The union of what several solvers or sweeps offer; pools inside are opened."""
    flat: list[Solver | OptionSource] = []
    for part in parts:
        if not isinstance(part, Pool):
            _part.check(part, "pool: a part")
        flat.extend(part.parts if isinstance(part, Pool) else (part,))
    return Pool(tuple(dict.fromkeys(flat)))
