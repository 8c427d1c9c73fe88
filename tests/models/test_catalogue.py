"""The catalogue: enough models under unique names, the same from the same seed, each with a step in every type it states."""

import random
from importlib.util import find_spec

import numpy
import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.models.catalogue import PREFIXES, TABLES, missing, model_named, models
from tests.models.model import cast, seeded

AT_LEAST = {"torch": 10, "transformers": 40, "diffusers": 6, "timm": 8, "torchvision": 2}


@pytest.fixture(params=TABLES)
def table(request):
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} comes with the extra `models` (make models-venv)")
    return request.param, models((request.param,))


def test_it_says_which_packages_are_missing():
    assert missing() == tuple(package for package in TABLES if find_spec(package) is None)
    assert sum(AT_LEAST.values()) >= 60


def test_each_package_has_its_share_under_unique_names_of_its_prefix(table):
    package, entries = table
    assert len(entries) >= AT_LEAST[package]
    assert len({model.name for model in entries}) == len(entries)
    assert {PREFIXES[model.name.partition("-")[0]] for model in entries} == {package}
    assert model_named(entries[-1].name) is entries[-1]


def test_a_seed_decides_weights_and_call_and_the_generators_stay(table):
    for model in table[1]:
        before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
        first, second, other = model.build(), model.build(), model.build(seed=1)
        after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
        assert torch.equal(before[0], after[0]) and before[1:] == after[1:], model.name
        assert same(tensors_of(first), tensors_of(second)), model.name
        assert not same(tensors_of(first), tensors_of(other)), model.name


def test_each_model_trains_in_every_type_that_it_states(table):
    for model in table[1]:
        for dtype in model.types:
            built = model.build(dtype)
            assert all(module.training for module in built.module.modules()), model.name
            with seeded(0):
                loss = built.loss(built.module(*built.args, **built.kwargs))
            loss.backward()
            grads = [p.grad for p in built.module.parameters() if p.grad is not None]
            assert loss.shape == () and torch.isfinite(loss), (model.name, dtype)
            assert any(grad.abs().max() > 0 for grad in grads), (model.name, dtype)
            assert {p.dtype for p in built.module.parameters()} == {dtype}, model.name


def test_a_cast_keeps_integers_masks_and_plain_values():
    given = {
        "x": torch.zeros(2),
        "ids": torch.zeros(2, dtype=torch.long),
        "rest": [(torch.ones(1) > 0, 3, None, "word")],
    }
    got = cast(given, torch.float64)
    assert [leaf.dtype for leaf in tree_leaves(got) if isinstance(leaf, torch.Tensor)] == [
        torch.float64, torch.int64, torch.bool,
    ]  # fmt: skip
    assert got["rest"][0][1:] == (3, None, "word")


def tensors_of(built):
    leaves = [leaf for leaf in tree_leaves((built.args, built.kwargs)) if isinstance(leaf, torch.Tensor)]
    return [*built.module.state_dict().values(), *leaves]


def same(these, those):
    return len(these) == len(those) and all(map(torch.equal, these, those))
