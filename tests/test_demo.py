"""The demo on a small model: it keeps its promise, writes its files, and says so when the promise is broken."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from remat import demo
from remat.ir import load, validate

SMALL = demo.Settings(layers=2, width=48, heads=4, context=32, batch=4, steps=3, fraction=0.6)


def test_the_demo_keeps_its_promise_and_leaves_a_plan_that_replays(tmp_path):
    console = Console(record=True, width=120)
    assert demo.run(SMALL, tmp_path, console)
    graph, plan = load(tmp_path / "graph.json.gz"), load(tmp_path / "plan.json")
    said = console.export_text()
    assert "same losses, within the budget" in said
    assert "largest difference of a loss" in said
    assert validate(graph, plan).peak > 0
    assert (tmp_path / "demo.png").read_bytes()[:4] == b"\x89PNG"


def test_a_differing_loss_breaks_the_promise(tmp_path, monkeypatch):
    honest = demo.train

    def train(module, settings, advance=None, label=""):
        done = honest(module, settings, advance, label)
        spoilt = (*done.losses[:-1], done.losses[-1] + 1e-7)
        return (
            demo.Training(losses=spoilt, seconds=done.seconds, memory=done.memory, boundary=done.boundary)
            if label == "bare   "
            else done
        )

    monkeypatch.setattr(demo, "train", train)
    console = Console(record=True, width=120)
    assert not demo.run(SMALL, tmp_path, console)
    assert "a loss differs" in console.export_text()


def test_a_picture_that_cannot_be_written_leaves_the_old_one(tmp_path, full_disk):
    memory = SimpleNamespace(times=[0, 10, 20], timeline=[0, 5, 3], peak=5)
    training = demo.Training(losses=(1.0,), seconds=(1.0,), memory=memory, boundary=10)
    (tmp_path / "demo.png").write_text("what was there")
    with full_disk(), pytest.raises(OSError, match="too large"):
        demo.draw(training, training, 4, tmp_path / "demo.png", SMALL)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["what was there"]


@pytest.mark.parametrize("seed", [0, 1])
def test_batches_depend_on_the_seed_alone(seed):
    settings = demo.Settings(seed=seed)
    ours, theirs = demo.batches(settings), demo.batches(settings)
    for _ in range(2):
        (a, b), (c, d) = next(ours), next(theirs)
        assert a.equal(c)
        assert b.equal(d)
        assert a[:, 1:].equal(b[:, :-1])
