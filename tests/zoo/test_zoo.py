"""The models of the zoo: shapes, losses, and what makes each of them awkward."""

import pytest
import torch

from remat.zoo import GPT2, MLP, EncoderDecoder, Frozen, InPlaceViews, ResNet, UNet, cases


@pytest.mark.parametrize("size", ["small", "medium"])
@pytest.mark.parametrize("at", range(7))
def test_every_case_gives_a_finite_loss_and_the_same_one_for_the_same_seed(size, at):
    case = cases(size)[at]
    losses = []
    for _ in range(2):
        module, sample = case.instantiate()
        torch.manual_seed(1)
        out = module(*sample)
        losses.append(out[0] if isinstance(out, tuple) else out)
    assert losses[0].dim() == 0 and torch.isfinite(losses[0])
    assert torch.equal(*losses)
    names = dict(case.instantiate()[0].named_parameters())
    assert all(name in names for name in case.tied)


def test_an_unknown_size_is_refused():
    with pytest.raises(ValueError, match="not one of small, medium"):
        cases("huge")


def test_outputs_without_a_target():
    x = torch.randn(2, 64)
    assert MLP()(x).shape == (2, 8)
    assert Frozen()(x).shape == (2, 64)
    assert GPT2(layers=1, width=32, heads=4)(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 5, 256)
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    assert EncoderDecoder(layers=1, width=32)(tokens, tokens[:, :3]).shape == (2, 3, 256)
    assert ResNet(blocks=(1,), width=4)(torch.randn(2, 3, 32, 32)).shape == (2, 100)
    assert UNet(levels=2, channels=4)(torch.randn(2, 3, 16, 16)).shape == (2, 1, 16, 16)


def test_what_makes_them_awkward():
    gpt = GPT2(layers=1, width=32, heads=4)
    assert gpt.head.weight is gpt.tokens.weight
    frozen = Frozen()
    assert not any(p.requires_grad for p in frozen.features.parameters())
    odd = InPlaceViews()
    _, view = odd(torch.randn(4, 64), torch.randn(4, 64))
    assert view._is_view() and odd.calls == 1 and odd.level.abs().sum() > 0
    assert sum(p.numel() for p in ResNet(classes=1000).parameters()) == 25_557_032
    with pytest.raises(ValueError, match="not a multiple"):
        GPT2(width=10, heads=3)
