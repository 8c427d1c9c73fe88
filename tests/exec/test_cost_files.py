"""Measured costs on disk: used by the next process, never where they do not hold, replaced where damaged, and bounded."""

import json
import os

import pytest
import torch
from torch import nn

import remat.exec
from remat.exec import OpCost, RematWarning
from remat.exec._cost import cost_files, measuring, shared
from remat.exec._cost.cost_files import CostFile, Entry, cost_file

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cost_files.FOLDER, str(tmp_path / "costs"))
    monkeypatch.setattr(cost_files, "_files", {})
    return tmp_path / "costs"


@pytest.fixture(scope="module")
def program():
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    return remat.exec.capture(model, (torch.randn(3, 6),), {}).program


def as_a_new_process(monkeypatch):
    monkeypatch.setattr(cost_files, "_files", {})


@pytest.fixture
def sampled(monkeypatch):
    """Names of the operations that are timed."""
    names, sample = [], measuring._sampled
    monkeypatch.setattr(
        measuring, "_sampled", lambda program, op, *more: names.append(op.name) or sample(program, op, *more)
    )
    return names


def test_a_new_process_measures_nothing_that_was_measured(folder, program, monkeypatch, sampled):
    first = shared.measured(program, {})
    assert len(sampled) == 2 * len(set(sampled)) > 0  # two rounds
    as_a_new_process(monkeypatch)
    sampled.clear()
    cache = {}
    assert shared.measured(program, cache) == first and not sampled and set(cache.values()) == set(first.values())
    (path,) = folder.iterdir()
    rows = json.loads(path.read_bytes())["costs"]
    assert all(2 * measuring.FEWEST <= calls <= 2 * measuring.MOST for *_, calls in rows.values())


def test_what_was_measured_briefly_serves_brief_requests_alone(folder, program, monkeypatch, sampled):
    brief = shared.measured(program, brief=True)
    assert len(sampled) == len(set(sampled))
    as_a_new_process(monkeypatch)
    sampled.clear()
    assert shared.measured(program, brief=True) == brief and not sampled
    full = shared.measured(program)
    assert sampled and [cost.workspace for cost in full.values()] == [cost.workspace for cost in brief.values()]
    sampled.clear()
    assert shared.measured(program, brief=True) == full and not sampled


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(cost_files, "machine_of", lambda device: "another processor, 1 thread"),
        lambda patch: patch.setattr(cost_files.torch, "__version__", "2.99.0"),
        lambda patch: patch.setattr(cost_files.remat, "__version__", "9"),
        lambda patch: patch.setattr(cost_files.torch, "are_deterministic_algorithms_enabled", lambda: True),
        lambda patch: patch.setattr(torch, "get_num_threads", lambda: 77),
    ],
    ids=["machine", "torch", "remat", "kernels", "threads"],
)
def test_costs_of_another_machine_version_or_setting_are_not_used(folder, program, monkeypatch, sampled, change):
    shared.measured(program)
    as_a_new_process(monkeypatch)
    sampled.clear()
    change(monkeypatch)
    file = cost_file(CPU)
    assert file.costs_of(["aten.tanh.default(…)"], calls=1) == {} and not file.path.exists()
    shared.measured(program)
    assert sampled


def damaged_by(text):
    return {
        "cut": text[: len(text) // 2],
        "empty": b"",
        "another form": b"[1, 2]",
        "a changed number": text.replace(b'"costs": {"', b'"costs": {"x": [1, 1, [], 9], "', 1),
        "of another machine": text.replace(b'"machine": "', b'"machine": "not ', 1),
        "no text": b"\xff\xfe\x00",
    }


@pytest.mark.parametrize("damage", damaged_by(b""))
def test_a_damaged_file_is_told_once_and_replaced(folder, program, monkeypatch, sampled, damage):
    shared.measured(program)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damaged_by(whole)[damage])
    as_a_new_process(monkeypatch)
    sampled.clear()
    with pytest.warns(RematWarning, match="is damaged") as caught:
        shared.measured(program)
    assert len(caught) == 1 and sampled
    as_a_new_process(monkeypatch)
    sampled.clear()
    shared.measured(program)  # warnings are errors here
    assert not sampled and json.loads(path.read_bytes())["about"] == json.loads(whole)["about"]


@pytest.mark.parametrize("name", ["off", ""])
def test_nothing_is_read_or_written_where_it_is_switched_off(folder, program, monkeypatch, name):
    monkeypatch.setenv(cost_files.FOLDER, name)
    shared.measured(program)
    assert cost_file(CPU) is None and not folder.exists()


def test_the_folder_is_the_users_cache_where_none_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv(cost_files.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cost_files.cache_folder() == tmp_path / "remat"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/do/not/count")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cost_files.cache_folder() == tmp_path / ".cache" / "remat"


def entry(time):
    return Entry(OpCost(time=time, workspace=8, outputs=(4, None)), 6)


def test_two_processes_add_to_one_file(tmp_path):
    files = [CostFile(tmp_path / "costs-1.json", {"a": "b"}) for _ in range(2)]
    files[0].add({"mm": entry(1)})
    files[1].add({"add": entry(2)})
    assert CostFile(files[0].path, {"a": "b"}).costs_of(["mm", "add"], calls=6) == {
        "mm": entry(1).cost,
        "add": entry(2).cost,
    }
    files[0].add({"mul": entry(3)})  # too soon after the last: at the end of the process
    assert not CostFile(files[0].path, {"a": "b"}).costs_of(["mul"], calls=1)
    files[0].write()
    assert CostFile(files[0].path, {"a": "b"}).costs_of(["mul", "add"], calls=1).keys() == {"mul", "add"}


def test_a_file_and_the_folder_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_files, "MOST_ENTRIES", 3)
    monkeypatch.setattr(cost_files, "MOST_FILES", 2)
    file = CostFile(tmp_path / "costs-0.json", {})
    file.add({str(number): entry(number) for number in range(5)})
    assert list(CostFile(file.path, {})._read()) == ["2", "3", "4"]
    assert file.costs_of(["2"], calls=1)
    file.add({"5": entry(5)})
    file.write()
    assert list(CostFile(file.path, {})._read()) == ["4", "2", "5"]  # what was used stays
    os.utime(file.path, (1, 1))
    for number in (1, 2, 3):
        CostFile(tmp_path / f"costs-{number}.json", {}).add({"mm": entry(1)})
    assert len(list(tmp_path.iterdir())) == 2 and not file.path.exists()  # the one written longest ago went


def test_a_write_that_fails_is_told_and_leaves_the_old_file(tmp_path, monkeypatch):
    file = CostFile(tmp_path / "costs-0.json", {})
    file.add({"mm": entry(1)})
    old = file.path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    fresh = CostFile(file.path, {})
    with pytest.warns(RematWarning, match="no space left"):
        fresh.add({"add": entry(2)})
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [old]
    assert fresh.costs_of(["add"], calls=1)  # this process has it all the same


def test_a_brief_measurement_times_a_long_call_once_and_a_short_one_as_often_as_any(monkeypatch):
    calls, spent = [], iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(measuring, "_clock", lambda device: lambda: next(spent))
    for sampling, expected in ((measuring.BRIEF, 1), (measuring.ONE_ROUND, 10)):
        calls.clear()
        timed = measuring._timed(lambda: calls.append(1), torch.device("cpu"), sampling)
        assert timed == {"time": 10**6, "host": 0, "calls": expected} and len(calls) == expected
    monkeypatch.setattr(measuring, "_clock", lambda device: lambda: 5)
    assert measuring._timed(lambda: None, torch.device("cpu"), measuring.BRIEF)["calls"] == measuring.FEWEST


def test_where_the_host_is_slower_in_all_its_part_is_shared_out_among_what_it_takes_longer_for():
    device_bound = {"a": OpCost(time=100, host=10), "b": OpCost(time=5, host=10), "c": OpCost(time=7)}
    assert measuring.paced(device_bound) is device_bound
    host_bound = {
        "a": OpCost(time=10, host=5),
        "b": OpCost(time=5, host=25),
        "c": OpCost(time=0, host=10),
        "d": OpCost(time=7),
    }
    times = {name: cost.time for name, cost in measuring.paced(host_bound).items()}
    assert times == {"a": 10, "b": 22, "c": 8, "d": 7} and sum(times.values()) - 7 == 5 + 25 + 10
    assert measuring.paced({}) == {}
