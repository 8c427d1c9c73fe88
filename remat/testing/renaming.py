"""The same graph under other names: with a prefix before each, so that all hashes change, or sorted the other way round too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import evolve

from remat.ir import Graph, Run, Schedule, Step

WORDS: Final = ("n.", "zz", "_0")


def other_names(graph: Graph, number: int) -> tuple[dict[str, str], str]:
    """New names for the trial of a number, by turns sorted alike and in reverse, and what they are, for a message."""
    word = WORDS[number % len(WORDS)]
    if number % 2:
        return backwards(graph, word), f"with names that begin with {word!r} and sort in reverse"
    return prefixed(graph, word), f"with names that begin with {word!r}"


def prefixed(graph: Graph, word: str) -> dict[str, str]:
    """A new name for each name of nodes, data and phantoms: `word` before it. Their sort order is the same."""
    return {name: word + name for name in _names(graph)}


def backwards(graph: Graph, word: str) -> dict[str, str]:
    """A new name for each name of nodes, data and phantoms: `word` and a number before it, so that they sort in reverse."""
    names = _names(graph)
    width = len(str(len(names)))
    return {name: f"{word}{len(names) - place:0{width}}.{name}" for place, name in enumerate(names)}


def _names(graph: Graph) -> list[str]:
    """All names, sorted."""
    phantoms = (layer.phantom for layer in graph.layers)
    return sorted({*graph.node_index, *graph.data_index, *phantoms})


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names of nodes, data and phantoms."""

    def each(old: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names[name] for name in old)

    computes = tuple(
        evolve(
            node,
            name=names[node.name],
            reads=each(node.reads),
            writes=each(node.writes),
            twin=node.twin and names[node.twin],
            after=each(node.after),
        )
        for node in graph.computes
    )
    data = tuple(evolve(datum, name=names[datum.name], writers=each(datum.writers)) for datum in graph.data)
    layers = tuple(
        evolve(
            layer,
            forward=names[layer.forward],
            backward=names[layer.backward],
            phantom=names[layer.phantom],
            options=tuple(evolve(option, backward_reads=each(option.backward_reads)) for option in layer.options),
        )
        for layer in graph.layers
    )
    return evolve(graph, computes=computes, data=data, layers=layers)


def with_names(schedule: Schedule | None, names: Mapping[str, str]) -> Schedule | None:
    """The corresponding schedule of the renamed graph."""
    if schedule is None:
        return None
    return Schedule(tuple(_with_name(step, names) for step in schedule.steps))


def _with_name(step: Step, names: Mapping[str, str]) -> Step:
    return evolve(step, node=names[step.node]) if isinstance(step, Run) else evolve(step, datum=names[step.datum])
