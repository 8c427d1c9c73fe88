"""`remat estimate`: text, exit codes, refusals."""

import pytest

from remat.cli import main
from remat.cli.estimate import table
from remat.exec._plan.needs import ModuleNeeds

MODELS = """
import torch
from remat.zoo import MLP

def mlp(batch=40, layers=3):
    return MLP(layers=layers, width=16), (torch.randn(batch, 16), torch.randn(batch, 8))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "estimated_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def call(capsys, *words):
    code = main(["estimate", "estimated_models:mlp", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_what_fits_and_what_does_not(folder, capsys):
    code, out, err = call(capsys, "--device", "H100", "--optimizer", "sgd(momentum=0.9)", "--batch", "none")
    assert code == 0 and not err and "fits           with" in out and "of SGD" in out
    assert "body.0 " in out and "at the peak" in out
    code, out, _ = call(capsys, "--device", "h100", "--memory", "1.00001GiB", "--batch", "none", "--depth", "0")
    assert (
        code == 3
        and "does not fit" in out
        and "budget         none" in out
        and "at the peak" not in out.split("budget")[1]
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "abacus"], "X-DEVICE-MODEL"),
        (["--optimizer", "adamm"], "X-OPTIMIZER"),
        (["--batch", "rows"], "X-BATCH"),
        (["--memory", "much"], "U-SIZE"),
    ],
)
def test_wrong_arguments_give_one_message_before_any_work(folder, capsys, words, says, monkeypatch):
    monkeypatch.setattr("remat.exec.estimating.capture_without_weights", lambda *_, **__: pytest.fail("captured"))
    code, out, err = call(capsys, *words)
    assert code == 1 and not out and err.startswith(f"error: {says}") and err.count("\n") == 1


def test_neighbors_that_need_the_same_share_a_line():
    rows = [ModuleNeeds(name=f"blocks.{i}.feed", parameters=1 + (i == 3), at_peak=2048) for i in range(4)]
    lines = table((ModuleNeeds(name=""), *rows))
    assert [line.split()[:3] for line in lines[3:]] == [
        ["blocks.0.feed", "…", "blocks.2.feed"],
        ["blocks.3.feed", "2", "B"],
    ]
    assert lines[2].startswith("(the model)") and lines[3].endswith("2.00 KiB each")
