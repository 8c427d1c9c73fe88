"""The digest of a captured program: equal for equal steps, and different for whatever a plan or its code depends on."""

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.nn import functional

from remat.exec._capture.capturing import capture
from remat.exec._program.digest import program_digest
from tests.exec.support import SMALL


class Scaled(nn.Module):
    """Uses one of its plain arguments, and not the other."""

    def __init__(self, table=(1.0, 2.0, 3.0)):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))
        self.table = table

    def forward(self, x, scale=1.0, label=0.0):
        y = functional.dropout(torch.relu(self.linear(x)), 0.1, True) * torch.tensor(self.table)
        self.seen.add_(y.detach().sum(0))
        return (y * scale).square().mean()


def program(module=None, x=None, **kwargs):
    torch.manual_seed(0)
    module = Scaled() if module is None else module
    return capture(module, (torch.randn(2, 3) if x is None else x,), kwargs).program


def digest(*args, **kwargs):
    return program_digest(program(*args, **kwargs))


def test_two_captures_of_a_step_are_equal_whatever_an_unused_argument_is():
    assert digest(label=0.25) == digest(label=0.5) == digest()


@pytest.mark.parametrize("name", SMALL)
def test_every_case_of_the_zoo_is_equal_to_itself_and_to_no_other(name):
    first, second = (program_digest(capture(*SMALL[name].instantiate(torch.float64)).program) for _ in range(2))
    assert first == second
    assert first != program_digest(capture(*SMALL[name].instantiate(torch.float32)).program)
    assert len(first) == 64


@pytest.mark.parametrize("scale", [0.1 + 0.2, 0.3, 2, 2.0, -0.0, 0.0, True])
def test_a_scalar_that_is_used_makes_another_step_to_the_last_bit(scale):
    others = [0.1 + 0.2, 0.3, 2, 2.0, -0.0, 0.0, True]
    same = [other for other in others if digest(scale=other) == digest(scale=scale)]
    assert [repr(other) for other in same] == [repr(scale)]


def test_shapes_strides_types_and_constants_count():
    wide = torch.randn(3, 2).t()
    other = {
        digest(x=torch.randn(4, 3)),
        digest(x=wide),
        digest(Scaled((1.0, 2.0, 3.5))),
        digest(Scaled().double(), x=wide.double()),
    }
    assert len({digest(), *other}) == 5


def test_what_needs_a_gradient_counts():
    frozen = Scaled()
    frozen.linear.weight.requires_grad_(False)
    assert len({digest(), digest(frozen), digest(x=torch.randn(2, 3, requires_grad=True))}) == 3


def changed(step, **fields):
    return program_digest(evolve(step, **fields))


def test_every_part_of_a_program_counts():
    step = program()
    first, *rest = step.ops
    value = next(iter(step.values))
    storage = next(iter(step.storages))
    ops = {
        changed(step, ops=(evolve(first, **{name: new}), *rest))
        for name, new in {
            "name": "other",
            "target": None,
            "args": (1,),
            "kwargs": {"a": 1},
            "outputs": (None,),
            "unpack": True,
            "scope": "there",
            "draws": not first.draws,
            "run_once": not first.run_once,
            "subject": "x",
            "needs": (value,),
            "adds": (("a", "b", "c"),),
        }.items()
    }
    parts = {
        changed(step, name="Other"),
        changed(step, ops=tuple(rest)),
        changed(step, params=step.params[1:]),
        changed(step, buffers=()),
        changed(step, inputs=()),
        changed(step, outputs=()),
        changed(step, tangents=()),
        changed(step, grads={}),
        changed(step, updates={}),
        changed(step, constants={}),
        changed(step, device=torch.device("meta")),
        changed(step, values={**step.values, value: evolve(step.values[value], view=99)}),
        changed(step, storages={**step.storages, storage: evolve(step.storages[storage], outside=None)}),
    }
    assert len(ops | parts | {program_digest(step)}) == 12 + 13 + 1


def test_sequence_numbers_count_by_their_order_alone():
    step = program()
    later = tuple(op if op.sequence is None else evolve(op, sequence=op.sequence + 1000) for op in step.ops)
    assert changed(step, ops=later) == program_digest(step)
    numbered = [i for i, op in enumerate(step.ops) if op.sequence is not None]
    assert numbered
    other = list(step.ops)
    other[numbered[-1]] = evolve(other[numbered[-1]], sequence=10**6)
    assert changed(step, ops=tuple(other)) != program_digest(step)


def test_a_kind_of_argument_that_is_not_known_is_equal_to_nothing():
    step = program()
    strange = evolve(step, ops=(evolve(step.ops[0], args=(object(),)), *step.ops[1:]))
    assert program_digest(strange) != program_digest(evolve(strange))
