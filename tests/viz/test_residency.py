"""Stays of a step worked out by hand; the laws are in property_tests/test_residency_laws.py."""

from remat.viz.residency import Group, names_of, unit_of_time
from tests.viz.examples import copied, recomputed


def test_the_stays_of_a_step_with_a_rerun_are_those_worked_out_by_hand():
    memory = recomputed()
    rows = [(stay.name, stay.group, stay.start, stay.end, stay.again, stay.scope) for stay in memory.stays]
    assert rows == [
        ("a", Group.ACTIVATION, 0, 5000, False, "net.low"),
        ("h", Group.ACTIVATION, 2000, 10000, False, "net.high"),
        ("t", Group.GRADIENT, 5000, 17000, False, ""),
        ("s", Group.KEPT_GRADIENT, 6000, 17000, False, "net.high"),
        ("BH", Group.WORKSPACE, 6000, 10000, False, "net.high"),
        ("a", Group.RECOMPUTED, 10000, 17000, True, "net.low"),
        ("BF", Group.WORKSPACE, 12000, 17000, False, "net.low"),
    ]
    assert memory.stays[6].kind == "further contribution to s" and memory.stays[6].size == 20
    assert [(stay.name, stay.size) for stay in memory.at_peak] == [("a", 40), ("BF", 20), ("s", 20), ("t", 1)]
    assert memory.peak_time == 12000 and memory.loss_time == 6000
    assert memory.stays[1].reads == (3, 4) and memory.stays[0].until == 2


def test_a_copy_to_the_host_frees_when_it_ends_and_one_back_takes_when_it_begins():
    memory = copied()
    phantom = [(stay.start, stay.end, stay.made_by, stay.scope) for stay in memory.stays if stay.name == "P"]
    assert phantom == [(0, 9, "F", "layers.0"), (9, 19, "copy from the host", "layers.0")]


def test_names_are_listed_once_and_units_are_readable():
    memory = recomputed()
    assert [stay.name for stay in names_of((*memory.at_peak, *memory.at_peak), 3)] == ["a", "BF", "s"]
    assert [unit_of_time(time)[0] for time in (1, 5_000, 40_000_000, 3 * 10**9)] == ["ns", "µs", "ms", "s"]
