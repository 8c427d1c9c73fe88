"""Findings that other issues mend: strict xfails that name their issue; each test is what will have to hold."""

import re
import time

import pytest
import torch
from torch import nn

import remat.exec
from remat.algorithms import plan_first
from remat.zoo import GPT2
from tests.exec.support import LIGHT
from tests.models.operators import declare_torchvision_operators

EASY = {"cost": "estimate", "solver": LIGHT, "rehearse": False, "on_uncapturable": "raise"}


def issue(number, what):
    return pytest.mark.xfail(strict=True, reason=f"issue {number}: {what}")


# -- training stacks -------------------------------------------------------------------------------------------------------


def plain():
    torch.manual_seed(0)
    layers = (
        nn.Linear(16, 64),
        nn.GELU(),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.Linear(64, 1),
    )
    return nn.Sequential(*layers), torch.randn(64, 16)


def test_a_compiled_module_is_planned():
    module, x = plain()
    with pytest.warns(remat.exec.RematWarning, match="compiled"):
        wrapped = remat.exec.wrap(torch.compile(module, backend="eager"), x, "90%", loss_reserve="64KiB", **EASY)
    bare, wrapped = module(x).detach(), wrapped(x)
    assert torch.equal(bare, wrapped)


def test_a_wrapped_module_compiles():
    module, x = plain()
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    wrapped = remat.exec.wrap(module, x, "90%", loss_reserve="64KiB", **EASY)
    breaks = torch._dynamo.utils.counters["graph_break"]
    breaks.clear()
    grads = torch.autograd.grad(torch.compile(wrapped, backend="eager")(x).sum(), list(module.parameters()))
    assert all(torch.equal(*pair) for pair in zip(expected, grads, strict=True))
    assert sum(breaks.values()) <= 1


def test_trainer_compiles(tmp_path):
    pytest.importorskip("accelerate")
    declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16)
    )
    ids = torch.randint(32, (4, 16))
    wrapped = remat.exec.wrap(model, {"input_ids": ids, "labels": ids, "use_cache": False}, "100%", **EASY)
    settings = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, torch_compile=True, torch_compile_backend="eager", report_to=[], use_cpu=True,
        save_strategy="no",
    )  # fmt: skip
    rows = [{"input_ids": row, "labels": row} for row in ids]  # a flag would become a tensor of one per row
    transformers.Trainer(wrapped, settings, train_dataset=rows).train()
    assert remat.exec.report(wrapped).ran == "plan"


# -- shapes ----------------------------------------------------------------------------------------------------------------


@issue(13, "one family of plans for every shape: a new length within 100 ms of a known one")
def test_a_new_length_costs_a_blink():
    model = GPT2(layers=2, width=32, heads=2, vocabulary=64, context=64)

    def seconds(length):
        tokens = torch.randint(64, (2, 4, length))
        start = time.process_time()
        wrapped(*tokens).backward()
        return time.process_time() - start

    wrapped = remat.exec.wrap(model, tuple(torch.randint(64, (2, 4, 64))), "70%", **EASY)
    seconds(64)
    new = sorted(seconds(length) for length in (60, 50, 40))
    assert new[1] - seconds(64) <= 0.1


# -- planning effort -------------------------------------------------------------------------------------------------------


class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x):
        state, out = x.new_zeros(len(x), 16), []
        for step in range(12):
            state = self.cell(x[:, step], state)
            out.append(state)
        return torch.stack(out, 1)


def test_an_unrolled_gru_waits_little_for_bounds_of_several_instants():
    """They took 25 s of its planning, and brought no plan; now they come after the searches, with a second of effort."""
    wrapped = remat.exec.wrap(
        Unrolled(), torch.randn(32, 12, 16), "60%", cost="estimate", rehearse=False, on_uncapturable="raise"
    )
    report = remat.exec.report(wrapped)
    assert report.planner == "plan_first" and report.gap is not None and not report.tightened
    asked = [line for line in report.trail if "AnyOrder" in line or "instants in any order" in line]
    assert asked == [] or report.trail.index(asked[0]) > max(
        i for i, line in enumerate(report.trail) if "RuinAndRecreate" in line
    )
    passes = re.findall(r"AnyOrder\([^()]*effort=([\d.]+)", repr(plan_first))
    assert passes and all(float(effort) <= 1e7 for effort in passes)
