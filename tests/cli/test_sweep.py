"""`remat sweep`: CSV, pictures, and wrong calls; `remat solve` over a link."""

import csv
import re

import pytest

from remat.cli import main
from remat.cli.sweep import spread
from remat.errors import RematError
from remat.ir import GraphBuilder, Kind, dump


@pytest.fixture
def path(tmp_path):
    b = GraphBuilder("deep")
    b.data("in", 0, Kind.INPUT)
    for i in range(8):
        b.data(f"a{i}", 100)
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "in"], writes=[f"a{i}"], time=10)
    b.data("t", 0, Kind.TANGENT)
    b.data("g8", 100, Kind.GRADIENT)
    b.loss("L", reads=["a7"], writes=["t", "g8"], time=1)
    for i in reversed(range(8)):
        b.data(f"g{i}", 100, Kind.GRADIENT)
        b.data(f"w{i}", 1, Kind.PARAM_GRAD)
        reads = [f"g{i + 1}", f"a{i}", *([f"a{i - 1}"] if i else [])]
        b.backward(f"B{i}", reads=reads, writes=[f"g{i}", f"w{i}"], time=20)
    dump(b.build(), tmp_path / "graph.json")
    return tmp_path / "graph.json"


def test_several_solvers_and_budgets_become_rows(path, tmp_path, capsys):
    picture = tmp_path / "curve.svg"
    call = [
        "sweep",
        str(path),
        "--solver",
        "rotor",
        "--solver",
        "chen",
        "--budgets",
        "100%:60%:3",
        "--draw",
        str(picture),
    ]
    assert main(call) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["solver"] for row in rows] == ["rotor"] * 3 + ["chen"] * 3
    rotor = [int(row["time"]) for row in rows[:3]]
    assert rotor == sorted(rotor, reverse=True) and rotor[0] > rotor[-1] >= 241
    assert all(int(row["peak"]) <= int(row["budget"]) for row in rows if row["peak"])
    text = picture.read_text()
    assert "<svg" in text and len(text) > 5000


def test_the_csv_goes_where_it_is_told(path, tmp_path):
    assert (
        main(["sweep", str(path), "--solver", "StoreAll()", "--budgets", "100%,4KiB", "-o", str(tmp_path / "out.csv")])
        == 0
    )
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["status"] for row in rows] == ["feasible"] * 2 or [row["status"] for row in rows] == ["optimal"] * 2


def test_a_link_is_handed_on_and_a_curve_without_copies_stands_beside(path, tmp_path, capsys):
    call = ["sweep", str(path), "--solver", "offload_only", "--budgets", "60%", "-o", str(tmp_path / "o.csv")]
    assert main([*call, "--link", "1000GB/s"]) == 0
    linked, bare = csv.DictReader((tmp_path / "o.csv").read_text().splitlines())
    assert linked["recomputation"] == "0"
    assert (bare["solver"], bare["time"]) == ("offload_only without copies", "")
    assert "offload_only: copies save time at" in capsys.readouterr().err
    assert main(call) == 3


def test_solve_keeps_a_budget_of_the_host(path, capsys):
    asked = ["solve", str(path), "--budget", "60%", "--solver", "offload_only", "--link", "1000GB/s"]
    assert main(asked) == 0
    needed = re.search("host +([0-9]+) B", capsys.readouterr().out)
    assert int(needed[1]) > 0
    assert main([*asked, "--host-budget", needed[1]]) == 0
    assert main([*asked, "--host-budget", "99"]) == 3
    assert main([*asked[:-2], "--host-budget", "99"]) == 1
    assert "C-LINK" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", ",", "90%:20%", "90%:20%:1", "a:b:3", "90%:2000:3", "100:20%:3"])
def test_what_is_no_budgets_is_refused(text):
    with pytest.raises(RematError, match="C-BUDGETS"):
        spread(text)


def test_ranges_are_even():
    assert spread("90%:30%:3") == ["90.000000%", "60.000000%", "30.000000%"]
    assert spread("100:300:3") == ["100", "200", "300"]


def test_what_is_no_solver_is_refused(path, capsys):
    assert main(["sweep", str(path), "--solver", "Linearise()"]) == 1
    assert "not a solver" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--link", "1GB/s")], ids=["bare", "linked"])
def test_no_time_is_said_and_draws_nothing(path, tmp_path, capsys, more):
    picture = tmp_path / "curve.svg"
    call = ["sweep", str(path), "--solver", "rotor", "--budgets", "80%,60%", "--within", "0", *more]
    assert main(call) == 3
    said = capsys.readouterr().err
    assert "rotor: stopped after 0 of 2 budgets\n" in said and "at any of these budgets" not in said
    assert main([*call, "--draw", str(picture)]) == 3 and not picture.exists()
    assert f"{picture} is not written: no budget was reached\n" in capsys.readouterr().err


def test_an_interruption_keeps_the_budgets_that_were_reached_and_says_what_lacks_budgets(path, capsys, monkeypatch):
    from remat.algorithms import StoreAll

    honest, calls = StoreAll.plan, []

    def plan(self, problem, clock, seed):
        calls.append(problem.budget)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return honest(self, problem, clock, seed)

    monkeypatch.setattr(StoreAll, "plan", plan)
    call = ["sweep", str(path), "--solver", "StoreAll()", "--solver", "rotor", "--budgets", "200%:100%:4"]
    assert main(call) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3 and len(calls) == 2
    assert "StoreAll(): stopped after 2 of 4 budgets\nrotor: stopped after 0 of 4 budgets\n" in err
