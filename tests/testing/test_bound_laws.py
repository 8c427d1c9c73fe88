"""`check_bound` on trial: every formulation of this library is a relaxation; deliberate faults in rows are seen."""

import pytest

from remat.algorithms._milp.linear import Builder
from remat.errors import BadArgument
from remat.ir import Graph, GraphBuilder, Kind, Schedule
from remat.testing import Formulation, LawBroken, Relaxation, check_bound
from remat.testing.library_relaxations import RELAXATIONS
from remat.testing.link_relaxations import LINK_RELAXATIONS
from remat.testing.relaxation import broken_row
from remat.testing.trace import Trace

from .planted.bounds import BOUNDS


def quiet(text):
    pass


@pytest.mark.parametrize("relaxation", [*RELAXATIONS, *LINK_RELAXATIONS], ids=repr)
def test_every_formulation_of_the_library_is_a_relaxation(relaxation):
    report = check_bound(relaxation, examples=70, say=quiet)
    assert report.tried["L-ROW"] > 100


@pytest.mark.parametrize("name", BOUNDS)
def test_a_fault_in_a_row_is_seen(name):
    with BOUNDS[name].planted() as relaxation, pytest.raises(LawBroken) as broken:
        check_bound(relaxation, examples=300, shrink=False, say=quiet)
    assert broken.value.law in ("L-ROW", "L-COST", "L-POSSIBLE", "L-RAISE")


def tiny() -> Graph:
    b = GraphBuilder("tiny")
    b.data("a", 3)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 1, Kind.PARAM_GRAD)
    b.forward("F", writes=["a"], time=2)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B", reads=["a", "t"], writes=["g"], time=1)
    return b.build()


class Saved(Relaxation):
    """A textbook bound of one datum: saved over the loss, or made again. Subclasses get it wrong."""

    def refuses(self, graph):
        return None if "a" in graph.data_index and "B" in graph.node_index else "not the graph of this test"

    def formulation(self, graph, place, budget):
        b = Builder()
        saved, again = b.new(1), b.new(1, cost=graph.node("F").option.time)
        b.row([(saved, -1), (again, -1)], -1)
        b.row([(saved, 3)], budget)
        return Formulation(linear=b.build(), base=graph.time)

    def point(self, formulation, trace, place):
        loss = trace.first["L"]
        return ["a" in trace.before[loss + 1], trace.runs_within("F", loss)]


def only(graph):
    from hypothesis import strategies as st

    return st.just(graph)


def test_an_authors_own_bound_is_checked_on_own_graphs():
    assert check_bound(Saved(), graphs=only(tiny()), examples=20, say=quiet).tried["L-COST"] == 120


@pytest.mark.parametrize(
    ("law", "changed"),
    [
        (
            "L-COST",
            {"formulation": lambda self, *args: Formulation(linear=Saved.formulation(self, *args).linear, base=99)},
        ),
        ("L-POSSIBLE", {"formulation": lambda self, *args: Formulation(linear=Builder().build(), impossible=True)}),
        ("L-POINT", {"point": lambda self, *args: [1]}),
        ("L-POINT", {"point": lambda self, *args: [2, 0]}),
        ("L-ROW", {"point": lambda self, *args: [0, 0]}),
        ("L-RAISE", {"needs": lambda self, *args: 1 // 0}),
        ("L-REFUSE", {"refuses": lambda self, graph: ""}),
    ],
)
def test_each_law_of_a_bound_is_tried(law, changed):
    wrong = type("Wrong", (Saved,), changed)()
    with pytest.raises(LawBroken) as broken:
        check_bound(wrong, graphs=only(tiny()), examples=3, say=quiet)
    assert broken.value.law == law and "remat graph 1" in broken.value.example


def test_a_broken_row_is_told_with_its_terms():
    graph = tiny()
    trace = Trace(graph, Schedule.from_runs(graph, ["F", "L", "B"]))
    formulation = Saved().formulation(graph, None, 2)
    assert broken_row(formulation.linear, Saved().point(formulation, trace, None), 0) == "row 1: +3·x0[1] <= 2 is 3"


class Halves(Saved):
    """Points between whole numbers in columns that hold either; as floats, whose whole parts satisfy every row."""

    def point(self, formulation, trace, place):
        return [value + 0.5 for value in super().point(formulation, trace, place)]


def test_a_value_between_whole_numbers_is_not_rounded():
    with pytest.raises(LawBroken, match="L-POINT") as broken:
        check_bound(Halves(), graphs=only(tiny()), examples=5, say=quiet)
    assert "Fraction(" in str(broken.value)


@pytest.mark.parametrize(
    ("member", "answer", "words"),
    [
        ("formulation", lambda *_: None, "the answer of formulation is None"),
        ("needs", lambda *_: 1.5, "the answer of needs is 1.5"),
        ("among", "stages", "among is 'stages'"),
    ],
)
def test_a_wrong_answer_of_a_bound_is_named(member, answer, words):
    wrong = type("Wrong", (Saved,), {member: answer})
    with pytest.raises(BadArgument, match=words):
        check_bound(wrong(), graphs=only(tiny()), examples=2, say=quiet)
