"""Odd modules whose Python draws random numbers, reads a clock, or is handed a generator."""

import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.exec.odd.base import Block, Blocks, Body
from tests.exec.odd.judging import EITHER, EXACT, REFUSED, odd, rows


@odd("python-random-decides-a-branch", EITHER)
class RandomBranch(Body):
    def __init__(self):
        super().__init__()
        self.extra = Block()

    def forward(self, x):
        x = self.hidden(x)
        if random.random() > 0.5:
            x = x + self.extra(x)
        return self.loss(x)


@odd("numpy-random-is-a-factor", EITHER)
class NumpyFactor(Body):
    def forward(self, x):
        return self.loss(self.hidden(x) * float(np.random.rand()))


@odd("numpy-makes-a-mask", EITHER)
class NumpyMask(Body):
    def forward(self, x):
        x = self.hidden(x)
        return self.loss(x * torch.from_numpy(np.random.rand(*x.shape) > 0.2))


@odd("random-generator-of-its-own", EITHER)
class OwnRandom(Body):
    def __init__(self):
        super().__init__()
        self.random = random.Random(3)

    def forward(self, x):
        return self.loss(self.hidden(x) * self.random.uniform(0.5, 1.5))


@odd("numpy-generator-of-its-own", EITHER)
class OwnNumpy(Body):
    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng(3)

    def forward(self, x):
        return self.loss(self.hidden(x) * float(self.random.normal()))


@odd("numpy-random-state-of-its-own", EITHER)
class OwnRandomState(Body):
    def __init__(self):
        super().__init__()
        self.random = np.random.RandomState(3)

    def forward(self, x):
        x = self.hidden(x)
        return self.loss(x if self.random.randint(2) else -x)


@odd("clock-is-a-factor", REFUSED)
class Clock(Body):
    def forward(self, x):
        return self.loss(self.hidden(x) * (1 + time.time() % 1))


@odd("clock-measures-the-forward", REFUSED)
class Stopwatch(Body):
    def __init__(self):
        super().__init__()
        self.seconds = 0.0

    def forward(self, x):
        start = time.perf_counter()
        x = self.hidden(x)
        self.seconds += time.perf_counter() - start
        return self.loss(x * (1 + self.seconds))


@odd("layer-drop-by-python", EITHER)
class PythonLayerDrop(Blocks):
    def forward(self, x):
        for block in self.blocks:
            if random.random() < 0.3:
                continue
            x = block(x)
        return self.head(x).square().mean()


@odd("layer-drop-by-torch", EITHER)
class TorchLayerDrop(Blocks):
    def forward(self, x):
        for block in self.blocks:
            if torch.rand([]) < 0.3:
                continue
            x = block(x)
        return self.head(x).square().mean()


@odd("random-choice-of-a-layer", EITHER)
class Choice(Blocks):
    def forward(self, x):
        for _ in range(4):
            x = random.choice(self.blocks)(x)
        return self.head(x).square().mean()


@odd("random-order-of-layers", EITHER)
class Shuffle(Blocks):
    def forward(self, x):
        order = list(self.blocks)
        random.shuffle(order)
        for block in order:
            x = block(x)
        return self.head(x).square().mean()


@odd("numpy-permutation-of-rows", EITHER)
class Mixup(Body):
    def forward(self, x):
        other = torch.from_numpy(np.random.permutation(len(x)))
        return self.loss(self.hidden(0.7 * x + 0.3 * x[other]))


@odd("draw-decides-a-size", EITHER)
class Crop(Body):
    def forward(self, x):
        rows = int(torch.randint(32, len(x), ()))
        return self.loss(self.hidden(x[:rows]))


@odd("python-random-seeded-inside", EITHER)
class SeedsPython(Body):
    def forward(self, x):
        random.seed(len(x))
        return self.loss(self.hidden(x) * random.random())


@odd("torch-seeded-inside", REFUSED)
class SeedsTorch(Body):
    def forward(self, x):
        torch.manual_seed(len(x))
        return self.loss(self.hidden(x))


@odd("torch-seeded-inside-as-it-was-before", REFUSED)
class SeedsTheSame(Body):
    """The generator is in this very state when the module is wrapped."""

    def forward(self, x):
        torch.manual_seed(1)
        return self.loss(self.hidden(x))


@odd("torch-seeded-inside-a-fork", REFUSED)
class SeedsForked(Body):
    def forward(self, x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(42)
            noise = torch.rand_like(x)
        return self.loss(self.hidden(x * noise))


@odd("torch-seeded-and-put-back", REFUSED)
class SeedsAndPutsBack(Body):
    def forward(self, x):
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(42)
        x = self.dropout(x)
        generator.set_state(state)
        return self.loss(self.hidden(x))


@odd("torch-drawn-from-inside-a-fork", REFUSED)
class DrawsForked(Body):
    """The fork takes its draws back, so that the next ones are the same."""

    def forward(self, x):
        with torch.random.fork_rng(devices=[]):
            noise = torch.rand_like(x)
        return self.loss(self.hidden(x * noise))


@odd("fork-that-draws-nothing", EXACT)
class IdleFork(Body):
    def forward(self, x):
        with torch.random.fork_rng(devices=[]):
            x = self.layers[0](x)
        return self.loss(self.hidden(x))


@odd("random-drawn-and-thrown-away", EITHER)
class Wasteful(Body):
    def forward(self, x):
        random.random(), np.random.rand()
        return self.loss(self.hidden(x))


def with_generator(step):
    return {"x": rows(step)[0], "generator": torch.Generator().manual_seed(step)}


@odd("generator-as-an-argument", EITHER, inputs=with_generator)
class GeneratorArgument(Body):
    def forward(self, x, generator):
        noise = torch.rand(x.shape, generator=generator)
        return self.loss(self.hidden(x * noise))


@odd("generator-as-an-attribute", EITHER)
class GeneratorAttribute(Body):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x):
        x = self.hidden(x)
        return self.loss(x * torch.bernoulli(torch.full_like(x, 0.8), generator=self.generator))


class Noise:
    """A helper that is no module."""

    def __init__(self):
        self.random = random.Random(7)
        self.last = None

    def level(self):
        self.last = self.random.gauss(1, 0.1)
        return self.last


@odd("random-generator-in-a-helper", EITHER)
class NoiseHelper(Body):
    def __init__(self):
        super().__init__()
        self.noise = Noise()

    def forward(self, x):
        return self.loss(self.hidden(x) * self.noise.level())


@odd("random-in-a-submodule-and-dropout", EITHER)
class JitteredDropout(nn.Sequential):
    """The probability of each dropout is drawn anew."""

    def __init__(self):
        super().__init__(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        self[2].p = random.choice([0.1, 0.3])
        return super().forward(x).square().mean()


@odd("python-looks-at-what-was-drawn-into-empty-memory", EXACT, options={"budget": "80%"})
class DrawnIntoEmpty(Body):
    def forward(self, x):
        x = functional.rrelu(self.hidden(x), training=True) + torch.empty_like(x).log_normal_()
        if x.isnan().any():
            x = torch.zeros_like(x)
        return self.loss(x)
