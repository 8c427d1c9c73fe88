"""Odd modules whose Python reads values of inputs, buffers, parameters or activations."""

import torch
from torch import nn
from torch.nn import functional

from tests.exec.odd.base import Blocks, Body, at, seeded
from tests.exec.odd.judging import EITHER, EXACT, REFUSED, ROWS, WIDTH, odd, rows


def with_mask(step):
    """Padded and full masks in turn."""
    mask = torch.ones(ROWS, dtype=torch.bool)
    mask[200:] = step % 2 == 1
    return {"x": rows(step)[0], "mask": mask}


@odd("mask-all-decides", EXACT, inputs=with_mask)
class MaskAll(Body):
    def forward(self, x, mask):
        x = self.hidden(x)
        if not mask.all():
            x = x.masked_fill(~mask[:, None], 0.0)
        return self.loss(x)


def with_lengths(step):
    lengths = torch.tensor([[40, 50, 30], [20, 9, 7], [60, 60, 60], [40, 50, 30]][step])
    return {"x": rows(step)[0], "lengths": lengths}


@odd("largest-length-decides", EXACT, inputs=with_lengths)
class LengthsMax(Body):
    def forward(self, x, lengths):
        x = self.hidden(x)
        if lengths.max() > 25:
            x = torch.tanh(x)
        return self.loss(x)


@odd("item-of-an-input-is-a-size", EXACT, inputs=with_lengths)
class SizeFromInput(Body):
    def forward(self, x, lengths):
        return self.loss(self.hidden(x)[: 4 * int(lengths.max())])


@odd("item-of-an-input-is-a-factor", EXACT, inputs=with_lengths)
class FactorFromInput(Body):
    def forward(self, x, lengths):
        return self.loss(self.hidden(x)) * lengths.float().mean().item()


@odd("list-of-an-input-splits", EITHER, inputs=with_lengths)
class SplitByInput(Body):
    def forward(self, x, lengths):
        x = self.hidden(x)
        parts = x[: int(lengths.sum())].split(lengths.tolist())
        return self.loss(torch.stack([part.mean(0) for part in parts]))


@odd("assertion-on-an-input", EXACT)
class Asserts(Body):
    def forward(self, x):
        assert x.isfinite().all(), "the input is not finite"
        return self.loss(self.hidden(x))


@odd("equality-of-two-inputs-decides", EXACT, inputs=lambda step: (rows(step)[0], rows(step // 2 * 2)[0]))
class EqualInputs(Body):
    def forward(self, x, y):
        x = self.hidden(x)
        return self.loss(x) if torch.equal(x, y) else self.loss(x + self.hidden(y))


def set_flag(module):
    module.flag.fill_(True)


@odd("item-of-a-buffer-decides", EXACT, change=at(2, set_flag))
class BufferFlag(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("flag", torch.tensor(False))

    def forward(self, x):
        x = self.hidden(x)
        return self.loss(torch.tanh(x) if self.flag.item() else x)


@odd("item-of-a-buffer-that-the-step-writes", EITHER)
class BufferCounter(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.count += 1
        return self.loss(self.hidden(x)) / self.count.item()


@odd("flag-of-first-step-in-a-buffer", EITHER)
class DataDependentInit(Body):
    """As activation normalization does: the first step sets the scale from its data."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ready", torch.tensor(False))
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x):
        x = self.hidden(x)
        if not self.ready:
            self.scale.copy_(1 / (x.detach().std(0) + 1e-3))
            self.ready.fill_(True)
        return self.loss(x * self.scale)


@odd("isfinite-of-an-activation-decides", EXACT)
class Clamps(Body):
    """As DETR does; the branch never changes here."""

    def forward(self, x):
        x = self.hidden(x)
        if not torch.isfinite(x).all():
            x = x.clamp(-1000, 1000)
        return self.loss(x)


def blow_up(module):
    with torch.no_grad():
        for layer in module.layers:
            layer.weight.mul_(6)


@odd("size-of-an-activation-decides-and-changes", EITHER, change=at(2, blow_up))
class Rescales(Body):
    def forward(self, x):
        x = self.hidden(x)
        if x.abs().max() > 5:
            x = x / x.abs().max().detach()
        return self.loss(x)


@odd("loop-until-an-activation-is-small", EITHER, change=at(2, blow_up))
class Loops(Body):
    def forward(self, x):
        x = self.hidden(x)
        while x.norm() > 20:
            x = x / 2
        return self.loss(x)


@odd("larger-of-two-losses", EITHER)
class LargerLoss(Body):
    def forward(self, x):
        x = self.hidden(x)
        return max(self.loss(x), x.abs().mean())


@odd("parameter-value-decides", EITHER)
class Prunes(Body):
    def forward(self, x):
        x = self.hidden(x)
        return self.loss(x) if self.head.weight.abs().max() > 0.1 else self.loss(x * 2)


@odd("rows-chosen-by-an-input", EITHER, inputs=with_mask)
class MaskedRows(Body):
    def forward(self, x, mask):
        return self.loss(self.hidden(x[mask]))


@odd("nonzero-of-an-input", EITHER, inputs=with_mask)
class Nonzero(Body):
    def forward(self, x, mask):
        (places,) = torch.nonzero(mask, as_tuple=True)
        return self.loss(self.hidden(x).index_select(0, places))


@odd("sizes-and-places-from-a-mask-made-in-place", EXACT, inputs=with_mask)
class GlobalRows(Body):
    """As Longformer does: a mask like an input, changed in place, then asked for its size again and again, and for its places."""

    def forward(self, x, mask):
        chosen = torch.zeros_like(mask)
        chosen[::8] = True
        chosen = (mask.long() * (chosen + 1)).sub_(1) > 0
        most = chosen.long().sum()
        x = self.hidden(x)
        (places,) = chosen.nonzero(as_tuple=True)
        assert list(x[places].size()) == [most, WIDTH]
        summary = x.new_zeros(most, WIDTH).add(x[places])
        return self.loss(x) + self.loss(summary.view(most, 2, -1).flatten(1)[: int(most)])


@odd("rows-chosen-by-an-activation", EITHER)
class ActiveRows(Body):
    """As a mixture of experts does: each expert sees the rows sent to it."""

    def forward(self, x):
        x = self.hidden(x)
        return self.loss(x[x[:, 0] > 0])


@odd(
    "unique-values-of-an-input",
    EITHER,
    inputs=lambda step: {"x": rows(step)[0], "ids": torch.arange(ROWS) // (step + 4)},
)
class Unique(Body):
    def forward(self, x, ids):
        _, places = torch.unique(ids, return_inverse=True)
        pooled = torch.zeros(int(places.max()) + 1, WIDTH).index_add(0, places, self.hidden(x))
        return self.loss(pooled)


@odd("experts-by-their-rows", EITHER)
class Experts(Blocks):
    """As Mixtral does: a loop over experts with where()."""

    def forward(self, x):
        chosen = (x @ self.head.weight.t()).squeeze(1).argsort() % len(self.blocks)
        out = torch.zeros_like(x)
        for i, block in enumerate(self.blocks):
            (places,) = torch.where(chosen == i)
            out = out.index_add(0, places, block(x[places]))
        return self.head(out).square().mean()


def with_labels(step):
    labels = torch.randint(-1, WIDTH, (ROWS,), generator=torch.Generator().manual_seed(0))
    return {"x": rows(step)[0], "labels": labels}


@odd("loss-of-labelled-rows", EXACT, inputs=with_labels)
class LabelledRows(Body):
    """A mask chooses among activations, so that their gradient is put back by a mask."""

    def forward(self, x, labels):
        x, known = self.hidden(x), labels != -1
        return functional.cross_entropy(x[known], labels[known]) + x[:, labels[:WIDTH] > 3].square().mean()


def with_images(step):
    places, features = torch.arange(ROWS) % 8 == 0, torch.randn(ROWS // 8, WIDTH, generator=seeded(step))
    return {"x": rows(step)[0], "places": places, "features": features}


@odd("features-scattered-by-a-mask", EXACT, inputs=with_images)
class Merges(Body):
    """As models of vision and language do: features of an image in place of some rows."""

    def forward(self, x, places, features):
        mask = places[:, None].expand_as(x)
        features = torch.tanh(self.layers[1](features))
        assert x[mask].numel() == features.numel()
        x = self.layers[0](x).masked_scatter(mask, features)
        return self.loss(self.hidden(x)) + torch.masked_select(x, places[:, None]).mean()


@odd("codes-counted-by-one-hot", EXACT)
class Quantizes(Body):
    """As vector quantization does: one_hot checks its classes, which follow from activations."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(8, WIDTH))
        self.register_buffer("counts", torch.zeros(8))

    def forward(self, x):
        x = self.hidden(x)
        nearest = torch.cdist(x, self.codes).argmin(1)
        with torch.no_grad():
            self.counts.mul_(0.9).add_(functional.one_hot(nearest, 8).sum(0), alpha=0.1)
        return self.loss(x + (self.codes[nearest] - x).detach()) + self.counts.sum() / len(x)


@odd("linear-algebra-that-checks", EXACT)
class Whitens(Body):
    """Factorizations raise where the matrix does not allow them; eager looks at each result for that."""

    def forward(self, x):
        x = self.hidden(x)
        gram = x.t() @ x / len(x) + torch.eye(WIDTH)
        factor = torch.linalg.cholesky(gram)
        white = torch.linalg.solve(gram, x.t()) + torch.linalg.inv(gram) @ x.t()
        return self.loss(white.t()) + factor.diagonal().log().mean() + torch.linalg.eigvalsh(gram).max()


@odd("input-mutated-in-place", EXACT)
class MutatesInput(Body):
    def forward(self, x):
        x.mul_(2)
        return self.loss(self.hidden(x))


@odd("branch-on-a-mutated-input", EITHER)
class BranchesOnMutated(Body):
    def forward(self, x):
        x.sub_(x.mean())
        if x.sum() > 0:
            x.abs_()
        return self.loss(self.hidden(x))


@odd("input-read-as-an-array", EITHER)
class ReadsArray(Body):
    def forward(self, x):
        scale = float(x.detach().numpy().std())
        return self.loss(self.hidden(x)) * scale


class Averages(nn.Module):
    def __init__(self, momentum):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 64), nn.BatchNorm1d(64, momentum=momentum), nn.GELU(), nn.Linear(64, 64), nn.GELU(),
            nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1),
        )  # fmt: skip

    def forward(self, x):
        return functional.mse_loss(self.body(x), x[:, :1])


# Its factor is a Python number that differs in every step: a plan cannot hold it.
@odd("batch-norm-with-cumulative-average", REFUSED)
def cumulative():
    return Averages(None)
