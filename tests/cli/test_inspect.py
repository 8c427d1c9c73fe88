"""`remat inspect`: what a step consists of, and where it cannot be captured."""

import pytest

from remat.cli import main

MODELS = """
import torch
from torch import nn
from remat.zoo import GPT2

def gpt(layers=3):
    return GPT2(layers=layers, width=8, heads=2, vocabulary=16, context=6), (torch.randint(16, (2, 6)), torch.randint(16, (2, 6)))

class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
    def forward(self, x):
        if (x > 0).any():
            x = self.inner(x)
        return self.inner(x).sum()

class Selecting(Asking):
    def forward(self, x):
        y = self.inner(x)
        return y[y > 0].sum()

def asking(): return Asking(), torch.ones(2, 4)
def selecting(): return Selecting(), torch.ones(2, 4)
def odd(): return type("x\\x1b[31m\\u202e", (Asking,), {})(), torch.ones(2, 4)
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    (tmp_path / "inspected_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(name, *words):
        code = main(["inspect", f"inspected_models:{name}", *words])
        return code, capsys.readouterr().out

    return run


def test_saved_data_is_grouped_by_pattern_with_its_frequency(call):
    code, out = call("gpt", "--top", "50")
    assert code == 0 and "forward and" in out and "guards     none" in out
    rows = [line.split() for line in out.splitlines() if ": " in line and "blocks.*" in line]
    assert ["4.50", "KiB", "12", "384", "B"] in [row[:5] for row in rows] and all(int(row[2]) % 3 == 0 for row in rows)
    assert "blocks.*.attention.attention_dropout: " in out and "for the backward alone" in out
    totals = [float(row[0]) * (1024 if row[1] == "KiB" else 1) for row in rows]
    assert totals == sorted(totals, reverse=True)
    unique = int(out.split("unique     ")[1].split()[0])
    deeper = call("gpt", "--set", "layers=5")[1]
    assert int(deeper.split("unique     ")[1].split()[0]) <= unique + 2


def test_what_cannot_be_captured_is_said_with_line_and_way_out(call):
    code, out = call("selecting")
    line = MODELS[: MODELS.index("y[y > 0]")].count("\n") + 1
    assert code == 3 and "captured   no (X-TRACE)" in out and f"inspected_models.py:{line}" in out
    assert "way out    " in out


def test_guards_are_shown_with_the_line_that_asks(call):
    assert call("asking")[0] == 3
    code, out = call("asking", "--with-weights")
    line = MODELS[: MODELS.index("if (x > 0)")].count("\n") + 1
    assert code == 0 and "guards     1" in out and f"inspected_models.py:{line}" in out and "True is read" in out


def test_names_do_not_command_the_terminal(call):
    code, out = call("odd", "--with-weights")
    assert code == 0 and "x\\x1b[31m\\u202e" in out and "\x1b" not in out
