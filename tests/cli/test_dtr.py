import csv
import json
from pathlib import Path

from remat.algorithms.dynamic import unit_chain_log, write_instructions
from remat.cli import main
from remat.cli.dtr import titles_of


def chain(tmp_path, length=100):
    log = tmp_path / "chain.log"
    log.write_text("\n".join(write_instructions(unit_chain_log(length))) + "\n")
    return str(log)


def test_a_replay_is_printed_as_json(tmp_path, capsys):
    log = chain(tmp_path)
    assert main(["dtr", "replay", log, "--budget", "20", "--heuristic", "msps", "--dealloc", "eager", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    numbers = {
        "status": "ok",
        "clock": 301,
        "remat_cost": 100,
        "evictions": 299,
        "remats": 100,
        "peak": 20,
        "accesses": 66192,
    }
    assert said | numbers == said
    assert said["overhead"] == 1.5


def test_a_replay_is_printed_for_people_and_takes_shares(tmp_path, capsys):
    assert main(["dtr", "replay", chain(tmp_path), "--budget", "100%"]) == 0
    said = capsys.readouterr().out
    assert "status     ok" in said
    assert "remats     0" in said
    assert "accesses   " in said


def test_running_out_of_memory_and_thrashing_are_results(tmp_path, capsys):
    for extra, status in (
        (["--budget", "1"], "oom"),
        (["--budget", "20", "--heuristic", "size", "--limit", "3"], "thrashed"),
    ):
        assert main(["dtr", "replay", chain(tmp_path), "--json", *extra]) == 0
        assert json.loads(capsys.readouterr().out)["status"] == status


def test_a_malformed_log_is_one_message(tmp_path, capsys):
    log = tmp_path / "bad.log"
    log.write_text('{"INSTRUCTION": "RELEASE", "NAME": "x"}\n{"INSTRUCTION": "COPY", "DST": "y", "SRC": "x"}\n')
    assert main(["dtr", "replay", str(log), "--budget", "20"]) == 1
    assert capsys.readouterr().err.startswith("error: F-LOG: at line 2: 'x' is not known.")


def test_a_step_is_logged_and_drawn(tmp_path):
    log, table, picture = tmp_path / "lstm.log", tmp_path / "curves.csv", tmp_path / "curves.png"
    assert main(["dtr", "log", "lstm", "--cost", "bytes", "-o", str(log)]) == 0
    command = ["dtr", "curves", str(log), chain(tmp_path), "--heuristic", "h_dtr_eq", "--heuristic", "lru"]
    assert main([*command, "--budgets", "90,60", "-o", str(table), "--draw", str(picture)]) == 0
    rows = list(csv.DictReader(table.open()))
    assert [(row["log"], row["heuristic"]) for row in rows[::2]] == [
        ("lstm", "h_dtr_eq"), ("lstm", "lru"), ("chain", "h_dtr_eq"), ("chain", "lru"),
    ]  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_logs_of_one_name_are_told_apart(tmp_path, capsys):
    logs = []
    for folder, length in (("a", 20), ("b", 30)):
        (tmp_path / folder).mkdir()
        logs.append(chain(tmp_path / folder, length))
    picture, command = tmp_path / "curves.svg", ["--heuristic", "lru", "--budgets", "90", "--draw"]
    assert main(["dtr", "curves", *logs, *command, str(picture)]) == 0
    names = [row["log"] for row in csv.DictReader(capsys.readouterr().out.splitlines())]
    assert names == ["a/chain", "b/chain"] and all(f">{name}<" in picture.read_text() for name in names)


def test_a_log_is_called_by_as_little_as_tells_it_apart():
    paths = [Path(name) for name in ("x.log", "a/x.log", "b/a/x.log", "y.log", "y.txt", "a/z.log")]
    assert list(titles_of([*paths, paths[0]]).values()) == ["x", "a/x", "b/a/x", "y.log", "y.txt", "z"]
