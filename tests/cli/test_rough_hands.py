"""The command line refuses early, prints one short message, and obeys no name."""

import gzip
import io
import json
import os
import sys

import pytest

from remat.cli import main
from remat.cli.outputs import check_files
from remat.cli.sweep import MOST_BUDGETS
from remat.cli.words import LONGEST_LINE, LONGEST_MESSAGE, plain
from remat.errors import BadArgument, MalformedFile, ProofRefused
from remat.ir import (
    Drop,
    GraphBuilder,
    Kind,
    Link,
    Offload,
    PlanFile,
    Prefetch,
    Run,
    SavedPlan,
    Schedule,
    dump,
    json_document,
    load,
    parse_text,
    write_plans,
)
from remat.proof.document import Proof

NAMES = {"plain": "a", "colour": "a\x1b[31m", "turned": "a\u202egnp", "bell": "a\x07"}


@pytest.fixture
def files(tmp_path, monkeypatch):
    b = GraphBuilder("tiny")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 4)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 4, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=["a"], time=2)
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B", reads=["t", "a"], writes=["g"], time=3, twin="F")
    graph = b.build()
    dump(graph, tmp_path / "g.json")
    dump(Schedule.from_runs(graph, ["F", "L", "B"]), tmp_path / "s.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


LONG_WORK = [
    ["solve", "g.json", "--budget", "9", "-o"],
    ["solve", "g.json", "--budget", "9", "--proof"],
    ["prove", "g.json", "--budget", "9", "-o"],
    ["sweep", "g.json", "-o"],
    ["sweep", "g.json", "--draw"],
    ["show", "g.json", "--memory"],
    ["show", "g.json", "--dot"],
    ["show", "g.json", "--fronts"],
    ["show", "g.json", "--html"],
    ["show", "g.json", "--trace"],
    ["show", "g.json", "--snapshot"],
    ["apply", "Linearise()", "g.json", "-o"],
    ["capture", "no.module:there", "-o"],
    ["dtr", "log", "lstm", "-o"],
    ["dtr", "curves", "nowhere.log", "-o"],
]


@pytest.mark.parametrize("words", LONG_WORK, ids=lambda words: " ".join(words[::2]))
def test_outputs_are_looked_at_before_anything_is_read(files, capsys, words, monkeypatch):
    def never(*_):
        pytest.fail("work began")

    for module in ("solve", "prove", "sweep", "apply", "show"):
        for name in ("read_graph", "read"):
            monkeypatch.setattr(f"remat.cli.{module}.{name}", never, raising=False)
    (files / "taken").mkdir()
    for place, reason in (
        ("no/such/folder.png", "there is no folder"),
        ("taken", "it is a folder"),
        ("/dev/null", "regular"),
    ):
        code, out, err = call(capsys, *words, place)
        assert (
            code == 1 and not out and err.startswith(f"error: C-OUTPUT: {place} cannot be written: ") and reason in err
        )


def test_a_folder_that_takes_no_files_and_an_output_named_twice_are_refused(files, monkeypatch):
    check_files(files / "new.json", None, files / "g.json")
    with pytest.raises(BadArgument, match="named for two outputs"):
        check_files(files / "new.json", files / "new.json")
    with pytest.raises(BadArgument, match="named for two outputs"):
        check_files(files / "new.json", files / ".." / files.name / "new.json")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BadArgument, match="takes no files"):
        check_files(files / "new.json")


@pytest.mark.parametrize("words", [words for words in LONG_WORK if "g.json" in words], ids=" ".join)
def test_an_output_that_the_command_reads_is_refused_and_stays_as_it_is(files, capsys, words):
    before = (files / "g.json").read_bytes()
    for place in ("g.json", "../" + files.name + "/g.json"):
        code, out, err = call(capsys, *words, place)
        says = f"error: C-OUTPUT: {place} is read by this command, and would be lost. Fix: name another file.\n"
        assert (code, out, err) == (1, "", says)
    assert (files / "g.json").read_bytes() == before


@pytest.mark.parametrize("words", [["sweep", "--draw"], ["show", "--memory"], ["show", "--gantt"]])
def test_a_picture_that_is_none_is_refused_first(files, capsys, words):
    code, out, err = call(capsys, words[0], "nowhere.json", words[1], "x.foo")
    assert code == 1 and not out and err.startswith("error: C-PICTURE: x.foo does not end like a picture.")


def test_a_bomb_is_refused_by_a_limit(files, capsys, monkeypatch):
    monkeypatch.setattr(json_document, "LARGEST_FILE", 1 << 20)
    for name, raw in (("bomb.json.gz", gzip.compress(b" " * (1 << 24))), ("endless.json", b" " * ((1 << 20) + 1))):
        (files / name).write_bytes(raw)
        with pytest.raises(MalformedFile, match=r"F-SIZE: at the file: more than 1\.00 MiB"):
            load(files / name)
        with pytest.raises(ProofRefused, match=r"more than 1\.00 MiB"):
            Proof.load(files / name)
        code, out, err = call(capsys, "show", files / name)
        assert code == 1 and not out and "F-SIZE" in err
    (files / "fits.json.gz").write_bytes(gzip.compress((files / "g.json").read_bytes()))
    assert load(files / "fits.json.gz") == load(files / "g.json")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "plain"])
def test_names_do_not_command_the_terminal(files, capsys, name, monkeypatch):
    document = json.loads((files / "g.json").read_text().replace('"F"', json.dumps(NAMES[name])))
    (files / "odd.json").write_text(json.dumps(document))
    assert NAMES[name] in {node.name for node in load(files / "odd.json").computes}
    for words in (["validate", "odd.json", "s.json"], ["show", "odd.json"], ["show", "odd.json", "--budget", "9"]):
        _, out, err = call(capsys, *words)
        assert plain(out + err) == out + err
    raw = call(capsys, "show", "odd.json", "--text")[1]
    assert NAMES[name] in raw
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert plain(NAMES[name]) in call(capsys, "show", "odd.json", "--text")[1]


def test_escapes_leave_what_is_shown():
    assert plain("blocks.0 — größer\t≤ 3\n日本") == "blocks.0 — größer\t≤ 3\n日本"
    assert plain("\x1b\r\x9b\u2028\U000e0041") == "\\x1b\\x0d\\x9b\\u2028\\U000e0041"


@pytest.mark.parametrize(
    "text",
    [
        "90%:20%:1000000000",
        f"90%:20%:{'9' * 5000}",
        "1," * (MOST_BUDGETS + 1) + "1",
        "90%:inf%:8",
        "nan:1:8",
        "1:1.7e308:20",
        "1.7e308:-1.7e308:3",
        "9:8:²",
        "",
    ],
)
def test_endless_lists_of_budgets_are_refused(files, capsys, text):
    code, out, err = call(capsys, "sweep", "g.json", "--budgets", text)
    assert code == 1 and not out and err.startswith("error: C-BUDGETS") and len(err) < 300


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 5000 + "%", "0" * 101])
def test_a_number_without_end_is_no_budget(files, capsys, text):
    code, _, err = call(capsys, "solve", "g.json", "--budget", text)
    assert code == 1 and "U-SIZE" in err and len(err) < 300
    assert call(capsys, "dtr", "curves", "x.log", "--budgets", text)[2].startswith("error: C-BUDGETS")


@pytest.mark.parametrize("link", [f"1GB/s,{'9' * 5000}", f"{'x' * 3000}/s", f"1GB/s,{'9' * 20}us"])
def test_a_link_without_end_is_none(files, capsys, link):
    code, _, err = call(capsys, "validate", "g.json", "s.json", "--link", link)
    assert code == 1 and ("C-LINK" in err or "U-SIZE" in err) and len(err) < 300


@pytest.mark.parametrize("factory", [".x:y", "..:x", "broken:f", "leaving:f"])
def test_a_module_that_cannot_be_imported_is_no_factory(files, capsys, factory, monkeypatch):
    (files / "broken.py").write_text("def f(:\n")
    (files / "leaving.py").write_text("import sys\nsys.exit(7)\n")
    monkeypatch.syspath_prepend(str(files))
    code, _, err = call(capsys, "inspect", factory)
    assert code == 1 and err.startswith("error: C-FACTORY") and len(err) < 400


def test_what_the_system_refuses_has_a_rule_and_a_way_out(files, capsys):
    for place in ("nowhere.json", "."):
        code, out, err = call(capsys, "solve", place, "--budget", "9")
        assert code == 1 and not out and err.startswith(f"error: C-FILE: {place}: ") and "Fix: " in err


def test_a_text_form_of_another_version_is_called_so(files, capsys):
    (files / "next.remat").write_text("remat graph 2\n")
    code, _, err = call(capsys, "show", "next.remat")
    assert code == 1 and "F-FORMAT" in err and "remat graph 1" in err


def test_plans_with_copies_are_replayed_over_their_link(files, capsys):
    text = (
        "remat graph 1\ngraph moved\ndata a 8\ndata b 8\ndata t 1 tangent\nforward F : -> a ; time 9\n"
        "forward G : -> b ; time 9\nloss L : b -> t ; time 9\nbackward B : a t -> ; time 1 run_once\n"
    )
    graph = parse_text(text)
    steps = (Run("F"), Offload("a"), Run("G"), Run("L"), Drop("b"), Prefetch("a"), Run("B"))
    link = Link.symmetric(gb_per_s=1)
    plan = SavedPlan(fingerprint="0" * 64, tensors=(), graph=graph, schedule=Schedule(steps), budget=20, link=link)
    file = PlanFile(model="M", remat="0", torch="2", machine="cpu", budget=20, costs_by="estimate", plans=(plan,))
    write_plans(file, files / "plans.json")
    code, out, err = call(capsys, "validate", "plans.json")
    assert code == 0 and "idle" in out, err
    assert call(capsys, "validate", "plans.json", "--link", "1MB/s")[1] != out
    code, out, err = call(capsys, "show", "plans.json", "--budget", "20", "--trace", "trace.json")
    assert code == 0 and "kept" in out and (files / "trace.json").exists(), err


def test_text_goes_to_a_screen_that_lacks_a_letter(files, capsys, monkeypatch):
    (files / "letter.json").write_text((files / "g.json").read_text().replace('"tiny"', '"\u00e9"'))
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["show", "letter.json", "--text"]) == 0
    screen.flush()
    assert b"graph \\xe9" in screen.buffer.getvalue()


def test_a_proof_that_is_not_written_is_missed_aloud(files, capsys):
    code, _, err = call(capsys, "solve", "g.json", "--budget", "9", "--solver", "StoreAll()", "--proof", "p.json")
    assert code == 0 and "p.json is not written" in err and not (files / "p.json").exists()


def test_messages_are_short(files, capsys):
    code, _, err = call(capsys, "solve", "g" * 3000, "--budget", "9")
    assert code == 1 and len(err) < LONGEST_MESSAGE + 50 and err.count("\n") == 1


def test_show_says_whether_a_budget_is_kept(files, capsys):
    code, out, _ = call(capsys, "show", "g.json", "--budget", "9")
    assert code == 0 and "budget     9 B (9 B), kept: the peak is 9 B" in out
    code, out, _ = call(capsys, "show", "s.json", "--graph", "g.json", "--budget", "50%", "--memory", "m.svg")
    assert code == 0 and "passed by 5 B" in out and "<svg" in (files / "m.svg").read_text()
    assert call(capsys, "show", "s.json", "--budget", "9")[2].startswith("error: C-GRAPH")


def test_apply_shows_and_writes_the_graph_of_a_transform(files, capsys):
    code, out, _ = call(capsys, "apply", "Linearise()", "g.json", "-o", "chain.json")
    assert code == 0 and "proofs     " in out and "budget     9 B" in out
    assert load(files / "chain.json").layers
    assert call(capsys, "apply", "StoreAll()", "g.json")[2].startswith("error: A-EXPR")
    code, _, err = call(capsys, "apply", "UnitCost()", "g.json")
    assert code == 3 and err.startswith("refused    ")


def test_an_interruption_is_one_word(files, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("remat.cli.solve.read_graph", interrupted)
    assert call(capsys, "solve", "g.json", "--budget", "9") == (130, "", "interrupted\n")


def test_a_reader_that_goes_away_is_no_error(files, monkeypatch, capsys):
    class Closed(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["show", "g.json"]) == 1
    assert capsys.readouterr().err == ""


MODELS = """
import torch
from torch import nn

x = 3

def build(batch=4):
    return nn.Linear(2, 2), torch.randn(batch, 2)

def alone():
    return nn.Linear(2, 2)

def number():
    return 3

def missing():
    return {}["weights"]

def sized(*more, rows, **others):
    return rows
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["my_model:x"], "C-FACTORY: my_model:x is of type int, not a function."),
        (["my_model.py:build"], "C-FACTORY: 'my_model.py' is a file, not a module. Fix: write my_model:build,"),
        (["./my_model.py"], "write my_model:FACTORY, in the folder of the file."),
        (["my_model:build", "--set", "rows=1"], "C-SETTING: my_model:build has no argument 'rows'; it has batch. Fix:"),
        (["my_model:sized"], "C-SETTING: my_model:sized needs the argument 'rows'. Fix: give --set rows=VALUE."),
        (
            ["my_model:alone"],
            "X-FACTORY: the factory returned Linear alone, not a module with its arguments. Fix: return (",
        ),
        (["my_model:number"], "X-FACTORY: the factory returned an object of type int, not a module"),
        (["my_model:missing"], "with KeyError: 'weights' (my_model.py, line 17). Fix:"),
    ],
)
def test_a_wrong_factory_is_named_with_the_way_out(files, capsys, monkeypatch, words, said):
    (files / "my_model.py").write_text(MODELS)
    monkeypatch.syspath_prepend(files)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    for command in ("inspect", "estimate"):
        code, _, err = call(capsys, command, *words)
        assert code == 1 and said in err


@pytest.mark.parametrize("name", ["g.json", "s.json"])
def test_a_file_of_another_form_is_no_proof(files, capsys, name):
    code, out, err = call(capsys, "check", "g.json", name)
    assert code == 1 and not out and "and that of a proof is 'remat-proof/1'" in err and "format is 'remat-" in err


def test_what_a_solver_said_is_short_on_the_screen(files, capsys):
    code, _, err = call(capsys, "solve", "g.json", "--budget", "1")
    assert code == 3 and "found no schedule" in err
    assert all(len(line) < LONGEST_LINE for line in err.splitlines())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["solve", "g.json", "--budget", "9", "--solver", "Rotor"],
            "'Rotor' is not a solver but a class. Fix: write Rotor(), ",
        ),
        (["prove", "g.json", "--budget", "9", "-o", "p.json", "--solver", "nozzle"], "P-NAME"),
        (["apply", "Linearise", "g.json"], "'Linearise' is not a transform but a class. Fix: write Linearise(), "),
        (["solve", "g.json", "--budget", "9", "--solver", "zzzz"], "more."),
        (["show", "broken.json"], "F-JSON: at broken.json, line 1, column 1: not JSON"),
    ],
)
def test_a_wrong_word_or_file_is_one_short_message(files, capsys, command, said):
    (files / "broken.json").write_text("no JSON")
    code, _, err = call(capsys, *command)
    assert code == 1 and said in err and len(err) < 600
