"""Where generated code waits for copies: right whatever the link does, and never more bytes than the replay's peak."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.errors import BudgetExceeded, RematError
from remat.exec._run.copying import Arrive, CopyBack, CopyOut, Forget, Free, actions_of
from remat.ir import Drop, Lane, Run, validate
from remat.testing.strategies import layered_graphs, scheduled, training_graphs


class Machine:
    """Runs actions, and knows nothing of times: copies end when they are waited for, and not before."""

    def __init__(self, graph, most):
        self.graph, self.most, self.live = graph, most, 0
        self.done = {datum.name: 0 for datum in graph.data if datum.outside}
        self.host, self.leaving, self.arriving = {}, deque(), set()
        self.copied = {Lane.TO_HOST: 0, Lane.TO_DEVICE: 0}

    def take(self, size):
        self.live += size
        assert self.live <= self.most

    def size(self, name):
        datum = self.graph.datum(name)
        return 0 if datum.outside else datum.size

    def run(self, step):
        node = self.graph.node(step.node)
        for name in node.reads:
            assert self.done[name] == len(self.graph.datum(name).writers) and name not in self.arriving
        extra = node.options[step.option].workspace + sum(map(self.size, node.writes))
        self.take(extra)
        self.live -= extra
        for name in node.writes:
            assert name not in self.arriving and name not in self.host
            if name not in self.done:
                self.take(self.size(name))
                self.done[name] = 0
            several = len(self.graph.datum(name).writers) > 1
            self.done[name] = self.done[name] + 1 if several else 1

    def act(self, action):
        name = None if isinstance(action, Run) else action.datum
        if isinstance(action, Run):
            self.run(action)
        elif isinstance(action, Drop):
            assert name not in self.arriving
            del self.done[name]
            self.live -= self.size(name)
        elif isinstance(action, CopyOut):
            assert name not in self.arriving and name not in self.host
            self.host[name] = self.done.pop(name)
            self.leaving.append(name)
            self.copied[Lane.TO_HOST] += 1
        elif isinstance(action, Free):
            assert self.leaving.popleft() == name
            self.live -= self.size(name)
        elif isinstance(action, CopyBack):
            assert name not in self.done
            self.take(self.size(name))
            self.done[name] = self.host[name]
            self.arriving.add(name)
            self.copied[Lane.TO_DEVICE] += 1
        elif isinstance(action, Arrive):
            self.arriving.remove(name)
        elif isinstance(action, Forget):
            del self.host[name]


def played(graph, schedule, cost):
    machine = Machine(graph, cost.peak)
    for action in actions_of(graph, schedule, cost):
        machine.act(action)
    for datum in graph.data:
        if datum.keep:
            assert machine.done[datum.name] == len(datum.writers)
    return machine


@given(scheduled(training_graphs(), copies=True), st.integers(0, 3))
def test_actions_read_what_has_arrived_and_hold_at_most_the_peak_of_the_replay(example, less):
    graph, schedule, link = example.graph, example.schedule, example.link
    free = validate(graph, schedule, None, link)
    try:
        cost = validate(graph, schedule, max(0, free.peak - less), link)
    except BudgetExceeded:
        cost = free
    machine = played(graph, schedule, cost)
    assert machine.host == {}
    counted = {lane: sum(copy.lane is lane for copy in cost.copies) for lane in machine.copied}
    assert all(machine.copied[lane] <= counted[lane] for lane in counted)
    assert [a for a in actions_of(graph, schedule, cost) if isinstance(a, Run)] == list(schedule.runs)


@given(scheduled(layered_graphs(), copies=True))
def test_layers_are_refused(example):
    cost = validate(example.graph, example.schedule, None, example.link)
    with pytest.raises(RematError, match="X-COPY"):
        actions_of(example.graph, example.schedule, cost)
