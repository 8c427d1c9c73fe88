"""`pool(a, b)`: the union of the options that several solvers or sweeps offer."""

from __future__ import annotations

from attrs import field, frozen

from remat.algorithms._core.clock import Clock
from remat.algorithms._core.options import OptionSource, undominated
from remat.algorithms._core.solver import Solver
from remat.errors import RematError
from remat.ir import Graph, LayerOption


def _parts(instance: object, attribute: object, value: object) -> None:
    if not isinstance(value, tuple) or not value or not all(isinstance(one, (Solver, OptionSource)) for one in value):
        raise RematError("A-POOL", f"{value!r:.80} is not a list of solvers or sweeps.", fix="give at least one.")


@frozen
class Pool(OptionSource):
    """The options of all parts together; solvers among them are swept by `pool(...).sweep(...)`."""

    parts: tuple[Solver | OptionSource, ...] = field(validator=_parts)

    def __repr__(self) -> str:
        return f"pool({', '.join(map(repr, self.parts))})"

    def sweep(self, *, peaks: int = 8, saves: int = 6) -> Pool:
        """Each solver of the pool under many budgets; parts that are swept already stay as they are."""
        swept = (one.sweep(peaks=peaks, saves=saves) if isinstance(one, Solver) else one for one in self.parts)
        return Pool(tuple(swept))

    def options(self, block: Graph, *, clock: Clock | None = None, seed: int = 0) -> tuple[LayerOption, ...]:
        """The union, without what another option dominates.

        Raises:
            RematError: A-POOL, when a solver of the pool is not swept.
        """
        clock = Clock() if clock is None else clock
        found: list[LayerOption] = []
        for one in self.parts:
            if isinstance(one, Solver):
                fix = "write pool(…).sweep(peaks=…, saves=…)."
                raise RematError("A-POOL", f"{one!r} offers one schedule, not options.", fix=fix)
            found.extend(one.options(block, clock=clock.nested(), seed=seed))
        return undominated(found)


def pool(*parts: Solver | OptionSource) -> Pool:
    """The union of what several solvers or sweeps offer; pools inside are opened."""
    flat: list[Solver | OptionSource] = []
    for one in parts:
        flat.extend(one.parts if isinstance(one, Pool) else (one,))
    return Pool(tuple(dict.fromkeys(flat)))
