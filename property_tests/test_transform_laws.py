"""Every transform and partitioner of the library under every law. A new one adds one line; an exclusion states its reason."""

import pytest
from hypothesis import settings

from remat.algorithms._plugins import registry
from remat.algorithms._plugins.expression import parse
from remat.testing import check_partitioner, check_transform

HOST = "a stage that runs again and saves nothing replaces what it has on the host; solvers of chains do not plan that"

TRANSFORMS = {
    "Condense(Intervals(2))": {},
    "Condense(Intervals(2), lower=quick.sweep(peaks=2, saves=2))": {},
    "Condense(HPartition(top=1, lower=2), middle=Exhaustive(max_states=300), peaks=2, saves=2)": {},
    "Linearise()": {"L-LINK": HOST},
    "Linearise(pin=0)": {"L-LINK": HOST},
    "Quantise()": {},
    "Quantise(slots=8)": {},
    "UnitCost()": {"L-FIT": "counts stages, not bytes: what fits in units is replayed in bytes"},
    "OneOutputPerOp()": {},
    "FoldRunOnce()": {},
    "Merge()": {},
    "Merge(share=0.5, outputs=0.5)": {},
    "FoldRunOnce(share=1.0)": {},
    "Condense(Intervals(2), lower=quick.sweep(peaks=2, saves=2).within(60), limit=3, seconds=60.0)": {},
}

PARTITIONERS = {
    "Given(())": {},
    "HPartition()": {},
    "HPartition(top=1, lower=2)": {},
    "HPartition(top=2, lower=4, alpha=1.0)": {},
    "Intervals()": {},
    "Intervals(2)": {},
    "Segments()": {},
    "Segments(size=2)": {},
    "Undivided()": {},
}


@pytest.mark.parametrize("expression", TRANSFORMS)
def test_every_law_holds_for_the_transform(expression):
    check_transform(parse(expression), exclude=TRANSFORMS[expression], examples=settings().max_examples)


@pytest.mark.parametrize("expression", PARTITIONERS)
def test_every_law_holds_for_the_partitioner(expression):
    check_partitioner(parse(expression), exclude=PARTITIONERS[expression], examples=settings().max_examples)


@pytest.mark.parametrize(("kind", "table"), [("transforms", TRANSFORMS), ("partitioners", PARTITIONERS)])
def test_everything_registered_is_on_trial(kind, table):
    assert set(registry.registered(kind)) <= {expression.partition("(")[0] for expression in table}
