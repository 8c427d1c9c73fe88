"""Laws of clusters, condensing and expanding."""

from hypothesis import given
from hypothesis import strategies as st

from remat.ir import (
    Run,
    Schedule,
    cluster_classes,
    clusters,
    condense,
    expand,
    layer_option,
    part,
    plain_options,
    renaming,
    translate,
    validate,
)
from remat.testing.strategies import clustered_graphs, training_graphs, valid_schedules


@given(clustered_graphs(), st.data())
def test_expanding_keeps_the_time_and_never_raises_the_peak(example, data):
    level = condense(example.graph, example.clusters, example.options)
    schedule = data.draw(valid_schedules(level.graph))
    above, below = validate(level.graph, schedule), validate(example.graph, expand(level, schedule))
    assert below.time == above.time
    assert below.peak <= above.peak


def corrected_peak(level, schedule):
    """The peak of a condensed schedule by the moments of its options: a bound from above on the flat peak, and a finer one."""
    graph = level.graph
    sizes = {datum.name: 0 if datum.outside else datum.size for datum in graph.data}
    held, option_of_phantom, most = set(), {}, 0
    steps = schedule.steps
    for i, step in enumerate(steps):
        if not isinstance(step, Run):
            held.discard(step.datum)
            option_of_phantom.pop(step.datum, None)
            continue
        node, layer = graph.node(step.node), graph.layer_by_node.get(step.node)
        kept_after = set(held)
        for later in steps[i + 1 :]:
            if isinstance(later, Run):
                break
            kept_after.discard(later.datum)
        phantoms = {
            p: next(x for x in graph.layers if x.phantom == p).options[o].phantom for p, o in option_of_phantom.items()
        }
        outer = sum(sizes[name] for name in held) + sum(phantoms.values())
        profile, reads = (), set(node.reads)
        if layer is not None and step.option < len(layer.options):
            one = layer.options[step.option]
            forward = step.node == layer.forward
            profile = one.forward_profile if forward else one.backward_profile
            reads |= set() if forward else set(one.backward_reads)
        if not profile:
            extra = sum(sizes[name] for name in node.writes) + node.options[step.option].workspace
            most = max(most, outer + extra)
        border = reads | set(node.writes)
        others = sum(sizes[name] for name in held - border)
        for p, bytes_ in phantoms.items():
            own = layer is not None and p == layer.phantom and step.node == layer.backward
            others += 0 if own else bytes_
        for moment in profile:
            on_top = [
                name
                for name in moment.absent
                if (name in reads and name in kept_after) or (name in node.writes and name in held)
            ]
            most = max(most, others + moment.live + sum(sizes[name] for name in on_top))
        held |= {name for name in node.writes if not graph.datum(name).outside}
        if layer is not None and step.node == layer.forward and step.option < len(layer.options):
            option_of_phantom[layer.phantom] = step.option
        most = max(most, sum(sizes[name] for name in held))
    return most


@given(clustered_graphs(), st.data())
def test_the_moments_of_options_bound_the_flat_peak_from_above(example, data):
    level = condense(example.graph, example.clusters, example.options)
    runs = data.draw(valid_schedules(level.graph)).runs
    schedule = Schedule.from_runs(level.graph, runs)
    assert validate(example.graph, expand(level, schedule)).peak <= corrected_peak(level, schedule)


@given(training_graphs(min_forward=2))
def test_without_clusters_a_level_is_the_graph_itself(graph):
    level = condense(graph, ())
    assert level.graph == graph
    plain = Schedule.from_runs(graph, range(len(graph)))
    assert expand(level, plain) == plain


@given(clustered_graphs(), st.data())
def test_a_level_of_a_level_is_exact(example, data):
    """A part condensed by clusters of its own, expanded, is an option of its cluster: levels nest."""
    for cluster in example.clusters:
        block = part(example.graph, cluster)
        if not cluster.backward or len(cluster.forward) < 2:
            continue
        children = clusters(block, {"child": cluster.forward[:1]})
        inner = condense(block, children)
        schedule = data.draw(valid_schedules(inner.graph))
        option = layer_option(example.graph, cluster, expand(inner, schedule).runs)
        level = condense(example.graph, [cluster], {cluster.name: [option]})
        outer = data.draw(valid_schedules(level.graph))
        above, below = validate(level.graph, outer), validate(example.graph, expand(level, outer))
        assert below.time == above.time and below.peak <= above.peak


@given(training_graphs(min_forward=2, max_forward=5))
def test_equal_clusters_use_each_others_options(graph):
    forward = [node.name for node in graph.computes[: graph.loss]]
    found = clusters(graph, {f"c{i}": [name] for i, name in enumerate(forward)})
    classes = cluster_classes(graph, found)
    for one, i in zip(found, classes, strict=True):
        for other, j in zip(found, classes, strict=True):
            if i == j and one.backward:
                names = renaming(graph, one, other)
                moved = [translate(option, names) for option in plain_options(graph, one)]
                own = plain_options(graph, other)
                assert [(o.forward, o.backward, o.phantom) for o in moved] == [
                    (o.forward, o.backward, o.phantom) for o in own
                ]
                assert moved == list(own)
