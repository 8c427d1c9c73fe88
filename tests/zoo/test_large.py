import pytest
import torch
from torch import nn

from remat.exec.weightless import capture_without_weights
from remat.ir import Phase, Schedule, validate
from remat.zoo import large
from remat.zoo.seq2seq import Seq2Seq

KNOWN = {
    # forward nodes (generator states, buffer writes), backward nodes (settled sums folded), peak [GB], step [ms], parameters [MB]
    "gpt12": (298, 357, 7.709, 279.96, 499.3),
    "encdec6": (391, 488, 7.525, 234.53, 225.8),
    "unet": (140, 64, 3.007, 181.15, 124.2),
    "resnet101": (762, 319, 4.075, 142.2, 178.6),
    "mixer": (246, 260, 8.518, 399.4, 239.5),
    "fno": (77, 137, 2.715, 53.3, 226.6),
    "regnet": (595, 381, 8.716, 510.4, 580.8),
    "uno": (120, 210, 2.195, 48.28, 224.4),
}
"""Counts, peaks and times by the model of a V100; a change of more than 2 % is a change of the model or of the capture."""


@pytest.mark.parametrize("name", KNOWN)
def test_large_models_have_the_size_they_are_known_for(name):
    weightless = capture_without_weights(getattr(large, name))
    graph = weightless.graph("v100")
    cost = validate(graph, Schedule.from_runs(graph, range(len(graph))))
    phases = [node.phase for node in graph.computes]
    found = (
        phases.count(Phase.FORWARD), phases.count(Phase.BACKWARD), cost.peak / 1e9, cost.time / 1e6,
        weightless.parameters / 1e6,
    )  # fmt: skip
    assert found == pytest.approx(KNOWN[name], rel=0.02)


def test_a_deeper_gpt_grows_by_equal_layers():
    sizes = {
        layers: capture_without_weights(lambda layers=layers: large.gpt(layers, width=128, vocabulary=512, time=32))
        for layers in (2, 3, 5)
    }
    nodes = {layers: len(one.graph()) for layers, one in sizes.items()}
    assert nodes[5] - nodes[3] == 2 * (nodes[3] - nodes[2]) > 0
    memory = {layers: one.parameters for layers, one in sizes.items()}
    assert memory[5] - memory[3] == 2 * (memory[3] - memory[2]) > 0


class TestSeq2Seq:
    def model(self):
        torch.manual_seed(0)
        return Seq2Seq(layers=2, width=16, heads=2, vocabulary=20, context=8).eval()

    def test_earlier_positions_do_not_see_later_ones_but_all_see_the_source(self):
        model, source, target = self.model(), torch.randint(0, 20, (1, 5)), torch.randint(0, 20, (1, 8))
        logits = model(source, target)
        assert logits.shape == (1, 8, 20)
        changed = target.clone()
        changed[0, 5] = (changed[0, 5] + 1) % 20
        later = model(source, changed)
        assert torch.equal(logits[:, :5], later[:, :5])
        assert not torch.equal(logits[:, 5:], later[:, 5:])
        other = model((source + 1) % 20, target)
        assert not any(torch.equal(logits[:, at], other[:, at]) for at in range(8))

    def test_the_attention_is_the_one_of_torch(self):
        model = self.model()
        x = torch.randn(2, 6, 16)
        own = model.encoder[0].attention
        reference = nn.MultiheadAttention(16, 2, batch_first=True)
        reference.in_proj_weight, reference.in_proj_bias = own.qkv.weight, own.qkv.bias
        reference.out_proj = own.out
        torch.testing.assert_close(own(x), reference(x, x, x, need_weights=False)[0])

    def test_every_parameter_gets_a_gradient(self):
        model = self.model().train()
        tokens = [torch.randint(0, 20, (2, 8)) for _ in range(3)]
        model(*tokens).backward()
        assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in model.parameters() if one.dim() == 2)

    def test_a_width_that_the_heads_do_not_divide_is_refused(self):
        with pytest.raises(ValueError, match="not a multiple"):
            Seq2Seq(width=10, heads=3)
