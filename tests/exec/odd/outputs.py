"""Odd outputs: objects, nests, aliases; what eager returns is returned, equal."""

import collections
import dataclasses

import torch
from torch.nn import functional

from tests.exec.odd.base import Blocks, Body
from tests.exec.odd.judging import EITHER, EXACT, REFUSED, WIDTH, odd


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    hidden: torch.Tensor | None = None
    note: str = "plain"


@odd("dataclass-with-the-loss-inside", EXACT, loss=lambda _, out: out.loss)
class ReturnsDataclass(Body):
    def forward(self, x):
        x = self.hidden(x)
        return Result(loss=self.loss(x), hidden=x)


@odd("dataclass-with-the-loss-outside", EXACT, options={"loss_reserve": "64KiB"})
class ReturnsDataclassOfHidden(Body):
    def forward(self, x):
        hidden = self.hidden(x)
        return Result(loss=self.head(hidden), hidden=hidden)


class Memory:
    """A cache of layers, as transformers has: objects in a list in an object."""

    def __init__(self):
        self.layers = []
        self.length = 0

    def update(self, keys):
        self.layers.append(MemoryLayer(keys))
        self.length = len(keys)


class MemoryLayer:
    def __init__(self, keys):
        self.keys = keys
        self.is_initialized = True


@odd("custom-object-with-tensors", EXACT, loss=lambda _, out: out["loss"])
class ReturnsCache(Blocks):
    def forward(self, x):
        memory = Memory()
        for block in self.blocks:
            x = block(x)
            memory.update(x)
        return {"loss": self.head(x).square().mean(), "cache": memory}


@odd("custom-object-through-which-gradients-come", EXACT, options={"loss_reserve": "64KiB"})
class ReturnsObject(Blocks):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return MemoryLayer(x)


Pair = collections.namedtuple("Pair", "left right")


def loss_of_nest(_, out):
    return out["loss"]


@odd("nest-of-dict-list-and-namedtuple", EXACT, loss=loss_of_nest)
class ReturnsNest(Body):
    def forward(self, x):
        x = self.hidden(x)
        return {"loss": self.loss(x), "parts": [x, Pair(x * 2, (x[:, 0], [x.sum(0)]))], "names": ("a", None, 3)}


@odd("same-tensor-twice", EXACT, loss=lambda _, out: out[0])
class ReturnsTwice(Body):
    def forward(self, x):
        loss = self.loss(self.hidden(x))
        return loss, loss


@odd("input-returned", EXACT, loss=lambda _, out: out[0])
class ReturnsInput(Body):
    def forward(self, x):
        return self.loss(self.hidden(x)), x


@odd("view-of-an-input-returned", EXACT, loss=lambda _, out: out[0])
class ReturnsViewOfInput(Body):
    def forward(self, x):
        return self.loss(self.hidden(x)), x[:, :3].t()


@odd("parameter-returned", EITHER, loss=lambda _, out: out[0])
class ReturnsParameter(Body):
    def forward(self, x):
        return self.loss(self.hidden(x)), self.head.weight


@odd("buffer-returned", EITHER, loss=lambda _, out: out[0])
class ReturnsBuffer(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(WIDTH))

    def forward(self, x):
        return self.loss(self.hidden(x)), self.table


@odd("two-views-of-one-tensor", EXACT, options={"loss_reserve": "64KiB", "budget": "80%"})
class ReturnsViews(Body):
    def forward(self, x):
        x = self.hidden(x)
        return x[:, :8], x[:, 8:], x.t()


@odd("none-and-plain-fields", EXACT, loss=loss_of_nest)
class ReturnsPlain(Body):
    def forward(self, x):
        x = self.hidden(x)
        return {"loss": self.loss(x), "none": None, "rows": len(x), "scale": 0.5, "name": "body", "flag": True}


class ModelOutput(collections.OrderedDict):
    """A mapping with attributes, as transformers has."""

    def __init__(self, **fields):
        super().__init__(fields)
        self.__dict__.update(fields)


@odd("mapping-with-attributes", EXACT, loss=lambda _, out: out.loss)
class ReturnsModelOutput(Body):
    def forward(self, x):
        x = self.hidden(x)
        return ModelOutput(loss=self.loss(x), hidden=x)


@odd("number-read-from-a-tensor-returned", EITHER, loss=lambda _, out: out[0])
class ReturnsItem(Body):
    """The number differs at each step, so that a constant would be wrong."""

    def forward(self, x):
        loss = self.loss(self.hidden(x))
        return loss, loss.item()


@odd("accuracy-returned-as-a-number", EITHER, loss=lambda _, out: out["loss"])
class ReturnsAccuracy(Body):
    def forward(self, x):
        x = self.hidden(x)
        return {"loss": self.loss(x), "accuracy": (x.argmax(1) == 3).float().mean().item()}


@odd("distribution-returned", EITHER, loss=lambda _, out: out.entropy().mean(), options={"loss_reserve": "64KiB"})
class ReturnsDistribution(Body):
    def forward(self, x):
        return torch.distributions.Categorical(logits=self.hidden(x))


@odd("python-generator-returned", REFUSED, loss=lambda _, out: sum(part.square().mean() for part in out))
class ReturnsGenerator(Blocks):
    """The forward runs while the caller reads what it returns."""

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            yield x


@odd("function-returned", EITHER, loss=lambda _, out: out(2.0))
class ReturnsFunction(Body):
    def forward(self, x):
        loss = self.loss(self.hidden(x))
        return lambda factor: loss * factor


@odd("detached-outputs-beside-the-loss", EXACT, loss=lambda _, out: out[0])
class ReturnsDetached(Body):
    def forward(self, x):
        x = self.hidden(x)
        return self.loss(x), x.detach(), functional.softmax(x, 1).argmax(1)


@odd("several-losses-in-a-dict", EXACT, options={"loss_reserve": "64KiB"}, loss=lambda _, out: sum(out.values()))
class ReturnsLosses(Body):
    """As detection models do."""

    def forward(self, x):
        x = self.hidden(x)
        return {"box": self.loss(x), "class": x.abs().mean(), "mask": x.square().sum() * 0.001}
