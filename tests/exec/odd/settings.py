"""Odd modules whose settings lie in objects of the standard library, in classes and helpers; or that something refers back to."""

import argparse
import collections
import functools
import queue
import threading
import types
import weakref

import torch
from torch import nn
from torch.nn import functional

from tests.exec.odd import elsewhere
from tests.exec.odd.base import Body
from tests.exec.odd.changes import changed
from tests.exec.odd.elsewhere import Scales, scaled
from tests.exec.odd.judging import EXACT, REFUSED, WIDTH, odd


class Scaled(Body):
    """Scales its loss by what a function of a setting gives."""

    def __init__(self, setting, factor):
        super().__init__()
        self.setting, self.factor = setting, factor

    def forward(self, x):
        return self.loss(self.hidden(x)) * self.factor(self.setting)


def beside(thing, key):
    """An attribute or an item of a setting, as a factor."""
    return getattr(thing, key) if hasattr(thing, key) else thing[key]


def by_name(setting):
    return functools.partial(Scaled, setting, functools.partial(beside, key="scale"))


def set_attribute(module):
    module.setting.scale = 3.0


def set_item(module):
    module.setting["scale"] = 3.0


def local():
    here = threading.local()
    here.scale = 1.0
    return here


class Config(dict):
    """A dict with a setting beside its items."""

    def __init__(self):
        super().__init__(weight=1.0)
        self.scale = 1.0


changed("setting-of-argparse", set_attribute, lambda: by_name(argparse.Namespace(scale=1.0))())
changed("setting-of-a-thread", set_attribute, lambda: by_name(local())())
changed("setting-beside-the-items-of-a-dict", set_attribute, lambda: by_name(Config())())
changed("setting-in-a-user-dict", set_item, lambda: by_name(collections.UserDict(scale=1.0))())


def chain_map():
    return Scaled(collections.ChainMap({}, {"scale": 1.0}), functools.partial(beside, key="scale"))


class Gets(Body):
    """Keeps the bound `get` of a dict."""

    def __init__(self):
        super().__init__()
        self.setting = {"scale": 1.0}
        self.get = self.setting.get

    def forward(self, x):
        return self.loss(self.hidden(x)) * self.get("scale")


def behind_a_proxy():
    behind = {"scale": 1.0}
    module = Scaled(types.MappingProxyType(behind), functools.partial(beside, key="scale"))
    module.behind = behind
    return module


def set_behind(module):
    module.behind["scale"] = 3.0


changed("setting-in-a-chain-of-dicts", set_item, chain_map)
changed("setting-behind-a-bound-get", set_item, Gets)
changed("setting-behind-a-proxy", set_behind, behind_a_proxy)


@odd("counter-in-argparse", REFUSED)
class CountsInNamespace(Body):
    def __init__(self):
        super().__init__()
        self.args = argparse.Namespace(calls=0)

    def forward(self, x):
        self.args.calls += 1
        return self.loss(self.hidden(x))


@odd("lengths-in-a-user-list", REFUSED)
class CountsInUserList(Body):
    def __init__(self):
        super().__init__()
        self.history = collections.UserList()

    def forward(self, x):
        self.history.append(len(x))
        return self.loss(self.hidden(x))


@odd("metrics-in-a-queue", REFUSED)
class PutsInQueue(Body):
    def __init__(self):
        super().__init__()
        self.log = queue.Queue()

    def forward(self, x):
        loss = self.loss(self.hidden(x))
        self.log.put(loss.detach())
        return loss


# -- settings that methods and classes read --------------------------------------------------------------------------------

FACTORS = {"scale": 1.0}


class ReadsThroughMethods(Body):
    @property
    def scale(self):
        return FACTORS["scale"]

    @staticmethod
    def power():
        return FACTORS["scale"]

    @classmethod
    def shift(cls):
        return FACTORS["scale"] - 1.0

    def forward(self, x):
        return self.loss(self.hidden(x) * self.scale + self.shift()) ** self.power()


def reads_through_methods():
    FACTORS["scale"] = 1.0
    return ReadsThroughMethods()


def set_factor(_module):
    FACTORS["scale"] = 2.0


changed("global-read-by-a-property-and-static-methods", set_factor, reads_through_methods)


class Reversed(torch.autograd.Function):
    weight = 1.0

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -Reversed.weight * gradient


class Adversary(Body):
    def forward(self, x):
        return self.loss(Reversed.apply(self.hidden(x)))


def adversary():
    Reversed.weight = 1.0
    return Adversary()


def set_weight(_module):
    Reversed.weight = 2.0


changed("class-attribute-read-in-a-backward", set_weight, adversary)


class Part:
    """Made anew in every call."""

    def __init__(self, x):
        self.x = x

    def scaled(self):
        return self.x * FACTORS["scale"]


class MakesParts(Body):
    def forward(self, x):
        return self.loss(Part(self.hidden(x)).scaled())


def makes_parts():
    FACTORS["scale"] = 1.0
    return MakesParts()


changed("global-read-by-a-part-of-the-forward", set_factor, makes_parts)


class Options:
    def __init__(self):
        self.scale = 1.0


class OptionsOfClass(Body):
    options = Options()

    def forward(self, x):
        return self.loss(self.hidden(x)) * self.options.scale


def options_of_class():
    OptionsOfClass.options.scale = 1.0
    return OptionsOfClass()


def set_option(module):
    module.options.scale = 2.0


changed("object-in-a-class-changed", set_option, options_of_class)


def plus(x):
    return x + 1


def times(x):
    return x * 2


class Doubles:
    def change(self, x):
        return x * 2


class Leaves:
    def change(self, x):
        return x


class Strategies(Body):
    def __init__(self):
        super().__init__()
        self.act, self.helper, self.strategy = functional.relu, plus, Leaves()

    def forward(self, x):
        return self.loss(self.strategy.change(self.helper(self.act(self.hidden(x)))))


def set_other_act(module):
    module.act = functional.leaky_relu


def set_other_helper(module):
    module.helper = times


def set_other_strategy(module):
    module.strategy = Doubles()


changed("library-function-replaced", set_other_act, Strategies)
changed("function-of-the-file-replaced", set_other_helper, Strategies)
changed("helper-of-another-class", set_other_strategy, Strategies)


@odd("other-file-changed", EXACT, change=lambda module, step: setattr(elsewhere, "FACTOR", 1.0 + step))
class CallsElsewhere(Body):
    """Functions and a class of another file read its globals."""

    def forward(self, x):
        return (
            scaled(self.loss(self.hidden(x))) + elsewhere.scaled(self.head(x).square().mean()) + Scales().of(x.mean())
        )


# -- what refers back to the module ----------------------------------------------------------------------------------------


class ScaledByItself(Body):
    """A closure over the module that is given reads its attribute."""

    def __init__(self):
        super().__init__()
        self.scale = 1.0
        self.scaled = lambda x: x * self.scale

    def forward(self, x):
        return self.loss(self.scaled(self.hidden(x)))


def set_scale(module):
    module.scale = 2.0


changed("closure-over-the-module", set_scale, ScaledByItself)


class AsksParent(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = parent
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x) * self.parent().scale


class Parent(Body):
    def __init__(self, reference):
        super().__init__()
        self.scale = 1.0
        self.child = AsksParent(reference(self))

    def forward(self, x):
        return self.loss(self.child(self.hidden(x)))


changed("child-asks-its-parent", set_scale, lambda: Parent(lambda parent: lambda: parent))
changed("child-asks-its-parent-weakly", set_scale, lambda: Parent(weakref.ref))


@odd("hook-keeps-on-the-module", EXACT)
class Keeps(Body):
    """A hook of a layer keeps what the loss reads on the module that is given."""

    def __init__(self):
        super().__init__()
        self.kept = None
        self.layers[1].register_forward_hook(self.keep)

    def keep(self, _layer, _inputs, output):
        self.kept = output

    def forward(self, x):
        return self.loss(self.hidden(x)) + 0.1 * self.kept.square().mean()


@odd("methods-of-the-module-in-a-dict", EXACT)
class Branches(Body):
    def __init__(self):
        super().__init__()
        self.branches = {"train": self.noisy, "plain": self.plain}

    def noisy(self, x):
        return functional.dropout(x, 0.2, self.training)

    def plain(self, x):
        return x

    def forward(self, x):
        return self.loss(self.branches["train"](self.hidden(x)))


# -- arguments that the forward writes -------------------------------------------------------------------------------------


def batches(step):
    generator = torch.Generator().manual_seed(step)
    return ({"x": torch.randn(256, WIDTH, generator=generator), "labels": torch.randn(256, 1, generator=generator)},)


@odd("puts-predictions-into-its-batch", REFUSED, inputs=batches)
class WritesBatch(Body):
    def forward(self, batch):
        hidden = self.hidden(batch["x"])
        batch["prediction"] = self.head(hidden)
        return (batch["prediction"] - batch["labels"]).square().mean()


@odd("takes-labels-out-of-its-batch", REFUSED, inputs=batches)
class PopsLabels(Body):
    def forward(self, batch):
        labels = batch.pop("labels")
        return (self.head(self.hidden(batch["x"])) - labels).square().mean()


# -- layouts that operations in place keep ---------------------------------------------------------------------------------


@odd("filled-in-place-where-it-lies-otherwise", EXACT, options={"budget": "90%"})
class FillsTransposed(Body):
    """`masked_fill` gives a contiguous tensor, `masked_fill_` keeps the strides, and products round by them."""

    def forward(self, x):
        hidden = self.hidden(x)
        scores = (hidden @ hidden.T).T.clone(memory_format=torch.preserve_format)
        scores.masked_fill_(torch.eye(len(x), dtype=torch.bool), 0.0)
        return self.loss(torch.tanh(scores) @ hidden / len(x))
