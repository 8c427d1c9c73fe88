"""The registry: solvers, transforms, partitioners and scores by name, from this library and from others by entry points.

Nothing is imported before it is asked for. Another package adds its own in its `pyproject.toml`:

    [project.entry-points."remat.solvers"]
    Mine = "my_package.solvers:Mine"

A name that two packages claim is an error that names both, whoever is asked for.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from attrs import frozen

from remat.errors import RematError

GROUPS = {
    "solvers": "remat.solvers",
    "transforms": "remat.transforms",
    "partitioners": "remat.partitioners",
    "scores": "remat.scores",
}
"""Entry-point group of each kind."""

OWN: dict[str, dict[str, str]] = {
    "solvers": {
        "AnyOrder": "remat.algorithms._search.any_order:AnyOrder",
        "Autocapper": "remat.algorithms._chain.offload:Autocapper",
        "Continuation": "remat.algorithms._search.passes:Continuation",
        "Delete": "remat.algorithms._search.passes:Delete",
        "Dtr": "remat.algorithms._whole.dtr:Dtr",
        "Exhaustive": "remat.algorithms._whole.exhaustive:Exhaustive",
        "HIlp": "remat.algorithms._staged.solver:HIlp",
        "Ilp": "remat.algorithms._staged.solver:Ilp",
        "Floor": "remat.algorithms._bounds.floor:Floor",
        "From": "remat.algorithms._search.from_solver:From",
        "FullRelaxation": "remat.algorithms._staged.knapsack:FullRelaxation",
        "MultiInstant": "remat.algorithms._search.multi_instant:MultiInstant",
        "MultiStart": "remat.algorithms._search.passes:MultiStart",
        "OffloadOnly": "remat.algorithms._chain.offload:OffloadOnly",
        "Opportunist": "remat.algorithms._chain.offload:Opportunist",
        "PeakShaving": "remat.algorithms._search.passes:PeakShaving",
        "PerLayerCheckpoint": "remat.algorithms._whole.baselines:PerLayerCheckpoint",
        "Periodic": "remat.algorithms._chain.periodic:Periodic",
        "Pofo": "remat.algorithms._chain.pofo:Pofo",
        "Polish": "remat.algorithms._search.pipeline:Polish",
        "Relieve": "remat.algorithms._search.passes:Relieve",
        "Revolve": "remat.algorithms._chain.revolve:Revolve",
        "RkRotor": "remat.algorithms._chain.rotor:RkRotor",
        "Rotor": "remat.algorithms._chain.rotor:Rotor",
        "RuinAndRecreate": "remat.algorithms._search.passes:RuinAndRecreate",
        "SavedSet": "remat.algorithms._search.lp_rounding:SavedSet",
        "SavedSetKnapsack": "remat.algorithms._staged.knapsack:SavedSetKnapsack",
        "Shift": "remat.algorithms._search.passes:Shift",
        "SingleInstant": "remat.algorithms._search.single_instant:SingleInstant",
        "StoreAll": "remat.algorithms._whole.baselines:StoreAll",
        "TightenedKnapsack": "remat.algorithms._staged.knapsack:TightenedKnapsack",
        "TwRemat": "remat.algorithms._whole.tw_remat:TwRemat",
        "auto": "remat.algorithms._search.auto:auto",
        "autocapper": "remat.algorithms.named:autocapper",
        "checkmate": "remat.algorithms.named:checkmate",
        "chen": "remat.algorithms.named:chen",
        "dtr": "remat.algorithms.named:dtr",
        "hiremate": "remat.algorithms.named:hiremate",
        "offload_only": "remat.algorithms.named:offload_only",
        "opportunist": "remat.algorithms.named:opportunist",
        "pofo": "remat.algorithms.named:pofo",
        "quick": "remat.algorithms._search.auto:quick",
        "revolve": "remat.algorithms.named:revolve",
        "rk_checkmate": "remat.algorithms.named:rk_checkmate",
        "rk_rotor": "remat.algorithms.named:rk_rotor",
        "rockmate": "remat.algorithms.named:rockmate",
        "rotor": "remat.algorithms.named:rotor",
        "tw_remat": "remat.algorithms.named:tw_remat",
    },
    "transforms": {
        "Condense": "remat.algorithms._hierarchy.condense:Condense",
        "Linearise": "remat.algorithms._chain.linearise:Linearise",
        "Quantise": "remat.algorithms._chain.quantise:Quantise",
        "OneOutputPerOp": "remat.algorithms._staged.form_checkmate:OneOutputPerOp",
        "UnitCost": "remat.algorithms._chain.quantise:UnitCost",
    },
    "partitioners": {
        "Given": "remat.algorithms._hierarchy.condense:Given",
        "HPartition": "remat.algorithms._hierarchy.hpartition:HPartition",
        "Intervals": "remat.algorithms._hierarchy.partition:Intervals",
        "Stretches": "remat.algorithms._hierarchy.partition:Stretches",
        "Undivided": "remat.algorithms._hierarchy.partition:Undivided",
    },
    "scores": {},
}
"""What this library brings, as `module:name`; add a line for each new one."""

WORDS = {
    "Cvxpy": "remat.algorithms._milp.backends:Cvxpy",
    "Highs": "remat.algorithms._milp.backends:Highs",
    "best": "remat.algorithms._core.combine:best",
    "first": "remat.algorithms._core.combine:first",
    "hierarchical": "remat.algorithms._hierarchy.condense:hierarchical",
    "is_flat": "remat.algorithms._core.combine:is_flat",
    "nodes_at_most": "remat.algorithms._core.combine:nodes_at_most",
    "pool": "remat.algorithms._core.options:pool",
    "warm": "remat.algorithms._core.combine:warm",
}
"""The other words of the algebra: combinators and tests."""


@frozen
class Entry:
    """One registered thing: its kind and name, the distribution it came from, and where it is (`module:name`)."""

    kind: str
    name: str
    origin: str
    where: str

    def load(self) -> Any:
        """Import it.

        Raises:
            RematError: P-LOAD, when the module or the name in it is not there.
        """
        module, _, name = self.where.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            what = f"{self.name!r} of {self.origin} cannot be imported from {self.where} ({error})."
            raise RematError("P-LOAD", what, fix=f"install what {self.origin} needs, or remove it.") from error
        return found


def entries(kind: str, *, outside: Iterable[EntryPoint] | None = None) -> Mapping[str, Entry]:
    """All that is registered of a kind, by name.

    Args:
        kind: one of `GROUPS`.
        outside: entry points to take in place of those installed.

    Raises:
        RematError: P-KIND for an unknown kind; P-CLASH when two packages claim a name.
    """
    if kind not in GROUPS:
        raise RematError("P-KIND", f"{kind!r} is not a kind of plug-in.", fix=f"ask for {', '.join(GROUPS)}.")
    found = {name: Entry(kind, name, "remat", where) for name, where in OWN[kind].items()}
    for point in _installed(GROUPS[kind]) if outside is None else outside:
        origin = point.dist.name if point.dist is not None else "a package without metadata"
        entry = Entry(kind, point.name, origin, point.value)
        if point.name in found and found[point.name] != entry:
            other = found[point.name]
            what = f"{kind}: the name {point.name!r} is claimed by {other.origin} ({other.where}) and {origin} ({point.value})."
            raise RematError("P-CLASH", what, fix="uninstall one of them, or rename its entry point.")
        found[point.name] = entry
    return found


@cache
def _installed(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def get(kind: str, name: str) -> Any:
    """The registered class, function or value of that name.

    Raises:
        RematError: P-NAME, with the names that are near; P-KIND, P-CLASH, P-LOAD.
    """
    found = entries(kind)
    if name not in found:
        raise RematError("P-NAME", f"no {kind.removesuffix('s')} is called {name!r}.", fix=_near(name, found))
    return found[name].load()


def word(name: str) -> Any:
    """What a name of the algebra stands for: a plug-in of any kind, a combinator or a test.

    Raises:
        RematError: P-NAME, P-CLASH, P-LOAD.
    """
    known: dict[str, Entry] = {one: Entry("words", one, "remat", where) for one, where in WORDS.items()}
    for kind in GROUPS:
        for other, entry in entries(kind).items():
            if other in known:
                what = f"the name {other!r} is claimed by {known[other].origin} and {entry.origin}."
                raise RematError("P-CLASH", what, fix="uninstall one of them, or rename its entry point.")
            known[other] = entry
    if name not in known:
        raise RematError("P-NAME", f"{name!r} is not a name of the algebra.", fix=_near(name, known))
    return known[name].load()


def _near(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 3)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names) or 'none'}."
