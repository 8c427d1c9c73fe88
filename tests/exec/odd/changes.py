"""Modules that are changed after the wrap: the change is seen at the next call, and the step is exact."""

import copy
import types

import attrs
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.exec.odd.base import Block, Blocks, Body, at
from tests.exec.odd.judging import EITHER, EXACT, REFUSED, WIDTH, odd


def shrinks(module, dropout=0.1):
    return nn.Sequential(
        nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(),
        nn.Linear(64, 1), module,
    )  # fmt: skip


class Mean(nn.Module):
    def forward(self, x):
        return x.square().mean()


def sequence():
    return shrinks(Mean())


def changed(name, action, build=sequence, expect=EXACT, step=2):
    odd(name, expect, change=at(step, action))(build)


def set_p(module):
    module[3].p = 0.7


def set_momentum(module):
    module[1].momentum = 0.5


def set_norm_eps(module):
    module[1].eps = 0.1


def set_layer_norm_eps(module):
    module[5].eps = 0.1


def same_class(module):
    torch.manual_seed(9)
    module[4] = nn.Linear(64, 64)


def same_class_other_settings(module):
    module[3] = nn.Dropout(0.6)


def other_class(module):
    module[6] = nn.Tanh()


def hook_inside(module):
    module[2].register_forward_hook(lambda module, args, out: out * 1.5)


def pre_hook_inside(module):
    module[4].register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))


def hook_outside(module):
    module.register_forward_hook(lambda module, args, out: out * 1.5)


def backward_hook_inside(module):
    module[4].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))


def freeze(module):
    module[0].requires_grad_(False)


def new_parameter(module):
    module[4].weight = nn.Parameter(module[4].weight.detach() * 2)


def new_buffer(module):
    module[1].running_mean = torch.ones(64)


def freeze_norm(module):
    module[1].eval()


def drop_statistics(module):
    module[1].track_running_stats = False


def drop_bias(module):
    module[4].bias = None


def forward_of_submodule(module):
    def forward(self, x):
        return functional.linear(x, self.weight) * 1.5

    module[4].forward = types.MethodType(forward, module[4])


def forward_of_module(module):
    def forward(self, x):
        for layer in self[:-1]:
            x = layer(x)
        return x.square().sum() * 0.01

    module.forward = types.MethodType(forward, module)


def forward_around(module):
    """As Liger and accelerate do: the instance's forward calls the one before it."""
    before = module.forward

    def forward(x):
        return before(x) * 1.5

    module.forward = forward


def forward_around_its_function(module):
    """As accelerate does for mixed precision: two forwards, each around the function of the one that is read."""
    for factor in (1.5, 0.5):

        def forward(self, x, before=module.forward.__func__, factor=factor):
            return before(self, x) * factor

        module.forward = types.MethodType(forward, module)


def weight_norm(module):
    nn.utils.parametrizations.weight_norm(module[4])


changed("dropout-probability-changed", set_p)
changed("batch-norm-momentum-changed", set_momentum)
changed("batch-norm-eps-changed", set_norm_eps)
changed("layer-norm-eps-changed", set_layer_norm_eps)
changed("layer-swapped-for-one-of-its-class", same_class)
changed("layer-swapped-for-one-with-other-settings", same_class_other_settings)
changed("layer-swapped-for-another-class", other_class)
changed("hook-on-a-submodule-added", hook_inside)
changed("pre-hook-on-a-submodule-added", pre_hook_inside)
changed("hook-on-the-module-added", hook_outside)
changed("backward-hook-on-a-submodule-added", backward_hook_inside, expect=EITHER)
changed("layer-frozen", freeze)
changed("parameter-replaced", new_parameter)
changed("buffer-replaced", new_buffer)
changed("one-norm-set-to-eval", freeze_norm)
changed("statistics-no-longer-tracked", drop_statistics)
changed("bias-taken-away", drop_bias)
changed("forward-of-a-submodule-set", forward_of_submodule)
changed("forward-of-the-module-set", forward_of_module)
changed("forward-of-the-module-set-before-the-first-call", forward_of_module, step=0)
changed("forward-of-the-module-wrapped-once-more", forward_around)
changed("forward-of-the-module-set-around-its-function", forward_around_its_function)
changed("forward-of-the-module-set-around-its-function-first", forward_around_its_function, step=0)
changed("weight-norm-added", weight_norm)


# -- weights tied and untied -----------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), nn.Linear(WIDTH, 64)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(functional.gelu(self.middle(functional.gelu(self.first(x))))).square().mean()


def untie(module):
    module.last.weight = nn.Parameter(module.first.weight.detach() * 1.5)


def tie_others(module):
    module.middle.bias = module.tail.bias


class TiesLater(Tied):
    def __init__(self):
        super().__init__()
        self.tail = nn.Linear(64, WIDTH)

    def forward(self, x):
        x = functional.gelu(self.last(functional.gelu(self.middle(functional.gelu(self.first(x))))))
        return self.tail(x).square().mean()


changed("weights-untied", untie, Tied)
changed("weights-untied-before-the-first-call", untie, Tied, step=0)
changed("weights-tied", tie_others, TiesLater)


# -- attributes of Python --------------------------------------------------------------------------------------------------


class Settings:
    def __init__(self):
        self.gate, self.power = True, 2


class Configured(Blocks):
    def __init__(self):
        super().__init__()
        self.scale, self.turns, self.act = 0.5, 2, functional.relu
        self.settings = Settings()
        self.order = [0, 1, 2, 3]
        self.factors = {"a": 1.0}

    def forward(self, x):
        for _ in range(self.turns):
            for i in self.order:
                x = self.act(self.blocks[i](x)) * self.factors["a"]
        x = x * torch.sigmoid(x) if self.settings.gate else x
        return (self.head(x * self.scale).abs() ** self.settings.power).mean()


def set_float(module):
    module.scale = 0.75


def set_int(module):
    module.turns = 1


def set_function(module):
    module.act = torch.tanh


def set_helper_bool(module):
    module.settings.gate = False


def set_helper_int(module):
    module.settings.power = 3


def set_list(module):
    module.order.reverse()


def set_dict(module):
    module.factors["a"] = 0.5


def new_helper(module):
    module.settings = copy.copy(module.settings)
    module.settings.gate = False


def add_layer(module):
    torch.manual_seed(9)
    module.blocks.append(Block())
    module.order.append(4)


def remove_layer(module):
    del module.blocks[3]
    module.order.remove(3)


changed("float-attribute-changed", set_float, Configured)
changed("int-attribute-changed", set_int, Configured)
changed("function-attribute-changed", set_function, Configured)
changed("bool-in-a-helper-changed", set_helper_bool, Configured)
changed("int-in-a-helper-changed", set_helper_int, Configured)
changed("list-attribute-changed", set_list, Configured)
changed("dict-attribute-changed", set_dict, Configured)
changed("helper-replaced", new_helper, Configured)
changed("layer-appended", add_layer, Configured)
changed("layer-removed", remove_layer, Configured)


class ClassScale(Body):
    scale = 1.0

    def forward(self, x):
        return self.loss(self.hidden(x)) * self.scale


def class_scale():
    ClassScale.scale = 1.0
    return ClassScale()


def set_class(module):
    ClassScale.scale = 2.0


changed("class-attribute-changed", set_class, class_scale)

FACTOR = 1.0


class GlobalFactor(Body):
    def forward(self, x):
        return self.loss(self.hidden(x)) * FACTOR


def global_factor():
    global FACTOR
    FACTOR = 1.0
    return GlobalFactor()


def set_global(module):
    global FACTOR
    FACTOR = 2.0


changed("global-number-changed", set_global, global_factor)


def closure_factor():
    factor = 1.0

    class ClosureFactor(Body):
        def set(self, value):
            nonlocal factor
            factor = value

        def forward(self, x):
            return self.loss(self.hidden(x)) * factor

    return ClosureFactor()


def set_closure(module):
    module.set(2.0)


changed("closure-number-changed", set_closure, closure_factor)


class Constants:
    factor = 1.0


class Inherited(Constants):
    pass


class Slotted:
    __slots__ = ("factor",)


@attrs.define
class Defined:
    factor: float = 1.0


FILE = types.ModuleType("settings")
FILE.inner = types.SimpleNamespace()
FILE.Constants = Constants
SLOTTED, DEFINED, ARRAY = Slotted(), Defined(), np.ones(3)


def in_array(value):
    ARRAY[1] = value


FACTORS = {
    "class-that-is-named": (lambda: Constants.factor, lambda value: setattr(Constants, "factor", value)),
    "base-of-a-class-that-is-named": (lambda: Inherited.factor, lambda value: setattr(Constants, "factor", value)),
    "file": (lambda: FILE.factor, lambda value: setattr(FILE, "factor", value)),
    "object-in-a-file": (lambda: FILE.inner.factor, lambda value: setattr(FILE.inner, "factor", value)),
    "class-in-a-file": (lambda: FILE.Constants.factor, lambda value: setattr(Constants, "factor", value)),
    "object-with-slots": (lambda: SLOTTED.factor, lambda value: setattr(SLOTTED, "factor", value)),
    "object-of-attrs": (lambda: DEFINED.factor, lambda value: setattr(DEFINED, "factor", value)),
    "array-in-place": (lambda: float(ARRAY[1]), in_array),
}
"""Where a number lies that the forward reads, and how it is changed."""

for name, (read, put) in FACTORS.items():

    class Read(Body):
        def __init__(self, read=read):
            super().__init__()
            self.read = read

        def forward(self, x):
            return self.loss(self.hidden(x)) * self.read()

    def reading(kind=Read, put=put):
        put(1.0)
        return kind()

    changed(f"number-changed-in-{name}", lambda module, put=put: put(2.0), reading)


@odd("slot-that-counts", REFUSED)
class CountingSlot(Body):
    def __init__(self):
        super().__init__()
        self.count = Slotted()
        self.count.factor = 0

    def forward(self, x):
        self.count.factor += 1
        return self.loss(self.hidden(x)) * self.count.factor


@odd("eval-with-gradients", EXACT)
def in_eval():
    return sequence().eval()


@odd("eval-after-the-wrap", EXACT, change=at(2, nn.Module.eval))
def to_eval():
    return sequence()
