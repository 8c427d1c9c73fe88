"""Each `G-…` rule refuses a wrong value at its birth, with its id, the place and the way out."""

import pytest

from remat.errors import IllFormed
from remat.ir import (
    GRAPH_RULES,
    Cluster,
    Compute,
    Data,
    Graph,
    GraphBuilder,
    Kind,
    Layer,
    LayerOption,
    Offload,
    Option,
    Phase,
    Run,
    Schedule,
    clusters,
    condense,
)
from remat.ir.chain import Chain

ONE = (Option(time=1),)
X = Data(name="x", size=0, kind=Kind.INPUT)
A = Data(name="a", size=4, writers=("F",))
F = Compute(name="F", phase=Phase.FORWARD, reads=("x",), writes=("a",), options=ONE)
L = Compute(name="L", phase=Phase.LOSS, reads=("a",), options=ONE)


def compute(name, phase=Phase.FORWARD, **more):
    return Compute(name=name, phase=phase, **{"options": ONE} | more)


def graph(*computes, data=(X, A), **more):
    return Graph(computes=computes or (F, L), data=data, **more)


def layered(**change):
    back = compute("B", Phase.BACKWARD, options=(Option(time=1),))
    layer = Layer(forward="F", backward="B", phantom="P", options=(LayerOption(forward=1, backward=1, phantom=0),))
    own = compute("F", reads=("x",), writes=("a",), options=layer.forward_options)
    nodes = {"F": own, "L": L, "B": back} | change
    return Graph(computes=tuple(nodes.values()), data=(X, A), layers=(layer,))


def entangled():
    b = GraphBuilder()
    b.data("x", 0, Kind.INPUT)
    for name in "abcd":
        b.data(name, 1)
    for name, reads, writes in (("A", "x", "a"), ("B", "a", "b"), ("C", "x", "c"), ("D", "c", "d")):
        b.forward(name, reads=[reads], writes=[writes])
    b.loss("L", reads=["b", "d"])
    return b.build()


BROKEN = {
    "G-INT": lambda: Data(name="a", size=1.0, writers=("F",)),
    "G-RANGE": lambda: Data(name="a", size=-1, writers=("F",)),
    "G-NAME": lambda: Data(name="a b", size=1, writers=("F",)),
    "G-TYPE": lambda: Data(name="a", size=1, kind="activation", writers=("F",)),
    "G-TUPLE": lambda: compute("F", reads=["x"]),
    "G-TWICE": lambda: graph(F, L, data=(X, A, A)),
    "G-OPT": lambda: compute("F", options=()),
    "G-KEEP": lambda: Data(name="t", size=1, kind=Kind.TANGENT, writers=("L",), keep=False),
    "G-INPUT": lambda: Data(name="x", size=1, kind=Kind.INPUT, writers=("F",)),
    "G-WRITER": lambda: Data(name="a", size=1),
    "G-INPLACE": lambda: compute("F", reads=("a",), writes=("a",)),
    "G-UNKNOWN": lambda: graph(F, compute("L", Phase.LOSS, reads=("b",))),
    "G-CYCLE": lambda: graph(
        compute("F", reads=("b",), writes=("a",)),
        compute("H", reads=("a",), writes=("b",)),
        L,
        data=(A, Data(name="b", size=1, writers=("H",))),
    ),
    "G-ORDER": lambda: graph(L, F),
    "G-LOSS": lambda: graph(F, L, compute("M", Phase.LOSS)),
    "G-PHASE": lambda: graph(F, L, compute("H")),
    "G-TANGENT": lambda: graph(F, L, data=(X, Data(name="a", size=4, kind=Kind.TANGENT, writers=("F",)))),
    "G-TWIN": lambda: graph(F, L, compute("B", Phase.BACKWARD, twin="L")),
    "G-LAYER": lambda: layered(B=compute("B", Phase.BACKWARD, options=(Option(time=2),))),
    "G-CLUSTER": lambda: clusters(entangled(), {"c": ["A", "L"]}),
    "G-CHAIN": lambda: Chain(entangled()),
    "G-COPY": lambda: condense(entangled(), ()).expand(Schedule((Run("A"), Offload("a")))),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_refused_with_its_id_and_the_way_out(rule):
    with pytest.raises(IllFormed) as caught:
        BROKEN[rule]()
    assert caught.value.rule == rule and caught.value.fix and str(caught.value).startswith(rule)


def test_every_rule_of_graphs_is_on_trial():
    assert set(BROKEN) == set(GRAPH_RULES)


def test_the_sound_graphs_of_this_file_are_sound():
    assert len(graph()) == 2 and len(layered()) == 3 and len(entangled()) == 5


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"c": ["A", "nobody"]}, "not a forward node"),
        ({"c": ["A"], "d": ["A"]}, "stands in 'c' and 'd'"),
        ({"c": []}, "no forward node"),
    ],
)
def test_wrong_groups_are_refused(groups, says):
    with pytest.raises(IllFormed, match=says):
        clusters(entangled(), groups)


def test_clusters_that_depend_on_each_other_are_refused_together():
    graph_ = entangled()
    crossed = [Cluster(name="one", forward=("A", "D")), Cluster(name="two", forward=("B", "C"))]
    for one in crossed:
        condense(graph_, [one])
    with pytest.raises(IllFormed, match="depend on each other"):
        condense(graph_, crossed)


def test_soft_dependencies_count_for_convexity_and_nowhere_else():
    b = GraphBuilder()
    b.data("x", 0, Kind.INPUT)
    for name in "abc":
        b.data(name, 1)
    b.forward("A", reads=["x"], writes=["a"])
    b.forward("B", reads=["a"], writes=["b"])
    b.forward("C", reads=["x"], writes=["c"], after=["B"])
    b.loss("L", reads=["a", "b", "c"])
    found = b.build()
    with pytest.raises(IllFormed, match="'B' lies between"):
        clusters(found, {"one": ["A", "C"]})
    level = condense(found, clusters(found, {"one": ["A"], "two": ["C"]}))
    assert level.graph.node("two").after == ("B",)


def test_a_child_lies_within_its_parent():
    with pytest.raises(IllFormed, match="reaches outside"):
        Cluster(name="c", forward=("A",), children=(Cluster(name="d", forward=("B",)),))
