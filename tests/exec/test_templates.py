"""Functions of plans of sizes that were filled in: one text and one compilation for each schedule."""

import re

import pytest
import torch
from attrs import evolve

import remat.exec
from remat.exec._module.calls import attributes
from remat.exec._program.program import Spec
from remat.exec._program.source import Names, Size
from remat.exec._run.lowering import lower
from remat.exec._sizes import templates
from remat.exec._sizes.filling import Filler
from remat.exec._sizes.functions import Functions, NoFunction
from remat.exec._sizes.merging import Number, Parts
from remat.exec._sizes.templates import Templates
from remat.zoo import GPT2

LENGTHS = (30, 26, 22, 28, 19, 24)


def tokens(length, batch=2):
    drawn = torch.randint(32, (batch, length), generator=torch.Generator().manual_seed(length))
    return drawn, drawn


def numbered(source, space):
    """A text with integers in place of their names."""
    return re.sub(rf"{templates.SIZE}\d+", lambda name: str(space[name.group()]), source)


@pytest.fixture(scope="module")
def plans():
    """What GPT-2 ran at some lengths, by length, where the program was filled in; everything is kept."""
    torch.manual_seed(0)
    module = GPT2(layers=1, width=16, heads=2, vocabulary=32, context=64)
    model = remat.exec.wrap(module, tokens(30), "64MiB", cost="estimate", progress=False)
    ran = {}
    for length in LENGTHS:
        model(*tokens(length)).backward()
        planned = attributes(model)["_remat"].last.planned
        if planned.captured.program.structure:
            ran[length] = planned
    stencil = attributes(model)["_remat"].sizes.last.stencils[0]
    return ran, stencil


def test_sizes_with_one_schedule_share_their_code(plans):
    ran, stencil = plans
    assert len(ran) >= 3
    assert len({planned.lowered.forward.__code__ for planned in ran.values()}) == 1
    assert len({planned.lowered.backward.__code__ for planned in ran.values()}) == 1
    (template,) = stencil.templates.by_schedule.values()
    assert not template.unseen


def test_functions_with_names_are_those_that_each_size_would_have(plans):
    ran, _ = plans
    sources = set()
    for planned in ran.values():
        own = lower(planned.captured.program, planned.outcome.schedule)
        space = planned.lowered.forward.__globals__
        assert space is planned.lowered.backward.__globals__
        assert numbered(planned.lowered.source, space) == own.source
        assert planned.lowered.lowered_from[0] is planned.captured.program is planned.lowered.tangents.program
        sources.add(own.source)
    assert len(sources) == len(ran)


def test_a_text_that_depends_on_sizes_in_another_way_is_not_shared(plans, monkeypatch):
    ran, stencil = plans
    (_, first), (_, second) = list(ran.items())[:2]

    def odd(program, schedule):
        """Functions with an integer as text, where it should be a name."""
        lowered = lower(program, schedule)
        return evolve(lowered, source=f"{lowered.source}# {int(program.values[program.inputs[0][0]].spec.shape[1])}\n")

    monkeypatch.setattr(templates, "lower", odd)
    fresh = Templates()
    for planned in (first, second, first):
        program, schedule = planned.captured.program, planned.outcome.schedule
        lowered = fresh.lowered(stencil.program, tuple(stencil_numbers(stencil, planned)), program, schedule)
        length = program.values[program.inputs[0][0]].spec.shape[1]
        assert planned is first or lowered.source.endswith(f"# {length}\n")
    assert list(fresh.by_schedule.values()) == [None]


def stencil_numbers(stencil, planned):
    """The integers of a pattern at the size of a plan."""
    program = planned.captured.program
    sizes = [size for value, _ in program.inputs for size in program.values[value].spec.shape]
    variables = stencil.functions.values(tuple(sizes))
    return [function.at(variables) for function in stencil.columns]


def test_a_pattern_with_a_float_of_a_size_gets_a_text_for_each_size(plans):
    ran, stencil = plans
    planned = next(iter(ran.values()))
    program, schedule = planned.captured.program, planned.outcome.schedule
    fresh = Templates()
    pattern = Parts(tuple, (stencil.program.pattern, Number(0, float)))
    lowered = fresh.lowered(Filler.of(pattern), tuple(stencil_numbers(stencil, planned)), program, schedule)
    assert lowered.source == lower(program, schedule).source and not fresh.by_schedule


def test_few_schedules_are_kept(plans, monkeypatch):
    ran, stencil = plans
    monkeypatch.setattr(templates, "MOST", 1)
    planned = next(iter(ran.values()))
    program, schedule = planned.captured.program, planned.outcome.schedule
    fresh, numbers = Templates(), tuple(stencil_numbers(stencil, planned))
    fresh.lowered(stencil.program, numbers, program, schedule)
    again = evolve(schedule, steps=(*schedule.steps[:-1], *schedule.steps[-1:]))
    fresh.lowered(stencil.program, numbers, program, again)
    assert len(fresh.by_schedule) == 1
    shorter = evolve(schedule, steps=tuple(step for step in schedule.steps if not hasattr(step, "datum")))
    fresh.lowered(stencil.program, numbers, program, shorter)
    assert [key[0] for key in fresh.by_schedule] == [shorter.steps]


def test_a_spec_of_named_integers_is_text():
    names = Names()
    spec = Spec((Size.of(3, "n"), 4), (4, 1), torch.float32, torch.device("cpu"))
    text = names.text(spec)
    assert eval(text, names.names) is not None and "_Spec((n, 4), (4, 1)" in text
    assert names.names["n"] == 3 and type(names.names["n"]) is int


def test_two_captures_show_a_size_and_an_integer():
    functions = Functions(((2, 30), (2, 22)))
    (less,) = functions.of_all(((29, 21),))
    assert less.at(functions.values((2, 19))) == 18
    with pytest.raises(NoFunction):
        Functions(((2, 30), (2, 22))).of_all(((29, 20),))
