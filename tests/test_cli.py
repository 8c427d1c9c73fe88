"""The command line: exit codes, one clear message, and files in and out."""

import gzip
import json
import pickle

import pytest

from remat.cli import main
from remat.ir import Drop, Offload, Prefetch, Run, Schedule, dump, load
from tests.graphs import tiny_step


@pytest.fixture
def files(tmp_path):
    graph = tiny_step()
    plain = Schedule.from_runs(graph, ["F", "H", "L", "B"])
    copied = (Run("F"), Run("H"), Offload("a"), Run("L"), Drop("h"), Prefetch("a"), Run("B"), Drop("a"))
    dump(graph, tmp_path / "g.json.gz")
    dump(graph, tmp_path / "g.remat")
    dump(plain, tmp_path / "s.json")
    dump(Schedule(copied), tmp_path / "c.remat")
    dump(Schedule(plain.steps[1:]), tmp_path / "bad.json")
    return tmp_path


def call(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_validate_prints_the_cost(files, capsys):
    code, out, err = call(capsys, "validate", files / "g.json.gz", files / "s.json", "--budget", "9")
    assert code == 0 and not err
    assert "time       8 ns" in out and "peak       9 B" in out


def test_validate_names_the_broken_rule_and_step(files, capsys):
    code, out, err = call(capsys, "validate", files / "g.remat", files / "bad.json")
    assert code == 1 and not out
    assert err.startswith("error: MissingRead S-READ at step 0") and err.count("\n") == 1


def test_validate_refuses_a_budget_that_is_exceeded(files, capsys):
    code, _, err = call(capsys, "validate", files / "g.remat", files / "s.json", "--budget", "8")
    assert code == 1 and "S-MEM" in err and "1 B over" in err


@pytest.mark.parametrize(
    ("link", "time"),
    [("1GB/s", 15), ("1GB/s,3ns", 21), ("unbounded", 8), ("1GB/s:unbounded", 11), ("2GB/s,1ns:1GB/s", 14)],
)
def test_validate_replays_copies_over_a_link(files, capsys, link, time):
    code, out, _ = call(capsys, "validate", files / "g.remat", files / "c.remat", "--link", link)
    assert code == 0 and f"time       {time} ns" in out


@pytest.mark.parametrize("link", ["fast", "12", "12GB/s,soon", "1GB/s:1GB/s:1GB/s"])
def test_a_link_that_is_none_is_refused(files, capsys, link):
    code, _, err = call(capsys, "validate", files / "g.remat", files / "c.remat", "--link", link)
    assert code == 1 and err.startswith("error: ") and "Fix:" in err


def test_solve_writes_a_schedule_that_validates(files, capsys):
    code, out, _ = call(
        capsys,
        "solve",
        files / "g.remat",
        "--budget",
        "100%",
        "--solver",
        "StoreAll() | Exhaustive()",
        "-o",
        files / "o.remat",
    )
    assert code == 0 and "status     optimal" in out
    assert isinstance(load(files / "o.remat"), Schedule)
    assert call(capsys, "validate", files / "g.remat", files / "o.remat", "--budget", "9")[0] == 0


def test_solve_can_be_asked_what_it_would_do(files, capsys):
    asked = "best(StoreAll(), Exhaustive().within(3)) | Rotor().when(nodes_at_most(1))"
    code, out, _ = call(capsys, "solve", files / "g.remat", "--budget", "9", "--solver", asked, "--explain")
    assert code == 0
    head, all_of, keep, limit, exact, refused = out.splitlines()
    assert head == "in turn, until there is a plan or none can exist:"
    assert (all_of, keep) == ("  all, and the best of them:", "    StoreAll()")
    assert limit == "    for 3 s at most:"
    assert exact.startswith("      Exhaustive(")
    assert "refuses: nodes_at_most(1) does not hold" in refused


def test_solve_claims_no_bound_where_the_solver_gives_none(files, capsys):
    code, out, _ = call(capsys, "solve", files / "g.remat", "--budget", "3", "--solver", "PerLayerCheckpoint()")
    assert code == 3 and "bound      none\n" in out and "claimed" not in out


def test_solve_says_when_nothing_fits(files, capsys):
    code, out, _ = call(capsys, "solve", files / "g.remat", "--budget", "3", "--solver", "Exhaustive()")
    assert (
        code == 3 and "status     infeasible" in out and "no schedule fits (claimed)" in out
    )  # exact, but without a proof


@pytest.mark.parametrize(
    "expression",
    [
        "Nobody()",
        "StoreAll(",
        "__import__('os')",
        "StoreAll().plan",
        "(lambda: 0)()",
        "1",
        "StoreAll(depth=1)",
        "[StoreAll()][0]",
    ],
)
def test_an_expression_that_is_no_solver_is_refused_and_never_run(files, capsys, expression):
    code, out, err = call(capsys, "solve", files / "g.remat", "--budget", "9", "--solver", expression)
    assert code == 1 and not out and err.startswith("error: ") and "Fix:" in err


def test_show_prints_draws_and_exports(files, capsys):
    pytest.importorskip("matplotlib")
    words = ["--dot", files / "g.dot", "--memory", files / "m.png", "--gantt", files / "c.svg"]
    code, out, _ = call(capsys, "show", files / "c.remat", "--graph", files / "g.remat", *words[2:], "--link", "1GB/s")
    assert code == 0 and "offload    1" in out
    assert (files / "m.png").read_bytes()[:4] == b"\x89PNG" and "<svg" in (files / "c.svg").read_text()
    code, out, _ = call(capsys, "show", files / "g.json.gz", *words[:2])
    assert code == 0 and "forward    2 nodes" in out
    assert (files / "g.dot").read_text().startswith("digraph {")


def test_show_writes_the_page_and_the_files_of_other_tools(files, capsys):
    words = ["--html", files / "p.html", "--trace", files / "t.json.gz", "--snapshot", files / "s.pickle"]
    code, out, _ = call(
        capsys, "show", files / "c.remat", "--graph", files / "g.remat", *words, "--link", "1GB/s", "--budget", "8"
    )
    assert code == 0 and "passed by 1 B" in out
    assert "8 B, exceeded" in (files / "p.html").read_text()
    assert json.loads(gzip.decompress((files / "t.json.gz").read_bytes()))["otherData"]["idle_ns"] == 7
    assert len(pickle.loads((files / "s.pickle").read_bytes())["segments"]) == 1


def test_show_draws_the_options_of_a_graph_with_layers(files, capsys):
    pytest.importorskip("matplotlib")
    layers = files / "l.json"
    call(capsys, "apply", "Condense(partition=Segments(size=2))", files / "g.remat", "-o", layers)
    code, _, err = call(capsys, "show", layers, "--fronts", files / "f.svg")
    assert (code, err) == (0, "") and "<svg" in (files / "f.svg").read_text()
    code, _, err = call(capsys, "show", files / "g.remat", "--fronts", files / "n.svg")
    assert code == 1 and "V-EMPTY" in err and not (files / "n.svg").exists()


def test_show_writes_nothing_before_all_is_ready(files, capsys):
    pytest.importorskip("matplotlib")
    empty = "remat graph 1\ngraph e\ndata a 0\ndata t 0 tangent\nforward F : -> a ; time 1\nloss L : a -> t ; time 1\n"
    (files / "e.remat").write_text(empty)
    before = set(files.iterdir())
    words = ["--dot", files / "e.dot", "--gantt", files / "e.svg", "--html", files / "e.html"]
    code, _, err = call(capsys, "show", files / "e.remat", *words)
    assert code == 1 and "V-EMPTY" in err and set(files.iterdir()) == before


def test_show_prints_the_text_form(files, capsys):
    code, out, _ = call(capsys, "show", files / "g.json.gz", "--text")
    assert code == 0 and out == (files / "g.remat").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["validate", "nowhere.json", "nowhere.json"], "nowhere.json"),
        (["validate", "s.json", "s.json"], "holds a schedule"),
        (["validate", "g.remat", "g.remat"], "holds a graph"),
        (["show", "s.json", "--memory", "m.png"], "its graph is not named"),
        (["show", "g.remat", "--graph", "s.json"], "C-GRAPH: g.remat holds a graph, and --graph names"),
        (["show", "s.json", "--graph", "s.json"], "s.json holds a schedule, not a graph"),
        (["show", "s.json", "--dot", "x.dot"], "draws graphs"),
        (["show", "s.json", "--fronts", "x.svg"], "draws graphs"),
        (["show", "s.json", "--html", "x.html"], "its graph is not named"),
        (["solve", "g.remat", "--budget", "some"], "U-SIZE"),
    ],
)
def test_wrong_files_give_one_message(files, capsys, words, says, monkeypatch):
    monkeypatch.chdir(files)
    code, out, err = call(capsys, *words)
    assert code == 1 and says in err and err.startswith("error: ")
    assert "Traceback" not in out + err


def test_a_truncated_file_is_named_by_place(files, capsys):
    text = json.dumps({"format": "remat-schedule/1", "steps": [["run", "F"], ["jump"]]})
    (files / "x.json").write_text(text)
    code, _, err = call(capsys, "validate", files / "g.remat", files / "x.json")
    assert code == 1 and "$.steps[1]" in err


def test_a_file_of_another_version_is_named_by_its_version(files, capsys):
    (files / "x.json").write_text('{"format": "remat-graph/9"}')
    code, _, err = call(capsys, "show", files / "x.json")
    assert code == 1 and "remat-graph/9" in err


def test_a_wrong_call_has_its_own_exit_code(capsys):
    assert call(capsys, "solve")[0] == 2
