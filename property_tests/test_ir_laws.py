"""Laws of graphs, schedules, their forms and their cost."""

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from remat.ir import (
    Drop,
    Graph,
    Phase,
    Run,
    Schedule,
    condense,
    dumps,
    loads,
    node_classes,
    parse_text,
    print_text,
    validate,
)
from remat.testing.strategies import clustered_graphs, scheduled, training_graphs


def renamed(thing, names):
    if isinstance(thing, Schedule):
        steps = (
            Run(names[s.node], s.option) if isinstance(s, Run) else evolve(s, datum=names[s.datum]) for s in thing.steps
        )
        return Schedule(tuple(steps))
    many = lambda row: tuple(names[one] for one in row)  # noqa: E731
    layers = tuple(
        evolve(
            one,
            forward=names[one.forward],
            backward=names[one.backward],
            phantom=names[one.phantom],
            options=tuple(evolve(o, backward_reads=many(o.backward_reads)) for o in one.options),
        )
        for one in thing.layers
    )
    computes = tuple(
        evolve(
            n,
            name=names[n.name],
            reads=many(n.reads),
            writes=many(n.writes),
            twin=n.twin and names[n.twin],
            after=many(n.after),
        )
        for n in thing.computes
    )
    data = tuple(evolve(d, name=names[d.name], writers=many(d.writers)) for d in thing.data)
    return Graph(name=thing.name, computes=computes, data=data, layers=layers)


@given(scheduled(), st.randoms(use_true_random=False))
def test_cost_does_not_depend_on_names(example, random):
    graph = example.graph
    old = [one.name for one in (*graph.computes, *graph.data)] + [layer.phantom for layer in graph.layers]
    new = [f"v{i}" for i in range(len(old))]
    random.shuffle(new)
    names = dict(zip(old, new, strict=True))
    assert validate(renamed(graph, names), renamed(example.schedule, names)) == validate(graph, example.schedule)


@given(scheduled(), st.randoms(use_true_random=False))
def test_cost_does_not_depend_on_the_order_of_drops_between_two_runs(example, random):
    shuffled, block = [], []
    for step in (*example.schedule.steps, None):
        if isinstance(step, Drop):
            block.append(step)
            continue
        random.shuffle(block)
        shuffled += [*block, step]
        block = []
    before, after = validate(example.graph, example.schedule), validate(example.graph, Schedule(tuple(shuffled[:-1])))
    assert (after.time, after.recomputation, after.peak) == (before.time, before.recomputation, before.peak)


@given(scheduled())
def test_drops_placed_by_from_runs_are_valid_and_none_are_better(example):
    placed = Schedule.from_runs(example.graph, example.schedule.runs)
    given_, best = validate(example.graph, example.schedule), validate(example.graph, placed)
    assert best.time == given_.time and best.peak <= given_.peak


@given(scheduled())
def test_a_budget_of_the_peak_fits_and_the_timeline_reaches_it(example):
    cost = validate(example.graph, example.schedule)
    assert validate(example.graph, example.schedule, cost.peak) == cost
    assert cost.timeline[cost.peak_step] == cost.peak == max(cost.timeline)
    assert len(cost.timeline) == len(cost.host_timeline) == len(example.schedule.steps)
    assert cost.time == sum(one.end - one.start for one in cost.computations) and not cost.copies


@given(scheduled(), clustered_graphs())
def test_forms_come_back_as_they_went(example, clustered):
    level = condense(clustered.graph, clustered.clusters, clustered.options).graph
    for thing in (example.graph, example.schedule, level):
        assert parse_text(print_text(thing)) == thing
        assert loads(dumps(thing)) == thing
        assert loads(print_text(thing).encode()) == thing


@given(training_graphs(contributions=False, random=False), st.data())
def test_inserting_or_removing_a_rerun_keeps_every_rule_but_the_budgets(graph, data):
    """On flat graphs with one writer per datum: then only the peak can be wrong."""
    runs = list(Schedule.from_runs(graph, range(len(graph))).runs)
    place = data.draw(st.integers(0, len(runs)))
    able = [run for run in runs[:place] if graph.node(run.node).phase is not Phase.LOSS]
    if not able:
        return
    again = data.draw(st.sampled_from(able))
    longer = [*runs[:place], again, *runs[place:]]
    if any(len(datum.writers) > 1 for datum in graph.data):
        return  # tied parameters are a sum
    cost = validate(graph, Schedule.from_runs(graph, longer))
    assert cost.reruns == 1 and cost.recomputation == graph.node(again.node).option.time
    assert validate(graph, Schedule.from_runs(graph, runs)).reruns == 0


@given(training_graphs())
def test_equal_nodes_have_equal_costs_and_data(graph):
    classes = node_classes(graph)
    assert list(dict.fromkeys(classes)) == list(range(len(set(classes))))
    sizes = {datum.name: datum.size for datum in graph.data}
    for one, other, i, j in zip(graph.computes, graph.computes[1:], classes, classes[1:], strict=False):
        if i == j:
            assert one.option == other.option
            assert [sizes[name] for name in one.writes] == [sizes[name] for name in other.writes]
