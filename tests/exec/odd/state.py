"""Odd modules that keep plain Python state: counters, lists, caches, what the first forward makes."""

import collections
import functools
import itertools
import types

import torch
from torch import nn
from torch.nn import functional

from tests.exec.odd.base import Blocks, Body, seeded
from tests.exec.odd.judging import EITHER, EXACT, REFUSED, WIDTH, odd


@odd("counter-in-a-dict", EITHER)
class DictCounter(Body):
    def __init__(self):
        super().__init__()
        self.stats = {"n": 0}

    def forward(self, x):
        self.stats["n"] += 1
        return self.loss(self.hidden(x))


@odd("counter-scales-the-output", EITHER)
class Warmup(Body):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.loss(self.hidden(x)) * min(1.0, self.calls / 3)


class Tally:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count


@odd("counter-in-a-helper-object", EITHER)
class HelperCounter(Body):
    def __init__(self):
        super().__init__()
        self.tally = Tally()

    def forward(self, x):
        return self.loss(self.hidden(x)) / self.tally.add()


@odd("counter-in-a-closure", EITHER)
def closure_counter():
    count = 0

    def bump():
        nonlocal count
        count += 1
        return count

    class ClosureCounter(Body):
        def forward(self, x):
            return self.loss(self.hidden(x)) * bump()

    return ClosureCounter()


@odd("counter-of-itertools", EITHER)
class Itertools(Body):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)

    def forward(self, x):
        return self.loss(self.hidden(x)) / next(self.numbers)


@odd("iterator-over-a-schedule", EITHER)
class Schedule(Body):
    def __init__(self):
        super().__init__()
        self.scales = iter([1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125])

    def forward(self, x):
        return self.loss(self.hidden(x)) * next(self.scales)


CALLS = {"n": 0}


class GlobalCounter(Body):
    def forward(self, x):
        CALLS["n"] += 1
        return self.loss(self.hidden(x)) * CALLS["n"]


@odd("counter-in-a-global-dict", EITHER)
def global_counter():
    CALLS["n"] = 0
    return GlobalCounter()


TOTAL = 0


class GlobalName(Body):
    def forward(self, x):
        global TOTAL
        TOTAL += 1
        return self.loss(self.hidden(x)) * TOTAL


@odd("counter-in-a-global-name", EITHER)
def global_name():
    global TOTAL
    TOTAL = 0
    return GlobalName()


class ClassCounter(Body):
    calls = 0

    def forward(self, x):
        ClassCounter.calls += 1
        return self.loss(self.hidden(x)) * ClassCounter.calls


@odd("counter-on-the-class", EITHER)
def class_counter():
    ClassCounter.calls = 0
    return ClassCounter()


@odd("list-of-tensors-appended", EITHER)
class Seen(Body):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        x = self.hidden(x)
        self.seen.append(x.detach())
        return self.loss(x)


@odd("list-of-sizes-appended", EITHER)
class Sizes(Body):
    def __init__(self):
        super().__init__()
        self.sizes = []

    def forward(self, x):
        self.sizes.append(x.shape[0])
        return self.loss(self.hidden(x))


@odd("deque-of-recent-means", EITHER)
class Recent(Body):
    def __init__(self):
        super().__init__()
        self.recent = collections.deque(maxlen=2)

    def forward(self, x):
        x = self.hidden(x)
        self.recent.append(x.mean().item())
        return self.loss(x) * (1 + sum(self.recent))


@odd("running-mean-in-a-plain-tensor", EITHER)
class PlainAverage(Body):
    def __init__(self):
        super().__init__()
        self.average = torch.zeros(WIDTH)

    def forward(self, x):
        x = self.hidden(x)
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.loss(x - self.average)


@odd("plain-tensor-written-in-place", EITHER)
class PlainInPlace(Body):
    def __init__(self):
        super().__init__()
        self.average = torch.zeros(WIDTH)

    def forward(self, x):
        x = self.hidden(x)
        self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.loss(x - self.average)


@odd("hidden-state-that-begins-as-none", EXACT)
class Remembers(Body):
    """As recurrent policies do: what a call leaves is what the next one reads, and decides what it does."""

    def __init__(self):
        super().__init__()
        self.state = None

    def forward(self, x):
        x = self.hidden(x) if self.state is None else self.hidden(x + self.state)
        self.state = x.detach().mean(0)
        return self.loss(x)


@odd("hidden-state-in-a-dict", EXACT)
class RemembersByLayer(Body):
    def __init__(self):
        super().__init__()
        self.memory = {}

    def forward(self, x):
        for name, layer in enumerate(self.layers):
            x = torch.tanh(layer(x) + self.memory.get(name, 0.0))
            self.memory[name] = x.detach().mean(0)
        return self.loss(x)


# What the trace makes of it is the old value in the forward, and nothing after it.
@odd("data-assigned", REFUSED)
class AssignsData(Body):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x):
        self.teacher.weight.data = 0.9 * self.teacher.weight.data + 0.1 * self.layers[0].weight.data
        return functional.mse_loss(self.hidden(x), self.teacher(x))


@odd("backward-hook-that-counts", REFUSED)
def counts_backward():
    module = Body()
    module.seen = {"backward": 0}

    def count(layer, inputs, outputs):
        module.seen["backward"] += 1

    module.layers[1].register_full_backward_hook(count)
    return module


@odd("plain-tensor-read", EITHER)
class PlainTensor(Body):
    def __init__(self):
        super().__init__()
        self.scale = torch.linspace(0.5, 1.5, WIDTH)
        self.tables = {"shift": [torch.ones(WIDTH)]}

    def forward(self, x):
        return self.loss(self.hidden(x) * self.scale + self.tables["shift"][0])


@odd("table-made-in-the-first-forward", EITHER)
class LazyTable(Body):
    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(WIDTH, dtype=x.dtype) / WIDTH
        return self.loss(self.hidden(x) * self.table)


def growing(step):
    return (torch.randn((256, 200, 300, 256)[step], WIDTH, generator=seeded(step)),)


@odd("rotary-table-that-grows", EITHER, inputs=growing)
class Rotary(Body):
    def __init__(self):
        super().__init__()
        self.length, self.cosine = 0, None

    def forward(self, x):
        if len(x) > self.length:
            self.length = len(x)
            self.cosine = torch.cos(torch.arange(len(x), dtype=x.dtype))[:, None]
        return self.loss(self.hidden(x) * self.cosine[: len(x)])


@odd("buffer-registered-in-the-first-forward", EITHER)
class LazyBuffer(Body):
    def forward(self, x):
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.arange(WIDTH, dtype=x.dtype) / WIDTH)
        return self.loss(self.hidden(x) * self.table)


@odd("layer-made-in-the-first-forward", EITHER)
class LazyLayer(Body):
    def __init__(self):
        super().__init__()
        self.extra = None

    def forward(self, x):
        if self.extra is None:
            self.extra = nn.Linear(WIDTH, WIDTH)
        return self.loss(self.extra(self.hidden(x)))


@odd("hook-registered-in-the-first-forward", EITHER)
class LazyHook(Blocks):
    def __init__(self):
        super().__init__()
        self.ready = False

    def forward(self, x):
        if not self.ready:
            self.blocks[0].register_forward_hook(lambda module, args, out: out * 1.5)
            self.ready = True
        return super().forward(x)


@odd("hooks-that-capture-outputs", EITHER)
class Captures(Blocks):
    """Hidden states gathered by hooks that are installed once, as transformers does."""

    def __init__(self):
        super().__init__()
        self._installed = False
        self._hidden = None

    def forward(self, x):
        if not self._installed:
            for block in self.blocks:
                block.register_forward_hook(lambda module, args, out: self._hidden.append(out))
            self._installed = True
        self._hidden = []
        loss = super().forward(x)
        hidden, self._hidden = self._hidden, None
        return {"loss": loss, "hidden": tuple(hidden)}


def loss_of_dict(_, out):
    return out["loss"]


@odd("hook-added-and-removed-in-each-forward", EITHER)
class TemporaryHook(Blocks):
    def forward(self, x):
        handle = self.blocks[1].register_forward_hook(lambda module, args, out: out * 2)
        try:
            return super().forward(x)
        finally:
            handle.remove()


@odd("config-value-set-by-the-first-forward", EXACT)
class LazyConfig(Body):
    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(problem_type=None)

    def forward(self, x):
        if self.config.problem_type is None:
            self.config.problem_type = "regression"
        x = self.hidden(x)
        return self.loss(x) if self.config.problem_type == "regression" else x.sum()


@odd("scratch-tensor-written-before-it-is-read", EXACT)
class Scratch(Blocks):
    """As RAFT does: an attribute that is only a way to hand a tensor on."""

    def __init__(self):
        super().__init__()
        self.volume = None

    def forward(self, x):
        self.volume = torch.tanh(x)
        for block in self.blocks:
            x = block(x + self.volume)
        self.volume = None
        return self.head(x).square().mean()


@odd("scratch-tensor-kept-until-the-next-forward", EITHER)
class Lingering(Blocks):
    def forward(self, x):
        self.volume = torch.tanh(x)
        for block in self.blocks:
            x = block(x + self.volume)
        return self.head(x).square().mean()


@odd("auxiliary-loss-as-an-attribute", EITHER, loss=lambda module, out: out + module.auxiliary)
class Auxiliary(Body):
    def forward(self, x):
        x = self.hidden(x)
        self.auxiliary = 0.01 * x.square().sum()
        return self.loss(x)


@odd("auxiliary-losses-in-a-list", EITHER, loss=lambda module, out: out + sum(module.losses))
class AuxiliaryList(Blocks):
    """As mixtures of experts do."""

    def forward(self, x):
        self.losses = []
        for block in self.blocks:
            x = block(x)
            self.losses.append(0.01 * x.square().mean())
        return self.head(x).square().mean()


@odd("best-loss-remembered", EITHER)
class Best(Body):
    def __init__(self):
        super().__init__()
        self.best = float("inf")

    def forward(self, x):
        loss = self.loss(self.hidden(x))
        self.best = min(self.best, loss.item())
        return loss


@odd("cached-property", EITHER)
class Cached(Body):
    @functools.cached_property
    def table(self):
        return torch.linspace(0, 1, WIDTH)

    def forward(self, x):
        return self.loss(self.hidden(x) * self.table)


@functools.lru_cache
def causal(length):
    return torch.ones(length, length).tril()


class LruCache(Body):
    def forward(self, x):
        return self.loss(causal(len(x)) @ self.hidden(x) / WIDTH)


@odd("tensor-in-an-lru-cache", EITHER, options={"budget": "100%"})
def lru_cached():
    causal.cache_clear()
    return LruCache()


MASKS = {}


class GlobalCache(Body):
    def forward(self, x):
        if len(x) not in MASKS:
            MASKS[len(x)] = torch.ones(len(x), len(x)).tril()
        return self.loss(MASKS[len(x)] @ self.hidden(x) / WIDTH)


@odd("tensor-in-a-global-cache", EITHER, options={"budget": "100%"})
def globally_cached():
    MASKS.clear()
    return GlobalCache()


@odd("defaultdict-that-grows-when-read", EITHER)
class Default(Body):
    def __init__(self):
        super().__init__()
        self.weights = collections.defaultdict(lambda: 1.5)

    def forward(self, x):
        return self.loss(self.hidden(x) * self.weights[len(x)])


@odd("queue-of-keys-in-a-buffer", EITHER)
class Queue(Body):
    """As MoCo does: where to write is read from a buffer that the step writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(1024, WIDTH))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        x = self.hidden(x)
        loss = self.loss(x) + (x @ self.queue.clone().t()).square().mean()
        at = int(self.pointer)
        with torch.no_grad():
            self.queue[at : at + len(x)] = x.detach()
            self.pointer[0] = (at + len(x)) % 1024
        return loss


@odd("teacher-averaged-in-the-forward", EXACT)
class Teacher(Body):
    """As BYOL does: parameters that need no gradient follow others."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.layers[0].parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
        target = self.teacher(x)
        return functional.mse_loss(self.hidden(x), target)


@odd("state-swapped-and-put-back", EITHER)
class Borrowed(Body):
    """Something is changed for the time of the forward alone."""

    def forward(self, x):
        before, self.dropout.p = self.dropout.p, 0.5
        x = self.hidden(x)
        self.dropout.p = before
        return self.loss(x)
