"""Bad input: each malformed graph or schedule gives one library error that names the place, and no other exception."""

import gzip
import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from remat.errors import MalformedFile, RematError
from remat.ir import (
    Graph,
    GraphBuilder,
    Kind,
    LayerOption,
    Run,
    Schedule,
    dumps,
    load,
    loads,
    print_text,
    read_joint_graph,
)


def tiny():
    b = GraphBuilder("tiny")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 4)
    b.data("h", 3)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 4, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=["a"], time=2, workspace=1)
    b.forward("H", reads=["a"], writes=["h"], time=2)
    b.loss("L", reads=["h"], writes=["t"], time=1)
    b.backward("B", reads=["t", "a"], writes=["g"], time=3, twin="F")
    option = LayerOption(
        forward=2, backward=3, phantom=2, backward_reads=("a",), forward_steps=(Run("F"),), backward_steps=(Run("B"),)
    )
    b.layer("F", "B", [option])
    return b.build()


GRAPH = tiny()
SCHEDULE = Schedule.from_runs(GRAPH, ["F", "H", "L", "B"])
F, H, L, B = range(4)
X, A, HH, T, G = range(5)


def node(i, **change):
    return lambda d: d["computes"][i].update(change)


def datum(i, **change):
    return lambda d: d["data"][i].update(change)


def option(**change):
    return lambda d: d["layers"][0]["options"][0].update(change)


def without(*path):
    def change(document):
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


MALFORMED_GRAPHS = {
    "negative size": (datum(A, size=-1), "G-RANGE", "$.data[1]"),
    "size above 2^63": (datum(A, size=1 << 63), "G-RANGE", "$.data[1]"),
    "size of many digits": (datum(A, size=10**400), "G-RANGE", "$.data[1]"),
    "size with a fraction": (datum(A, size=4.0), "F-TYPE", "$.data[1].size"),
    "size true": (datum(A, size=True), "F-TYPE", "$.data[1].size"),
    "sizes that add up beyond 2^63": (lambda d: [x.update(size=1 << 61) for x in d["data"][1:]], "G-RANGE", "$"),
    "negative time": (node(H, options=[[-2, 0]]), "G-RANGE", "$.computes[1].options[0]"),
    "option of one number": (node(H, options=[[2]]), "F-TYPE", "$.computes[1].options[0]"),
    "option of text": (node(H, options=[["2", 0]]), "G-INT", "$.computes[1].options[0]"),
    "no option": (node(H, options=[]), "G-OPT", "$.computes[1]"),
    "node without a phase": (without("computes", H, "phase"), "F-KEY", "$.computes[1]"),
    "unknown phase": (node(H, phase="sideways"), "F-VALUE", "$.computes[1].phase"),
    "unknown kind": (datum(A, kind="weight"), "F-VALUE", "$.data[1].kind"),
    "unknown datum read": (node(H, reads=["nothing"]), "G-UNKNOWN", "$"),
    "unknown writer": (datum(A, writers=["nobody"]), "G-UNKNOWN", "$"),
    "writer that does not write": (datum(A, writers=["H"]), "G-WRITER", "$"),
    "activation nobody writes": (datum(A, writers=[]), "G-WRITER", "$.data[1]"),
    "name of a number": (node(H, name=7), "F-TYPE", "$.computes[1].name"),
    "name with a blank": (node(H, name="H 2"), "G-NAME", "$.computes[1]"),
    "name that UTF-8 cannot hold": (datum(HH, name="\ud800"), "G-NAME", "$.data[2]"),
    "read of a list": (node(H, reads=[["a"]]), "G-TUPLE", "$.computes[1]"),
    "read of an object": (node(H, reads=[{"a": 1}]), "G-TUPLE", "$.computes[1]"),
    "read twice": (node(H, reads=["a", "a"]), "G-TWICE", "$.computes[1]"),
    "reads and writes one datum": (node(H, reads=["a", "h"]), "G-INPLACE", "$.computes[1]"),
    "duplicate name": (node(L, name="H"), "G-TWICE", "$"),
    "datum named as a node": (datum(X, name="F"), "G-TWICE", "$"),
    "cycle": (lambda d: d["computes"][F].update(reads=["h"]), "G-CYCLE", "$"),
    "nodes out of order": (lambda d: d["computes"].insert(0, d["computes"].pop(1)), "G-ORDER", "$"),
    "no loss": (node(L, phase="forward"), "G-LOSS", "$"),
    "two losses": (node(H, phase="loss"), "G-LOSS", "$"),
    "backward before the loss": (lambda d: d["computes"].insert(2, d["computes"].pop(3)), "G-ORDER", "$"),
    "missing twin": (node(B, twin="nobody"), "G-TWIN", "$"),
    "twin that is no forward node": (node(B, twin="L"), "G-TWIN", "$"),
    "twin of a forward node": (node(H, twin="F"), "G-TWIN", "$"),
    "tangent that is not kept": (datum(T, keep=False), "G-KEEP", "$.data[3]"),
    "layer of an unknown node": (lambda d: d["layers"][0].update(backward="nobody"), "G-UNKNOWN", "$.layers[0]"),
    "layer without options": (lambda d: d["layers"][0].update(options=[]), "G-LAYER", "$.layers[0]"),
    "layer of two forward nodes": (lambda d: d["layers"][0].update(backward="H"), "F-KEY", "$.computes[1]"),
    "layer's node with options of its own": (node(F, options=[[1, 0]]), "F-KEY", "$.computes[0]"),
    "option that reads an unknown datum": (option(backward_reads=["nothing"]), "G-UNKNOWN", "$"),
    "option with half a sub-schedule": (option(backward_steps=[]), "G-OPT", "$.layers[0].options[0]"),
    "option without a time": (without("layers", 0, "options", 0, "forward"), "F-KEY", "$.layers[0].options[0]"),
    "profile of text": (option(forward_profile=["much"]), "F-TYPE", "$.layers[0].options[0].forward_profile[0]"),
    "profile of a negative size": (
        option(forward_profile=[[-1, []]]),
        "G-RANGE",
        "$.layers[0].options[0].forward_profile[0]",
    ),
    "unknown key": (node(H, colour="red"), "F-KEY", "$.computes[1]"),
    "computes that are no list": (lambda d: d.update(computes={}), "F-TYPE", "$.computes"),
    "node that is no object": (lambda d: d["computes"].append(3), "F-TYPE", "$.computes[4]"),
    "wrong version": (lambda d: d.update(format="remat-graph/9"), "F-FORMAT", "$.format"),
    "format of a list": (lambda d: d.update(format=[1]), "F-FORMAT", "$.format"),
    "no format": (without("format"), "F-FORMAT", "$.format"),
    "name missing": (without("name"), "F-KEY", "$"),
}


@pytest.mark.parametrize("name", MALFORMED_GRAPHS)
def test_malformed_graph_gives_one_error_that_names_the_place(name):
    change, rule, where = MALFORMED_GRAPHS[name]
    document = json.loads(dumps(GRAPH))
    change(document)
    with pytest.raises(MalformedFile) as caught:
        loads(json.dumps(document))
    assert (caught.value.rule, caught.value.where) == (rule, where), str(caught.value)
    assert where in str(caught.value) and caught.value.fix


STEPS = {
    "unknown step": ["jump", "F"],
    "empty step": [],
    "step that is text": "run F",
    "step of a number": [1, "F"],
    "step whose kind is a list": [["run"], "F"],
    "run of nothing": ["run"],
    "run of a number": ["run", 3],
    "run of a list": ["run", ["F"]],
    "run by option text": ["run", "F", "1"],
    "run by option true": ["run", "F", True],
    "run by a negative option": ["run", "F", -1],
    "drop of two data": ["drop", "a", "h"],
    "drop of null": ["drop", None],
    "null": None,
}


@pytest.mark.parametrize("name", STEPS)
def test_malformed_step_gives_one_error_that_names_the_step(name):
    document = json.loads(dumps(SCHEDULE))
    document["steps"].insert(1, STEPS[name])
    with pytest.raises(MalformedFile) as caught:
        loads(json.dumps(document))
    assert caught.value.where.startswith("$.steps[1]"), str(caught.value)


TEXTS = {
    "empty": b"",
    "not UTF-8": b'{"format": "\xff"}',
    "truncated": dumps(GRAPH)[:-20].encode(),
    "truncated gzip": gzip.compress(dumps(GRAPH).encode())[:-12],
    "gzip of something else": b"\x1f\x8bnonsense",
    "nan": b'{"format": NaN}',
    "a key twice": b'{"format": 1, "format": 2}',
    "a number of many digits": b'{"format": ' + b"9" * 6000 + b"}",
    "nested too deep": b"[" * 100_000,
    "a list": b"[]",
    "byte order mark": b"\xef\xbb\xbf{}",
    "text of another version": b"remat graph 2\n",
    "text with an unknown line": b"remat graph 1\nnode F\n",
    "text with a broken quote": b'remat graph 1\ngraph "a\n',
    "text with a size that is none": b"remat graph 1\ndata a many\n",
    "text with no arrow": b"remat graph 1\nforward F : x\n",
    "text with an unknown step": b"remat schedule 1\njump a\n",
    "text with an option of no layer": b"remat graph 1\noption time 1 1 phantom 0 workspace 0 0\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_malformed_file_gives_one_error_that_names_the_place(name, tmp_path):
    path = tmp_path / "bad.json"
    path.write_bytes(TEXTS[name])
    with pytest.raises(MalformedFile) as caught:
        load(path)
    assert caught.value.where and caught.value.rule.startswith("F-")


def test_thirty_kinds_at_least():
    assert len(MALFORMED_GRAPHS) + len(STEPS) + len(TEXTS) >= 30


# -- fuzz --------------------------------------------------------------------------------------------------------------

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.sampled_from(["F", "H", "L", "B", "a", "x", "run", "drop", "forward", "input", "\ud800", "", " "]),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


def places(document, path=()):
    yield path
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in children:
        yield from places(value, (*path, key))


@settings(suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from([GRAPH, SCHEDULE]), st.integers(1, 3))
def test_the_reader_raises_library_errors_only(data, thing, changes):
    document = json.loads(dumps(thing))
    for _ in range(changes):
        path = data.draw(st.sampled_from(list(places(document))))
        if not path:
            continue
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        match data.draw(st.sampled_from(["put", "delete", "double"])):
            case "put":
                holder[path[-1]] = data.draw(VALUES)
            case "delete":
                del holder[path[-1]]
            case _ if isinstance(holder, list):
                holder.append(holder[path[-1]])
    try:
        read = loads(json.dumps(document))
    except MalformedFile as error:
        assert error.where and str(error)
    else:
        assert isinstance(read, (Graph, Schedule)) and loads(dumps(read)) == read


JOINT = {
    "schema": "remat-joint-graph/1",
    "name": "j",
    "data": [["a", 4, "activation"], ["l", 1, "loss"], ["g", 4, "param_grad"]],
    "nodes": [
        ["f", 0, 2, 1, [], [0], 5, 0, -1, "op"],
        ["l", 1, 1, 0, [0], [1], 6, 0, -1, "op"],
        ["b", 2, 3, 0, [0], [2], 5, 0, 1, "op"],
    ],
}


@settings(suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, 2))
def test_the_reader_of_joint_graphs_raises_library_errors_only(tmp_path_factory, data, changes):
    document = json.loads(json.dumps(JOINT))
    for _ in range(changes):
        path = data.draw(st.sampled_from([one for one in places(document) if one]))
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = data.draw(VALUES)
    file = tmp_path_factory.mktemp("joint") / "j.json"
    file.write_text(json.dumps(document))
    try:
        graph = read_joint_graph(file)
    except MalformedFile as error:
        assert error.where
    else:
        assert changes or graph.node("b.2").twin == "f.0"


@pytest.mark.parametrize(("node", "field", "place"), [(0, 5, [-3]), (1, 4, [-1]), (2, 1, -1), (2, 4, [True])])
def test_places_of_a_joint_graph_are_not_counted_from_the_end(tmp_path, node, field, place):
    document = json.loads(json.dumps(JOINT))
    document["nodes"][node][field] = place
    (tmp_path / "j.json").write_text(json.dumps(document))
    with pytest.raises(MalformedFile, match="is not a place"):
        read_joint_graph(tmp_path / "j.json")


@settings(suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=60))
@example(b"\x1f\x8b")
def test_any_bytes_raise_library_errors_only(raw):
    with pytest.raises(MalformedFile):
        loads(raw)


@settings(suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from([GRAPH, SCHEDULE]))
def test_the_text_reader_raises_library_errors_only(data, thing):
    words = print_text(thing).split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(words) - 1))
        new = data.draw(
            st.sampled_from(
                ["", ":", "->", ";", "time", "1", "-1", '"', '"a"', "\n", "layer", "option", "after", "9" * 30, "keep"]
            )
        )
        words[at : at + data.draw(st.integers(0, 1))] = [new]
    try:
        read = loads(" ".join(words))
    except RematError as error:
        assert isinstance(error, MalformedFile) and error.where
    else:
        assert loads(print_text(read)) == read
