"""The wide zoo: message passing, two towers, mixtures of experts, pairs of residues; torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.model import Call, classified, returned_loss
from tests.models.wide_derivatives import multilayer
from tests.models.wide_entry import alone
from tests.models.wide_fields import normed


class Messages(nn.Module):
    """States of nodes and edges, both updated layer by layer (Sanchez-Gonzalez et al., 2020)."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.nodes, self.edges = nn.Linear(16, width), nn.Linear(4, width)
        self.along = nn.ModuleList([multilayer([3 * width, width, width], nn.ReLU) for _ in range(rounds)])
        self.at = nn.ModuleList([multilayer([2 * width, width, width], nn.ReLU) for _ in range(rounds)])
        self.head = nn.Linear(width, 10)

    def forward(self, nodes: Tensor, edges: Tensor, ends: Tensor) -> Tensor:
        x, e = self.nodes(nodes), self.edges(edges)
        begin, end = ends
        for along, at in zip(self.along, self.at, strict=True):
            e = e + along(torch.cat((e, x[begin], x[end]), 1))
            x = x + at(torch.cat((x, torch.zeros_like(x).index_add(0, end, e)), 1))
        return self.head(x)


class GraphAttention(nn.Module):
    """Attention over edges, several heads, states of all layers joined (Velickovic et al., 2018)."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.first, self.heads = nn.Linear(16, width), heads
        self.values = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.scores = nn.ModuleList([nn.Linear(width // heads, 2) for _ in range(layers)])
        self.head = nn.Linear(width * (layers + 1), 10)

    def forward(self, nodes: Tensor, ends: Tensor) -> Tensor:
        begin, end = ends
        states = [self.first(nodes)]
        for value, score in zip(self.values, self.scores, strict=True):
            v = value(states[-1]).unflatten(1, (self.heads, -1))
            towards, away = score(v).unbind(-1)
            weight = F.leaky_relu(towards[begin] + away[end], 0.2).exp()
            total = torch.zeros_like(towards).index_add(0, end, weight) + 1e-6
            mixed = torch.zeros_like(v).index_add(0, end, weight[..., None] * v[begin]) / total[..., None]
            states.append(F.elu(mixed.flatten(1)))
        return self.head(torch.cat(states, 1))


class Tower(nn.Module):
    """A small residual net over pictures, then a direction."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = normed(3, width, stride=2)
        self.body = nn.ModuleList([nn.Sequential(normed(width, width), normed(width, width)) for _ in range(depth)])
        self.head = multilayer([width, 2 * width, 128], nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.body:
            x = x + block(x)
        return F.normalize(self.head(x.mean((2, 3))), dim=1)


class Contrast(nn.Module):
    """One tower over two views of each picture; every other picture is a counterexample (Chen et al., 2020)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tower = Tower(width, depth)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        scores = self.tower(first) @ self.tower(second).T / 0.1
        target = torch.arange(scores.shape[0])
        return F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)


class Teacher(nn.Module):
    """A tower learns from a second one without gradients, both ways (Grill et al., 2020)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.student, self.teacher = Tower(width, depth), Tower(width, depth).requires_grad_(False)
        self.guess = multilayer([128, 512, 128], nn.ReLU)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        losses = []
        for here, there in ((first, second), (second, first)):
            with torch.no_grad():
                goal = self.teacher(there)
            losses.append(2 - 2 * (F.normalize(self.guess(self.student(here)), dim=1) * goal).sum(1).mean())
        return torch.stack(losses).sum()


class Routed(nn.Module):
    """A layer of experts with room for a fixed number of tokens each, two experts a token, by products (Fedus et al., 2021)."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.norm, self.route = nn.LayerNorm(width), nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) / width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        share = self.route(tokens).softmax(-1)
        top, choice = share.topk(2, -1)
        room = 2 * tokens.shape[0] // share.shape[1]
        chosen = (choice[..., None] == torch.arange(share.shape[1])).long().flatten(0, 1)
        place = (chosen.cumsum(0) * chosen - 1).unflatten(0, (-1, 2)).amax(-1)
        kept = (place < room).to(x.dtype) * top
        slot = choice * room + place.clamp(0, room - 1)
        sent = tokens.new_zeros(share.shape[1] * room, tokens.shape[1])
        sent = sent.index_add(0, slot[:, 0], tokens).index_add(0, slot[:, 1], tokens)
        done = torch.bmm(F.gelu(torch.bmm(sent.unflatten(0, (-1, room)), self.up)), self.down).flatten(0, 1)
        mixed = (done[slot] * kept[..., None]).sum(1)
        return x + mixed.view_as(x)


class Experts(nn.Module):
    """A language model whose every second layer is a mixture of experts."""

    def __init__(self, width: int, layers: int, experts: int) -> None:
        super().__init__()
        self.words = nn.Embedding(8192, width)
        self.attention = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(width, width // 64, 2 * width, dropout=0.0, batch_first=True)
                for _ in range(layers)
            ]
        )
        self.experts = nn.ModuleList([Routed(width, experts) for _ in range(layers)])
        self.head = nn.Linear(width, 8192)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for attention, experts in zip(self.attention, self.experts, strict=True):
            x = experts(attention(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Pairs(nn.Module):
    """A matrix of pairs that is updated over triangles and by the outer product of a sequence (Jumper et al., 2021)."""

    def __init__(self, single: int, pair: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(pair) for _ in range(4)])
        self.sides = nn.ModuleList([nn.Linear(pair, 2 * pair) for _ in range(2)])
        self.gates = nn.ModuleList([nn.Linear(pair, pair) for _ in range(2)])
        self.bias, self.attend = nn.Linear(pair, 4), nn.Linear(single, 3 * single)
        self.outer, self.back = nn.Linear(single, 32), nn.Linear(32 * 32, pair)
        self.single, self.pair = (
            multilayer([single, 4 * single, single], nn.ReLU),
            multilayer([pair, 4 * pair, pair], nn.ReLU),
        )
        self.normed = nn.LayerNorm(single)

    def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = self.attend(self.normed(x)).unflatten(-1, (4, -1)).transpose(1, 2).chunk(3, -1)
        share = (query @ key.mT / query.shape[-1] ** 0.5 + self.bias(self.norms[0](z)).permute(0, 3, 1, 2)).softmax(-1)
        x = x + (share @ value).transpose(1, 2).flatten(2)
        x = x + self.single(x)
        a = self.outer(x)
        z = z + self.back((a[:, :, None, :, None] * a[:, None, :, None, :]).flatten(3))
        for how, norm, side, gate in zip(
            ("bikc,bjkc->bijc", "bkic,bkjc->bijc"), self.norms[1:], self.sides, self.gates, strict=False
        ):
            y = norm(z)
            left, right = side(y).chunk(2, -1)
            z = z + gate(y).sigmoid() * torch.einsum(how, left.sigmoid(), right)
        return x, z + self.pair(self.norms[3](z))


class Folding(nn.Module):
    """Blocks of sequence and pairs, distances at the end."""

    def __init__(self, single: int, pair: int, blocks: int) -> None:
        super().__init__()
        self.single, self.pair = nn.Linear(32, single), nn.Linear(32, pair)
        self.blocks = nn.ModuleList([Pairs(single, pair) for _ in range(blocks)])
        self.head = nn.Linear(pair, 64)

    def forward(self, x: Tensor) -> Tensor:
        z = self.pair(x[:, :, None] * x[:, None])
        x = self.single(x)
        for block in self.blocks:
            x, z = block(x, z)
        return self.head(z)


class Latents(nn.Module):
    """A few latent vectors read a long input again and again (Jaegle et al., 2021)."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.latents, self.first = nn.Parameter(torch.randn(64, width)), nn.Linear(32, width)
        heads = width // 64
        self.read = nn.ModuleList([nn.MultiheadAttention(width, heads, batch_first=True) for _ in range(rounds)])
        self.think = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
                for _ in range(2 * rounds)
            ]
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.latents.expand(x.shape[0], -1, -1)
        for i, read in enumerate(self.read):
            y = y + read(y, x, x, need_weights=False)[0]
            y = self.think[2 * i + 1](self.think[2 * i](y))
        return self.head(y.mean(1))


def views() -> Call:
    """Two views of pictures."""
    return Call((torch.randn(64, 3, 64, 64), torch.randn(64, 3, 64, 64)))


MODELS = (
    alone("messages", lambda: Messages(128, 10),
          lambda: Call((torch.randn(4096, 16), torch.randn(32768, 4), torch.randint(4096, (2, 32768)))), classified, "messages"),
    alone("graph-attention", lambda: GraphAttention(256, 8, 8),
          lambda: Call((torch.randn(8192, 16), torch.randint(8192, (2, 65536)))), classified, "messages", "dense"),
    alone("contrast", lambda: Contrast(64, 8), views, returned_loss, "two-tower"),
    alone("teacher", lambda: Teacher(64, 8), views, returned_loss, "two-tower"),
    alone("experts", lambda: Experts(512, 6, 8), lambda: Call((torch.randint(8192, (32, 256)),)), returned_loss, "experts"),
    alone("folding", lambda: Folding(256, 64, 6), lambda: Call((torch.randn(1, 192, 32),)), classified, "pairs"),
    alone("latents", lambda: Latents(512, 4), lambda: Call((torch.randn(16, 2048, 32),)), classified, "cross-attention"),
)  # fmt: skip
