"""The wide zoo: steps whose loss holds derivatives of a network, and steps of two players; torch alone."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.model import Call, returned_loss
from tests.models.wide_entry import alone


def multilayer(widths: list[int], activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layers += [activation()] if i else []
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


def slope(value: Tensor, place: Tensor) -> Tensor:
    """The derivative of a sum, itself differentiable."""
    return torch.autograd.grad(value.sum(), place, create_graph=True)[0]


class Burgers(nn.Module):
    """A physics-informed network: the residual of u_t + u u_x = v u_xx at points of space and time (Raissi et al., 2019)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.field = multilayer([2, *[width] * depth, 1])

    def forward(self, place: Tensor, time: Tensor) -> Tensor:
        place, time = place.requires_grad_(), time.requires_grad_()
        u = self.field(torch.cat((place, time), 1))
        along, later = slope(u, place), slope(u, time)
        return (later + u * along - 0.01 * slope(along, place)).square().mean()


class Plate(nn.Module):
    """A physics-informed network of fourth order: the biharmonic equation of a bent plate."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.field = multilayer([2, *[width] * depth, 1])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = x.requires_grad_(), y.requires_grad_()
        u = self.field(torch.cat((x, y), 1))
        curved = slope(slope(u, x), x) + slope(slope(u, y), y)
        return (slope(slope(curved, x), x) + slope(slope(curved, y), y) - 1).square().mean()


class ForceField(nn.Module):
    """Energies of atoms from messages along bonds, forces as their derivatives; both are fitted (Schuett et al., 2017)."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.filters = nn.ModuleList([multilayer([32, width, width], nn.SiLU) for _ in range(rounds)])
        self.updates = nn.ModuleList([multilayer([width, width, width], nn.SiLU) for _ in range(rounds)])
        self.energy = multilayer([width, width, 1], nn.SiLU)

    def forward(self, atoms: Tensor, place: Tensor, bonds: Tensor, force: Tensor) -> Tensor:
        place = place.requires_grad_()
        begin, end = bonds
        length = (place[begin] - place[end]).square().sum(1, keepdim=True).add(1e-6).sqrt()
        shells = torch.exp(-(length - torch.linspace(0, 5, 32)).square())
        x = self.first(atoms)
        for filter_, update in zip(self.filters, self.updates, strict=True):
            x = x + update(torch.zeros_like(x).index_add(0, end, x[begin] * filter_(shells)))
        energy = self.energy(x)
        return energy.square().mean() + (slope(energy, place) + force).square().mean()


class Critic(nn.Module):
    """Strided convolutions, then a score."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [3, *(width << k for k in range(levels))]
        pairs = itertools.pairwise(widths)
        self.body = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2)) for a, b in pairs),
            nn.Flatten(),
            nn.Linear(widths[-1] * 16, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class GradientPenalty(nn.Module):
    """The critic's step of an adversarial pair, with a penalty on its slope between real and made (Gulrajani et al., 2017)."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.critic = Critic(width, levels)

    def forward(self, real: Tensor, made: Tensor, share: Tensor) -> Tensor:
        between = (share * real + (1 - share) * made).requires_grad_()
        steep = slope(self.critic(between), between).flatten(1).norm(dim=1)
        return self.critic(made).mean() - self.critic(real).mean() + 10 * (steep - 1).square().mean()


class Adversaries(nn.Module):
    """A generator and a critic in one step: the critic's gradient is reversed (Ganin, 2015)."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.critic = Critic(width, levels)
        self.first = nn.Linear(64, (width << (levels - 1)) * 16)
        widths = [*(width << k for k in reversed(range(levels))), 3]
        pairs = itertools.pairwise(widths)
        self.generator = nn.Sequential(
            *(nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairs)
        )
        self.width = width << (levels - 1)

    def forward(self, noise: Tensor, real: Tensor) -> Tensor:
        made = torch.tanh(self.generator(self.first(noise).view(-1, self.width, 4, 4)))
        reversed_ = 2 * made.detach() - made
        return F.softplus(self.critic(reversed_)).mean() + F.softplus(-self.critic(real)).mean()


class MetaLearner(nn.Module):
    """A few steps of gradient descent on one task, then the loss on another part of it (Finn et al., 2017)."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        shapes = [(width, 16), (width, width), (width, width), (1, width)]
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(shape) / shape[1] ** 0.5) for shape in shapes])
        self.steps = steps

    def forward(self, support: Tensor, answer: Tensor, query: Tensor, target: Tensor) -> Tensor:
        weights = list(self.weights)
        for _ in range(self.steps):
            loss = F.mse_loss(self.answer(weights, support), answer)
            slopes = torch.autograd.grad(loss, weights, create_graph=True)
            weights = [w - 0.01 * g for w, g in zip(weights, slopes, strict=True)]
        return F.mse_loss(self.answer(weights, query), target)

    @staticmethod
    def answer(weights: list[Tensor], x: Tensor) -> Tensor:
        """The network with some weights."""
        for w in weights[:-1]:
            x = torch.tanh(F.linear(x, w))
        return F.linear(x, weights[-1])


class RadianceField(nn.Module):
    """Colours and densities along rays, summed to pixels (Mildenhall et al., 2020); coarse and fine samples."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.trunks = nn.ModuleList([self._trunk(width, depth) for _ in range(2)])
        self.density = nn.ModuleList([nn.Linear(width, 1) for _ in range(2)])
        self.colour = nn.ModuleList([multilayer([width + 27, width // 2, 3], nn.ReLU) for _ in range(2)])

    @staticmethod
    def _trunk(width: int, depth: int) -> nn.ModuleList:
        return nn.ModuleList([nn.Linear(63 if i == 0 else width + 63 * (i == 4), width) for i in range(depth)])

    def forward(self, origin: Tensor, towards: Tensor, far: Tensor, picture: Tensor) -> Tensor:
        losses = []
        for trunk, density, colour in zip(self.trunks, self.density, self.colour, strict=True):
            place = origin[:, None] + far[..., None] * towards[:, None]
            code = _waves(place, 10)
            x = code
            for i, layer in enumerate(trunk):
                x = F.relu(layer(torch.cat((x, code), -1) if i == 4 else x))
            side = _waves(towards, 4)[:, None].expand(-1, far.shape[1], -1)
            shade = torch.sigmoid(colour(torch.cat((x, side), -1)))
            opaque = 1 - torch.exp(-F.relu(density(x)[..., 0]) * 0.1)
            through = torch.cumprod(1 - opaque + 1e-10, 1)
            losses.append(F.mse_loss(((opaque * through)[..., None] * shade).sum(1), picture))
        return torch.stack(losses).sum()


def _waves(x: Tensor, levels: int) -> Tensor:
    """Coordinates with sines and cosines of their multiples."""
    scaled = [x * 2.0**k for k in range(levels)]
    return torch.cat([x, *(f(s) for s in scaled for f in (torch.sin, torch.cos))], -1)


def _bonds(atoms: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.randn(atoms, 16), torch.randn(atoms, 3), torch.randint(atoms, (2, count)), torch.randn(atoms, 3)


MODELS = (
    alone("burgers", lambda: Burgers(256, 8), lambda: Call((torch.rand(16384, 1), torch.rand(16384, 1))), returned_loss,
          "derivatives"),
    alone("plate", lambda: Plate(128, 2), lambda: Call((torch.rand(16384, 1), torch.rand(16384, 1))), returned_loss,
          "derivatives"),
    alone("forces", lambda: ForceField(128, 5), lambda: Call(_bonds(2048, 32768)), returned_loss, "derivatives", "messages"),
    alone("gradient-penalty", lambda: GradientPenalty(64, 4),
          lambda: Call((torch.randn(64, 3, 64, 64), torch.randn(64, 3, 64, 64), torch.rand(64, 1, 1, 1))), returned_loss,
          "derivatives", "adversarial"),
    alone("adversaries", lambda: Adversaries(64, 4), lambda: Call((torch.randn(64, 64), torch.randn(64, 3, 64, 64))),
          returned_loss, "adversarial"),
    alone("meta-learner", lambda: MetaLearner(256, 5),
          lambda: Call(tuple(torch.randn(8192, n) for n in (16, 1, 16, 1))), returned_loss, "derivatives", "recurrent"),
    alone("radiance", lambda: RadianceField(256, 8),
          lambda: Call((torch.randn(1024, 3), torch.randn(1024, 3), torch.rand(1024, 64), torch.rand(1024, 3))),
          returned_loss, "deep-equal"),
)  # fmt: skip
