"""`budget="auto"`: the memory that is free, less what the optimizer will take."""

import pytest
import torch

import remat
from remat.errors import BadArgument, RematError
from remat.exec._plan import automatic as module
from remat.exec._plan.automatic import auto_budget
from remat.zoo import MLP

FREE = 1 << 20


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda _device: FREE)
    return MLP(layers=2, width=16)


def test_the_budget_is_what_is_free_less_a_margin_and_the_states_to_come(model):
    rest = FREE - FREE // 20
    weights = sum(p.nbytes for p in model.parameters())
    counts = 4 * len(list(model.parameters()))
    assert auto_budget(model, "none") == auto_budget(model, "sgd") == rest
    assert auto_budget(model, "adamw") == rest - 2 * weights - counts
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    assert auto_budget(model, optimizer) == rest - 3 * weights - counts
    model(torch.randn(3, 16), torch.randn(3, 8)).backward()
    optimizer.step()
    assert auto_budget(model, optimizer) == rest  # its states are there, and what is free is less by them


def test_a_wrapped_model_has_that_budget(model):
    sample = (torch.randn(3, 16), torch.randn(3, 8))
    wrapped = remat.wrap(model, sample, budget="auto", optimizer="sgd(momentum=0.9)")
    assert remat.exec.report(wrapped).budget == auto_budget(model, "sgd(momentum=0.9)")


def test_what_cannot_be_known_is_refused(model, monkeypatch):
    with pytest.raises(BadArgument, match='X-ARG: wrap: budget="auto" depends on the optimizer'):
        remat.wrap(model, budget="auto")
    with pytest.raises(BadArgument, match='X-ARG: wrap: optimizer goes with budget="auto" alone'):
        remat.wrap(model, budget="1GiB", optimizer="adamw")
    with pytest.raises(RematError, match="X-MEMORY: the model lies on no device"):
        auto_budget(torch.nn.ReLU(), "adamw")
    with pytest.raises(RematError, match="X-MEMORY: the model lies on cpu, meta"):
        auto_budget(torch.nn.Sequential(model, torch.nn.Linear(2, 2, device="meta")), "adamw")
    with pytest.raises(BadArgument, match="X-OPTIMIZER: the optimizer has 2 parameters that are not of the module"):
        auto_budget(model, torch.optim.SGD(torch.nn.Linear(2, 2).parameters()))
    weights = sum(p.nbytes for p in model.parameters())
    monkeypatch.setattr(module, "free_memory", lambda _device: 3 * weights)
    with pytest.raises(RematError, match=r"X-MEMORY: .* are free on cpu, AdamW will keep"):
        auto_budget(model, "adamw")
    monkeypatch.undo()
    with pytest.raises(RematError, match="X-MEMORY: this system does not say how much memory meta has free"):
        auto_budget(torch.nn.Linear(2, 2, device="meta"), "adamw")
