"""What a call of a wrapped module checks before it runs its plan: the arguments, the tensors, the state of Python, the guards."""

import importlib.util
import statistics
import time

import torch
from torch import nn

import remat.exec
from remat.algorithms._search.auto import quick

BARS = {"mlp": 100.0, "hf-gpt2-12": 1000.0}
"""Most microseconds of checks per call."""


def mlp():
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
    return nn.Sequential(*layers), {"input": torch.randn(32, 64)}


def hf_gpt2():
    from tests.models.operators import declare_torchvision_operators

    declare_torchvision_operators()
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = torch.randint(100, (2, 16))
    mask = torch.ones_like(tokens)
    mask[0, 12:] = 0
    config = GPT2Config(n_layer=12, n_embd=32, n_head=2, vocab_size=100, bos_token_id=None, eos_token_id=None)
    return GPT2LMHeadModel(config), {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


def checks(rounds):
    """A row for each model: median microseconds of one call's checks, and its bar."""
    rows = []
    builds = {"mlp": mlp} | ({"hf-gpt2-12": hf_gpt2} if importlib.util.find_spec("transformers") else {})
    for name, build in builds.items():
        model, call = build()
        how = {"cost": "estimate", "solver": quick, "rehearse": False, "loss_reserve": 4096}
        wrapped = remat.exec.wrap(model, call, "100%", **how)
        state = wrapped.__dict__["_remat"]
        times = []
        for _ in range(5 * rounds):
            start = time.perf_counter_ns()
            state.planned_for(state.arguments(wrapped, (), call))
            times.append(time.perf_counter_ns() - start)
        taken = statistics.median(times) / 1000
        rows.append({"model": name, "microseconds": taken, "bar": BARS[name], "met": taken <= BARS[name]})
        print(f"{name:12} {taken:9.1f} µs of {BARS[name]:.0f}  {'met' if taken <= BARS[name] else 'MISSED'}")
    return rows
