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
        "AnyOrder": "remat.algorithms.bounds.anyorder:AnyOrder",
        "Autocapper": "remat.algorithms.offload:Autocapper",
        "Continuation": "remat.algorithms.runs.moves:Continuation",
        "Delete": "remat.algorithms.runs.moves:Delete",
        "Dtr": "remat.algorithms.dtr:Dtr",
        "Exhaustive": "remat.algorithms.exhaustive:Exhaustive",
        "HIlp": "remat.algorithms.ilp.solver:HIlp",
        "Ilp": "remat.algorithms.ilp.solver:Ilp",
        "Floor": "remat.algorithms.bounds.floor:Floor",
        "From": "remat.algorithms.starts:From",
        "FullRelaxation": "remat.algorithms.ilp.bounds:FullRelaxation",
        "MultiInstant": "remat.algorithms.bounds.multi:MultiInstant",
        "MultiStart": "remat.algorithms.runs.moves:MultiStart",
        "OffloadOnly": "remat.algorithms.offload:OffloadOnly",
        "Opportunist": "remat.algorithms.offload:Opportunist",
        "PeakShaving": "remat.algorithms.runs.moves:PeakShaving",
        "PerLayerCheckpoint": "remat.algorithms.baselines:PerLayerCheckpoint",
        "Periodic": "remat.algorithms.periodic:Periodic",
        "Pofo": "remat.algorithms.dp:Pofo",
        "Polish": "remat.algorithms.runs.polish:Polish",
        "Relieve": "remat.algorithms.runs.moves:Relieve",
        "Revolve": "remat.algorithms.revolve:Revolve",
        "RkRotor": "remat.algorithms.dp:RkRotor",
        "Rotor": "remat.algorithms.dp:Rotor",
        "RuinAndRecreate": "remat.algorithms.runs.moves:RuinAndRecreate",
        "SavedSet": "remat.algorithms.runs.saved_set:SavedSet",
        "SavedSetKnapsack": "remat.algorithms.ilp.bounds:SavedSetKnapsack",
        "Shift": "remat.algorithms.runs.moves:Shift",
        "SingleInstant": "remat.algorithms.bounds.single:SingleInstant",
        "StoreAll": "remat.algorithms.baselines:StoreAll",
        "TightenedKnapsack": "remat.algorithms.ilp.bounds:TightenedKnapsack",
        "TwRemat": "remat.algorithms.twremat:TwRemat",
        "auto": "remat.algorithms.default:auto",
        "autocapper": "remat.algorithms.named:autocapper",
        "checkmate": "remat.algorithms.named:checkmate",
        "chen": "remat.algorithms.named:chen",
        "dtr": "remat.algorithms.named:dtr",
        "hiremate": "remat.algorithms.named:hiremate",
        "offload_only": "remat.algorithms.named:offload_only",
        "opportunist": "remat.algorithms.named:opportunist",
        "pofo": "remat.algorithms.named:pofo",
        "quick": "remat.algorithms.default:quick",
        "revolve": "remat.algorithms.named:revolve",
        "rk_checkmate": "remat.algorithms.named:rk_checkmate",
        "rk_rotor": "remat.algorithms.named:rk_rotor",
        "rockmate": "remat.algorithms.named:rockmate",
        "rotor": "remat.algorithms.named:rotor",
        "tw_remat": "remat.algorithms.named:tw_remat",
    },
    "transforms": {
        "Condense": "remat.algorithms.condensing:Condense",
        "Linearise": "remat.algorithms.linearise:Linearise",
        "Quantise": "remat.algorithms.quantise:Quantise",
        "OneOutputPerOp": "remat.algorithms.ilp.checkmate:OneOutputPerOp",
        "UnitCost": "remat.algorithms.quantise:UnitCost",
    },
    "partitioners": {
        "Given": "remat.algorithms.condensing:Given",
        "HPartition": "remat.algorithms.hpartition:HPartition",
        "Intervals": "remat.algorithms.partition:Intervals",
        "Stretches": "remat.algorithms.partition:Stretches",
        "Undivided": "remat.algorithms.partition:Undivided",
    },
    "scores": {},
}
"""What this library brings, as `module:name`; add a line for each new one."""

WORDS = {
    "Cvxpy": "remat.algorithms.ilp.backends:Cvxpy",
    "Highs": "remat.algorithms.ilp.backends:Highs",
    "best": "remat.algorithms.combine:best",
    "first": "remat.algorithms.combine:first",
    "hierarchical": "remat.algorithms.condensing:hierarchical",
    "is_flat": "remat.algorithms.combine:is_flat",
    "nodes_at_most": "remat.algorithms.combine:nodes_at_most",
    "pool": "remat.algorithms.options:pool",
    "warm": "remat.algorithms.combine:warm",
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
