"""The registry: parts of the algebra by name, from this library and from others by entry points.

Nothing is imported before it is asked for. Another package adds its own in its `pyproject.toml`:

    [project.entry-points."remat.solvers"]
    Mine = "my_package.solvers:Mine"

A name that two packages claim is an error that names both, whichever is asked for.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from attrs import frozen

from remat.errors import BadArgument, RematError

GROUPS = {
    "solvers": "remat.solvers",
    "transforms": "remat.transforms",
    "partitioners": "remat.partitioners",
    "sources": "remat.sources",
    "backends": "remat.backends",
    "scores": "remat.scores",
}
"""Entry-point group of each kind."""

_tables: dict[str, dict[str, str]] = {kind: {} for kind in (*GROUPS, "words")}


def register(kind: str, table: Mapping[str, str]) -> None:
    """Add what this library has of a kind, as `module:name` by name; `remat.algorithms` registers its tables.

    The kind `words` is for the other words of the algebra: combinators, tests and settings.
    """
    _tables[kind].update(table)


def registered(kind: str) -> Mapping[str, str]:
    """What this library itself has of a kind."""
    return _tables[kind]


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
            RematError: P-LOAD, when the module or the name in it does not exist.
        """
        module, _, name = self.where.partition(":")
        try:
            loaded: Any = importlib.import_module(module)
            for part in name.split("."):
                loaded = getattr(loaded, part)
        except (ImportError, AttributeError) as error:
            what = f"{self.name!r} of {self.origin} cannot be imported from {self.where} ({error})."
            raise RematError("P-LOAD", what, fix=f"install what {self.origin} needs, or remove it.") from error
        return loaded


def entries(kind: str, *, outside: Iterable[EntryPoint] | None = None) -> Mapping[str, Entry]:
    """All that is registered of a kind, by name.

    Args:
        kind: one of `GROUPS`.
        outside: entry points to take in place of those installed.

    Raises:
        RematError: P-KIND for an unknown kind; P-CLASH when two packages claim a name.
    """
    if kind not in GROUPS:
        raise BadArgument("P-KIND", f"{kind!r} is not a kind of plug-in.", fix=f"ask for {', '.join(GROUPS)}.")
    table = {name: Entry(kind, name, "remat", where) for name, where in _tables[kind].items()}
    for point in _installed(GROUPS[kind]) if outside is None else outside:
        origin = point.dist.name if point.dist is not None else "a package without metadata"
        entry = Entry(kind, point.name, origin, point.value)
        if point.name in table and table[point.name] != entry:
            other = table[point.name]
            what = f"{kind}: the name {point.name!r} is claimed by {other.origin} ({other.where}) and {origin} ({point.value})."
            raise RematError("P-CLASH", what, fix="uninstall one of them, or rename its entry point.")
        table[point.name] = entry
    return table


@cache
def _installed(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def get(kind: str, name: str) -> Any:
    """The registered class, function or value of that name.

    Raises:
        RematError: P-NAME, with the names that are near; P-KIND, P-CLASH, P-LOAD.
    """
    table = entries(kind)
    if name not in table:
        raise BadArgument("P-NAME", f"no {kind.removesuffix('s')} is called {name!r}.", fix=_near(name, table))
    return table[name].load()


def word(name: str) -> Any:
    """The value of a name of the algebra: a plug-in of any kind, a combinator or a test.

    Raises:
        RematError: P-NAME, P-CLASH, P-LOAD.
    """
    table: dict[str, Entry] = {term: Entry("words", term, "remat", where) for term, where in _tables["words"].items()}
    for kind in GROUPS:
        for other, entry in entries(kind).items():
            if other in table:
                what = f"the name {other!r} is claimed by {table[other].origin} and {entry.origin}."
                raise RematError("P-CLASH", what, fix="uninstall one of them, or rename its entry point.")
            table[other] = entry
    if name not in table:
        raise BadArgument("P-NAME", f"{name!r} is not a name of the algebra.", fix=_near(name, table))
    return table[name].load()


MOST_NAMES = 20
"""Names that a message lists."""


def _near(name: str, candidates: Iterable[str]) -> str:
    names = sorted(candidates)
    near = difflib.get_close_matches(name, names, 3)
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"known are {', '.join(names[:MOST_NAMES]) or 'none'}{more}."
