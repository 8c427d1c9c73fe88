"""Random chains, and the oracle of persistent schedules: every one of them is written out and replayed, nothing is shared."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from attrs import evolve
from hypothesis import strategies as st

from remat.ir import LayerOption, Option, Run
from remat.ir.chain import Block, Chain, chain_graph

Runs = tuple[Run, ...]


@st.composite
def blocks(draw, index: int, options: int, size: int, time: int, plain: bool):
    """A stage. A backward that does not read its input comes after stages whose backward does not read their output."""
    sizes, times = st.integers(0, size), st.integers(0, time)
    own = []
    reads_input = plain or draw(st.sampled_from((True, True, False)))
    for _ in range(draw(st.integers(1, options))):
        reads = (f"a{index + 1}",) if draw(st.booleans()) else ()
        if not reads_input and index and draw(st.booleans()):
            reads += (f"a{index}",)
        own.append(
            LayerOption(
                forward=draw(times),
                backward=draw(times),
                phantom=draw(sizes),
                forward_workspace=draw(sizes),
                backward_workspace=draw(sizes),
                backward_reads=reads,
            )
        )
    return Block(
        output=draw(sizes),
        gradient=draw(sizes),
        options=tuple(own),
        no_save=Option(time=draw(times), workspace=draw(sizes)),
        param_grad=0 if plain else draw(st.integers(0, 2)),
        kept=0 if plain else draw(st.integers(0, 1)),
        reads_input=reads_input,
    )


@st.composite
def chains(
    draw,
    *,
    min_stages: int = 1,
    max_stages: int = 6,
    options: int = 1,
    size: int = 4,
    time: int = 4,
    plain: bool = False,
) -> Chain:
    """Chains with ties, zero sizes and zero times; one stage too."""
    count = draw(st.integers(min_stages, max_stages))
    found = [draw(blocks(i, options, size, time, plain)) for i in range(count)]
    for i in range(count - 1):
        if not found[i + 1].reads_input:
            quiet = tuple(
                evolve(one, backward_reads=tuple(n for n in one.backward_reads if n == f"a{i}"))
                for one in found[i].options
            )
            found[i] = evolve(found[i], options=quiet)
    return Chain(
        chain_graph(
            found,
            loss=Option(time=draw(st.integers(0, time)), workspace=draw(st.integers(0, size))),
            loss_gradient=draw(st.integers(0, size)),
            tangent=1 if plain else draw(st.integers(0, 1)),  # one byte makes a slot one byte
        )
    )


def persistent(chain: Chain, choice=None) -> Iterator[Runs]:
    """Every persistent schedule, as runs: by the definition of the class, with no account of time or memory."""
    length = len(chain)

    @functools.cache
    def of(s: int, t: int) -> tuple[Runs, ...]:
        if s == length:
            return ((Run(chain.loss),),)
        stage = chain.stages[s]
        found = []
        for o in range(len(stage.options)) if choice is None else choice[s]:
            rests = of(s + 1, t) if t > s else ((),)
            found += [(Run(stage.forward, o), *rest, Run(stage.backward, o)) for rest in rests]
        for i in range(s + 1, t + 1):
            bare = tuple(Run(chain.stages[k].forward, len(chain.stages[k].options)) for k in range(s, i))
            found += [(*bare, *inner, *outer) for inner in of(i, t) for outer in of(s, i - 1)]
        return tuple(found)

    yield from of(0, length)


def replayed(chain: Chain, runs: Runs) -> tuple[int, int]:
    """Time and peak of a run sequence: last uses by looking ahead, bytes by adding up what is there."""
    graph = chain.graph
    size = {datum.name: 0 if datum.outside else datum.size for datum in graph.data}
    kept = {datum.name for datum in graph.data if datum.keep}
    touched = []
    for run in runs:
        node, layer = graph.node(run.node), graph.layer_by_node.get(run.node)
        reads, writes = list(node.reads), {name: size[name] for name in node.writes}
        if layer is not None and run.node == layer.backward:
            reads += [layer.phantom, *layer.options[run.option].backward_reads]
        elif layer is not None and run.option < len(layer.options):
            writes[layer.phantom] = layer.options[run.option].phantom
        touched.append((reads, writes, node.options[run.option]))
    held: dict[str, int] = {}
    time = peak = 0
    for at, (_, writes, option) in enumerate(touched):
        time += option.time
        peak = max(peak, sum(held.values()) + sum(writes.values()) + option.workspace)
        held.update(writes)
        for name in list(held):
            if name in kept:
                continue
            for later_reads, later_writes, _ in touched[at + 1 :]:
                if name in later_reads:
                    break
                if name in later_writes:
                    del held[name]
                    break
            else:
                del held[name]
    return time, peak


def front(chain: Chain, choice=None) -> list[tuple[int, int]]:
    """The best of the class: (peak, time) pairs, each budget's optimum is the last with a peak within it."""
    best: dict[int, int] = {}
    for runs in persistent(chain, choice):
        time, peak = replayed(chain, runs)
        best[peak] = min(time, best.get(peak, time))
    pairs: list[tuple[int, int]] = []
    for peak in sorted(best):
        if not pairs or best[peak] < pairs[-1][1]:
            pairs.append((peak, best[peak]))
    return pairs


def optimum(pairs: list[tuple[int, int]], budget: int) -> int | None:
    times = [time for peak, time in pairs if peak <= budget]
    return times[-1] if times else None
