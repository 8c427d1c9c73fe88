"""The same graph with a prefix before every name: the sort order of names is the same, all hashes change."""

from __future__ import annotations

from attrs import evolve

from remat.ir import Graph, Run, Schedule, Step


def renamed(graph: Graph, word: str) -> Graph:
    """The graph with `word` before the names of nodes, data and phantoms."""

    def prefixed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(word + name for name in names)

    computes = tuple(
        evolve(
            node,
            name=word + node.name,
            reads=prefixed(node.reads),
            writes=prefixed(node.writes),
            twin=node.twin and word + node.twin,
            after=prefixed(node.after),
        )
        for node in graph.computes
    )
    data = tuple(evolve(datum, name=word + datum.name, writers=prefixed(datum.writers)) for datum in graph.data)
    layers = tuple(
        evolve(
            layer,
            forward=word + layer.forward,
            backward=word + layer.backward,
            phantom=word + layer.phantom,
            options=tuple(evolve(option, backward_reads=prefixed(option.backward_reads)) for option in layer.options),
        )
        for layer in graph.layers
    )
    return evolve(graph, computes=computes, data=data, layers=layers)


def with_word(schedule: Schedule | None, word: str) -> Schedule | None:
    """The corresponding schedule of the renamed graph."""
    if schedule is None:
        return None
    return Schedule(tuple(_with_word(step, word) for step in schedule.steps))


def _with_word(step: Step, word: str) -> Step:
    return evolve(step, node=word + step.node) if isinstance(step, Run) else evolve(step, datum=word + step.datum)
