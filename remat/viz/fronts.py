"""A level of a hierarchy: its clusters as boxes within boxes over the forward, and the options of its layers as fronts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from remat.ir import Cluster, Graph, Layer, LayerOption
from remat.ir.arguments import A_GRAPH, A_TEXT
from remat.ir.cluster import CLUSTERS
from remat.settings import optional, takes
from remat.units import Bytes, Ns, format_ns
from remat.viz.canvas import A_FILE, BLACK, BLUE, GREY, SKY, finished, new_figure, refuse_nothing, unit_of, write_title
from remat.viz.escape import short
from remat.viz.residency import unit_of_time

PANELS = 12
"""Most fronts in a picture; layers with the same options share one."""
COLUMNS = 4

Box: TypeAlias = tuple[int, float, float, str]
"""Depth, beginning and end on the axis of forward nodes, and the name."""


@takes(graph=A_GRAPH, path=A_FILE, flat=optional(A_GRAPH), clusters=CLUSTERS, title=A_TEXT)
def draw_fronts(
    graph: Graph,
    path: str | os.PathLike[str] | None = None,
    *,
    flat: Graph | None = None,
    clusters: Sequence[Cluster] = (),
    title: str = "",
) -> Any:
    """Draw what each layer of a graph offers to the level above: time over what it saves, and the workspace as color.

    Args:
        graph: with layers, as `Condense` or `hierarchical` makes it (`remat apply`).
        path: file to write, in the format of its extension; None: write nothing.
        flat: the graph before it was condensed.
        clusters: its tree of clusters, drawn above the fronts; without `flat` and these the layers are drawn there.
        title: above the picture.

    Returns:
        The matplotlib `Figure`; it belongs to no window.

    Raises:
        BackendMissing: V-MATPLOTLIB, without matplotlib.
        BadArgument: V-EMPTY, for a graph without layers; V-ENDING, for a path that does not end like a picture.
    """
    refuse_nothing(
        graph.layers, "give a graph with layers: `remat apply 'Condense(partition=Segments())' GRAPH -o FILE`."
    )
    kinds = alike(graph)
    shown = kinds[:PANELS]
    rows = -(-len(shown) // COLUMNS)
    figure = new_figure(11.0, 2.2 + 2.3 * rows)
    grid = figure.add_gridspec(rows + 1, COLUMNS, height_ratios=[0.8, *([1.2] * rows)])
    top = figure.add_subplot(grid[0, :])
    _draw_boxes(top, list(_boxes(graph, flat, clusters)))
    name, unit = unit_of(max(_workspace(option) for layers in shown for option in layers[0].options))
    most = max(1, *(_workspace(option) / unit for layers in shown for option in layers[0].options))
    panels = [figure.add_subplot(grid[1 + place // COLUMNS, place % COLUMNS]) for place in range(len(shown))]
    dots = [_draw_front(axes, layers, most, unit) for axes, layers in zip(panels, shown, strict=True)]
    bar = figure.colorbar(dots[0], ax=panels, location="right", fraction=0.02, shrink=0.6)
    bar.set_label(f"most workspace [{name}]", fontsize="x-small")
    bar.ax.tick_params(labelsize="x-small")
    rest = f"; {len(shown)} of {len(kinds)} kinds of layers" if len(kinds) > len(shown) else ""
    return finished(figure, path, title + rest)


def alike(graph: Graph) -> list[tuple[Layer, ...]]:
    """The layers of a graph grouped by equal options, the groups with most options first."""
    groups: dict[tuple[tuple[int, ...], ...], list[Layer]] = {}
    for layer in sorted(graph.layers, key=lambda layer: graph.node_index[layer.forward]):
        key = tuple(
            (option.forward, option.backward, option.phantom, option.forward_workspace, option.backward_workspace)
            for option in layer.options
        )
        groups.setdefault(key, []).append(layer)
    return [tuple(group) for group in sorted(groups.values(), key=lambda group: -len(group[0].options))]


def front(options: Sequence[LayerOption]) -> list[tuple[Bytes, Ns]]:
    """Saved bytes and time of the options that no other betters in both, by bytes."""
    best: list[tuple[Bytes, Ns]] = []
    for saved, time in sorted((option.phantom, option.forward + option.backward) for option in options):
        if not best or time < best[-1][1]:
            best.append((saved, time))
    return best


def _workspace(option: LayerOption) -> Bytes:
    return max(option.forward_workspace, option.backward_workspace)


def _draw_front(axes: Any, layers: Sequence[Layer], most: float, colors: Bytes) -> Any:
    """The options of a kind of layer, colored by workspace in this unit, and the staircase below which it has none."""
    options = layers[0].options
    name, unit = unit_of(max(option.phantom for option in options))
    clock, tick = unit_of_time(max(option.forward + option.backward for option in options))
    stairs = front(options)
    axes.step(
        [saved / unit for saved, _ in stairs], [time / tick for _, time in stairs], where="post", color=BLUE,
        linewidth=1.2, zorder=1,
    )  # fmt: skip
    dots = axes.scatter(
        [option.phantom / unit for option in options], [(option.forward + option.backward) / tick for option in options],
        c=[_workspace(option) / colors for option in options], vmin=0, vmax=most, cmap="cividis", s=22, edgecolors=BLACK,
        linewidths=0.4, zorder=2,
    )  # fmt: skip
    many = f" × {len(layers)}" if len(layers) > 1 else ""
    write_title(axes, f"{short(layers[0].forward, 22)}{many}")
    axes.title.set_fontsize("small")
    nothing = f"a forward that saves nothing: {format_ns(layers[0].no_save.time)}"
    axes.set_xlabel(f"saved [{name}]\n{nothing}", fontsize="x-small")
    axes.set_ylabel(f"forward + backward [{clock}]", fontsize="x-small")
    axes.tick_params(labelsize="x-small")
    return dots


def _boxes(graph: Graph, flat: Graph | None, clusters: Sequence[Cluster]) -> Iterator[Box]:
    """Clusters and their children over the forward nodes of the flat graph; without them the layers over their own."""
    if flat is None or not clusters:
        order = [node.name for node in graph.computes[: graph.loss]]
        layers = {layer.forward for layer in graph.layers}
        yield from ((0, place, place + 1, name) for place, name in enumerate(order) if name in layers)
        return
    for cluster in clusters:
        yield from _nested(flat, cluster, 0)


def _nested(flat: Graph, cluster: Cluster, depth: int) -> Iterator[Box]:
    """A box for each stretch of the forward that a cluster holds, and those of its children below."""
    places = [flat.node_index[name] for name in cluster.forward]
    begin = places[0]
    for place, following in zip(places, (*places[1:], None), strict=True):
        if following != place + 1:
            yield (depth, begin, place + 1, cluster.name)
            begin = place if following is None else following
    for child in cluster.children:
        yield from _nested(flat, child, depth + 1)


def _draw_boxes(axes: Any, boxes: Sequence[Box]) -> None:
    """Boxes with their names where there is room."""
    end = max(right for _, _, right, _ in boxes)
    depth = 1 + max(level for level, _, _, _ in boxes)
    for level, left, right, name in boxes:
        color = SKY if level % 2 == 0 else GREY
        axes.broken_barh([(left, right - left)], (level, 0.9), facecolors=color, edgecolor="white", linewidth=0.6)
        if (right - left) / end > 0.03:
            words = short(name, max(4, int(130 * (right - left) / end)))
            axes.text(
                (left + right) / 2, level + 0.45, words, ha="center", va="center", fontsize="xx-small", parse_math=False
            )
    axes.set(xlim=(0, end), ylim=(depth, 0), yticks=[], xlabel="forward nodes, in their order")
    axes.xaxis.label.set_fontsize("x-small")
    axes.tick_params(labelsize="x-small")


__all__ = ["PANELS", "alike", "draw_fronts", "front"]
