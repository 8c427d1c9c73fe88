"""Whole training steps of eight models, as DTR's experiments have them: static ones, and ones whose shape follows the data.

Each is a call without arguments that runs forward, loss and backward and returns the loss: what `log_step` takes. Weights and
data follow a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from remat.errors import BadArgument
from remat.settings import whole
from remat.zoo.gpt2 import GPT2
from remat.zoo.resnet import ResNet
from remat.zoo.unet import UNet

Step: TypeAlias = Callable[[], Tensor]


class DenseNet(nn.Module):
    """Convolutions that each read all before them (Huang et al., 2017): (batch, 3, h, w) to logits (batch, 10)."""

    def __init__(self, *, layers: int = 12, growth: int = 8) -> None:
        """Each layer adds `growth` channels."""
        super().__init__()
        self.stem = nn.Conv2d(3, growth, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(growth * (k + 1)) for k in range(layers))
        self.convs = nn.ModuleList(nn.Conv2d(growth * (k + 1), growth, 3, padding=1) for k in range(layers))
        self.head = nn.Linear(growth * (layers + 1), 10)

    def forward(self, pictures: Tensor) -> Tensor:
        """Concatenate, normalize, rectify, convolve."""
        seen = [self.stem(pictures)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            seen.append(conv(functional.relu(norm(torch.cat(seen, 1)))))
        logits: Tensor = self.head(torch.cat(seen, 1).mean((2, 3)))
        return logits


class TreeLSTM(nn.Module):
    """A child-sum LSTM over a tree given as nested lists of words (Tai et al., 2015): a tree to logits (1, 5)."""

    def __init__(self, *, width: int = 64, words: int = 50) -> None:
        """Hidden size `width`."""
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.leaf, self.inner = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.forget, self.head = nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, tree: object) -> Tensor:
        """Classify the root."""
        logits: Tensor = self.head(self._node(tree)[0])
        return logits

    def _node(self, tree: object) -> tuple[Tensor, Tensor]:
        if isinstance(tree, list):
            children = [self._node(child) for child in tree]
            hidden = torch.stack([h for h, _ in children]).sum(0)
            gates = self.inner(hidden)
            kept = sum((torch.sigmoid(self.forget(h)) * c for h, c in children), torch.zeros_like(hidden))
        else:
            gates = self.leaf(self.embed(torch.tensor([tree], device=self.embed.weight.device)))
            kept = gates.new_zeros(1, gates.shape[1] // 3)
        enter, leave, fresh = gates.chunk(3, 1)
        cell = torch.sigmoid(enter) * torch.tanh(fresh) + kept
        return torch.sigmoid(leave) * torch.tanh(cell), cell


class Experts(nn.Module):
    """A stack of layers whose rows go to the expert that a gate chooses by their values: (rows, width) to (rows, width)."""

    def __init__(self, *, layers: int = 4, experts: int = 4, width: int = 64) -> None:
        """Each expert is a linear layer, rectified."""
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width) for _ in range(experts)) for _ in range(layers)
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Each row through one expert a layer, weighed by the gate."""
        for gate, experts in zip(self.gates, self.experts, strict=True):
            weights = gate(rows).softmax(1)
            chosen = weights.argmax(1)
            mixed = torch.zeros_like(rows)
            for k, expert in enumerate(experts.children()):
                index = (chosen == k).nonzero().squeeze(1)
                if len(index):
                    part = functional.relu(expert(rows[index])) * weights[index, k].unsqueeze(1)
                    mixed = mixed.index_add(0, index, part)
            rows = rows + mixed
        return rows


class Detector(nn.Module):
    """A two-stage detector (Ren et al., 2015, in small): as many boxes are classified as the scores of a picture let through.

    Pictures (batch, 3, h, w) and targets (a class for each picture) to the loss. Every location of a feature map has an
    objectness score and a box around it; boxes whose score is above `threshold` are resampled to 4 x 4 and classified.
    """

    def __init__(self, *, width: int = 16, classes: int = 5, threshold: float = 0.0) -> None:
        """Convolutions with `width` channels and a stride of 4 in all; boxes of up to 8 x 8 locations."""
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.objectness, self.box = nn.Conv2d(width, 1, 1), nn.Conv2d(width, 4, 1)
        self.head = nn.Sequential(nn.Linear(16 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, classes))
        self.threshold = threshold

    def forward(self, pictures: Tensor, targets: Tensor) -> Tensor:
        """Propose, resample, classify; a picture without a box counts by its objectness alone."""
        features = self.backbone(pictures)
        scores, boxes = self.objectness(features), self.box(features)
        losses = [functional.softplus(-scores).mean() + boxes.square().mean()]
        for picture, target in enumerate(targets):
            rows, columns = (scores[picture, 0] > self.threshold).nonzero().unbind(1)
            if not len(rows):
                continue
            crops = self._crops(features[picture], torch.stack([rows, columns], 1), boxes[picture, :, rows, columns])
            weights = torch.sigmoid(scores[picture, 0, rows, columns])
            each = functional.cross_entropy(self.head(crops.flatten(1)), target.expand(len(rows)), reduction="none")
            losses.append((each * weights).mean())
        return torch.stack(losses).sum()

    def _crops(self, features: Tensor, centers: Tensor, boxes: Tensor) -> Tensor:
        """Features (channels, h, w) at 4 x 4 points of n boxes: (n, channels, 4, 4). `boxes` (4, n): shifts and sizes."""
        extent = torch.tensor(features.shape[1:], dtype=features.dtype, device=features.device)
        middle = 2 * (centers + 0.5 + torch.tanh(boxes[:2].T)) / extent - 1
        half = 8 * torch.sigmoid(boxes[2:].T) / extent
        steps = torch.linspace(-1, 1, 4, dtype=features.dtype, device=features.device)
        down, across = middle[:, :1] + half[:, :1] * steps, middle[:, 1:] + half[:, 1:] * steps
        grid = torch.stack([across[:, None, :].expand(-1, 4, 4), down[:, :, None].expand(-1, 4, 4)], 3)
        sampled: Tensor = functional.grid_sample(features.expand(len(grid), -1, -1, -1), grid, align_corners=False)
        return sampled


def _finish(loss: Tensor) -> Tensor:
    loss.backward()
    return loss


def _resnet(scale: int) -> Step:
    model, pictures, labels = (
        ResNet(blocks=(2, 2, 2, 2), width=8),
        torch.randn(2 * scale, 3, 32, 32),
        torch.randint(10, (2 * scale,)),
    )
    return lambda: _finish(model(pictures, labels))


def _densenet(scale: int) -> Step:
    model, pictures, labels = DenseNet(), torch.randn(2 * scale, 3, 16, 16), torch.randint(10, (2 * scale,))
    return lambda: _finish(functional.cross_entropy(model(pictures), labels))


def _unet(scale: int) -> Step:
    model, pictures, target = (
        UNet(levels=3, channels=8),
        torch.randn(2 * scale, 3, 32, 32),
        torch.randn(2 * scale, 1, 32, 32),
    )
    return lambda: _finish(model(pictures, target))


def _tree_lstm(scale: int) -> Step:
    def tree(depth: int) -> object:
        deep = depth > 0 and (depth > 3 or torch.rand(()).item() < 0.8)
        return [tree(depth - 1), tree(depth - 1)] if deep else int(torch.randint(50, ()))

    model, sentences = TreeLSTM(), [tree(5) for _ in range(scale)]
    return lambda: _finish(
        functional.cross_entropy(torch.cat([model(sentence) for sentence in sentences]), torch.ones(scale).long())
    )


def _lstm(scale: int) -> Step:
    cell, head = nn.LSTMCell(32, 64), nn.Linear(64, 1)
    words = torch.randn(40, 8 * scale, 32)

    def step() -> Tensor:
        hidden = state = torch.zeros(8 * scale, 64)
        for word in words:
            hidden, state = cell(word, (hidden, state))
        return _finish(head(hidden).square().mean())

    return step


def _transformer(scale: int) -> Step:
    model = GPT2(layers=4, width=64, heads=4, vocabulary=100, context=32)
    words = torch.randint(100, (2 * scale, 33))
    return lambda: _finish(model(words[:, :-1], words[:, 1:]))


def _adversarial(scale: int) -> Step:
    """A generator against a critic with a gradient penalty: gradients of gradients, both updated in place."""
    generator = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    noise, real = torch.randn(64 * scale, 16), torch.randn(64 * scale, 8)

    def step() -> Tensor:
        for _ in range(2):
            drawn = generator(noise).detach().requires_grad_()
            (slope,) = torch.autograd.grad(critic(drawn).sum(), drawn, create_graph=True)
            loss = critic(drawn).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
            slopes = torch.autograd.grad(loss, list(critic.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(critic.parameters(), slopes, strict=True):
                    parameter.sub_(0.01 * gradient)
        return _finish(-critic(generator(noise)).mean())

    return step


def _experts(scale: int) -> Step:
    model, rows = Experts(), torch.randn(128 * scale, 64)
    return lambda: _finish(model(rows).square().mean())


STEPS: dict[str, Callable[[int], Step]] = {
    "resnet": _resnet,
    "densenet": _densenet,
    "unet": _unet,
    "tree-lstm": _tree_lstm,
    "lstm": _lstm,
    "transformer": _transformer,
    "adversarial": _adversarial,
    "experts": _experts,
}
"""The eight models by name; each takes the factor of its batch, draws weights and data, and returns the step."""


def training_step(name: str, seed: int = 0, scale: int = 1) -> Step:
    """The step of a model of `STEPS`, weights and data from a seed; restores the global generator.

    Args:
        name: of the model.
        seed: of weights and data.
        scale: factor of the batch: with a larger one activations take a larger part of the memory.

    Raises:
        BadArgument: Z-ARG, for another name, a scale that is no positive int, or a seed that torch does not take.
    """
    if name not in STEPS:
        raise BadArgument("Z-ARG", f"{name!r} is not one of {', '.join(STEPS)}.", fix="give one of them.")
    whole(1).check(scale, "training_step: scale", rule="Z-ARG")
    if type(seed) is not int or not -(1 << 63) <= seed < 1 << 64:
        raise BadArgument("Z-ARG", f"training_step: seed is {seed!r:.80}.", fix="give an int from -2^63 to 2^64 - 1.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return STEPS[name](scale)
