"""S-LINK by example: every number below was worked out by hand. Rules in words: docs/reference/rules.md."""

import pytest

from remat.errors import BudgetExceeded, KeptDropped, LinkViolation, MissingRead, NotResident
from remat.ir import (
    Drop,
    GraphBuilder,
    Kind,
    Lane,
    LayerOption,
    Link,
    Offload,
    Option,
    Prefetch,
    Run,
    Schedule,
    validate,
)

GB = Link(to_host=10**9, to_device=10**9)  # one byte per nanosecond
SLOW_BACK = Link(to_host=10**9, to_device=5 * 10**8)


def graph():
    b = GraphBuilder("tiny")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 4)
    b.data("h", 3)
    b.data("k", 2)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 4, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=["a"], time=2)
    b.forward("H", reads=["a"], writes=["h"], time=2)
    b.forward("K", reads=["h"], writes=["k"], time=5, workspace=1)
    b.loss("L", reads=["k"], writes=["t"], time=1)
    b.backward("B", reads=["t", "a"], writes=["g"], time=3)
    return b.build()


def schedule(text):
    words = {"o": Offload, "p": Prefetch, "d": Drop}
    return Schedule(tuple(words[one[0]](one[1:]) if one[0] in words and one[1:] else Run(one) for one in text.split()))


AWAY = schedule("F H oa K dh L dk pa B da")


def test_an_offload_runs_beside_the_computation_and_its_bytes_stay_until_it_has_ended():
    cost = validate(graph(), AWAY, None, GB)
    copies = [(one.lane, one.what, one.start, one.end) for one in cost.copies]
    # F 0-2, H 2-4, the copy of a 4-8, K 4-9, L 9-10, the copy back 10-14, B 14-17
    assert copies == [(Lane.TO_HOST, "a", 4, 8), (Lane.TO_DEVICE, "a", 10, 14)]
    assert [(one.what, one.start, one.end) for one in cost.computations][-1] == ("B", 14, 17)
    assert (cost.time, cost.idle) == (17, 4)
    # K runs with a (leaving), h, k and its workspace: 4 + 3 + 2 + 1
    assert cost.timeline == (4, 7, 7, 10, 2, 3, 1, 5, 9, 5)
    assert cost.host_timeline == (0, 0, 4, 4, 4, 4, 4, 4, 0, 0) and cost.host_peak == 4


def test_a_run_waits_until_enough_bytes_are_free():
    # with a on its way out, K needs 10 bytes; 9 are there when the copy has ended at 8
    cost = validate(graph(), AWAY, 9, GB)
    assert (cost.time, cost.idle, cost.peak) == (8 + 5 + 1 + 4 + 3, 8, 9)


def test_a_prefetch_that_starts_during_a_run_counts_in_its_peak():
    b = GraphBuilder("during")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 4)
    b.data("k", 2)
    b.data("t", 1, Kind.TANGENT)
    b.data("h", 1, Kind.GRADIENT)
    b.data("g", 4, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=["a"], time=2)
    b.forward("K", reads=["x"], writes=["k"], time=1)
    b.loss("L", reads=["k"], writes=["t"], time=1)
    b.backward("C", reads=["t"], writes=["h"], time=9)
    b.backward("B", reads=["h", "a"], writes=["g"], time=3)
    steps = schedule("F oa K L dk pa C B da dh")
    cost = validate(b.build(), steps, None, GB)
    # a out 2-6; C runs 4-13 and a comes back 6-10: t 1 + h 1 + a, leaving or back, 4
    assert [(one.start, one.end) for one in cost.copies] == [(2, 6), (6, 10)]
    assert cost.timeline[6] == 6 and cost.time == 16
    # with another 3 bytes at work until the copy out has ended, the two never meet
    assert validate(b.build(), steps, cost.peak, GB).time == 16


def test_an_arriving_datum_may_be_offloaded_again_after_it_has_arrived():
    cost = validate(graph(), schedule("F H oa K dh L dk pa oa pa B da"), None, GB)
    # out 4-8, back 10-14, out again 14-18, back 18-22
    assert [(one.start, one.end) for one in cost.copies] == [(4, 8), (10, 14), (14, 18), (18, 22)]


def test_a_copy_that_ends_with_a_run_frees_its_bytes_for_the_next_step():
    cost = validate(graph(), schedule("F H oa K dh L dk pa B da"), None, Link(to_host=8 * 10**8, to_device=10**9))
    # a out 4-9, K 4-9: when h is dropped a is gone too
    assert cost.timeline[3:5] == (10, 2)


def test_what_never_fits_exceeds_the_budget():
    with pytest.raises(BudgetExceeded) as caught:
        validate(graph(), AWAY, 8, GB)
    assert (caught.value.step, caught.value.live) == (8, 9)


def test_each_lane_makes_one_copy_at_a_time_in_order():
    steps = schedule("F H oa K oh L dk pa ph B da dh")
    cost = validate(graph(), steps, None, SLOW_BACK)
    spans = [(one.what, one.start, one.end) for one in cost.copies]
    # a goes out 4-8; h is offloaded when K has ended at 9: 9-12; L ends at 10. Back at half the speed: a 10-18, h 18-24
    assert spans == [("a", 4, 8), ("h", 9, 12), ("a", 10, 18), ("h", 18, 24)]
    # B waits for a alone; the drop of h waits until h has arrived
    assert cost.computations[-1].start == 18 and cost.time == 24


def test_a_prefetch_waits_for_its_own_copy_out():
    cost = validate(graph(), schedule("F H oa pa K dh L dk B da"), None, GB)
    assert [(one.start, one.end) for one in cost.copies] == [(4, 8), (8, 12)]


def test_a_prefetch_starts_when_its_bytes_fit_given_the_copies_under_way():
    # h leaves 9-12. Under 9 bytes a (4) fits beside t, k only... the drop of k stands before the prefetch, so it counts
    cost = validate(graph(), schedule("F H oa K oh L dk pa B da"), 9, GB)
    back = cost.copies[-1]
    assert (back.what, back.start) == ("a", 14) and cost.peak <= 9


def test_a_prefetch_that_never_fits_exceeds_the_budget_at_its_step():
    with pytest.raises(BudgetExceeded) as caught:
        validate(graph(), schedule("F oa pa H K dh L dk B da"), 3, Link())
    assert caught.value.step == 0  # F alone needs 4


def test_a_host_copy_stays_valid_until_the_datum_is_made_anew():
    again = schedule("F H oa K dh L dk pa da pa B da")
    assert validate(graph(), again, None, Link()).time == 13
    with pytest.raises(NotResident, match="no copy on the host"):
        validate(graph(), schedule("F H oa F da K dh L dk pa B da"), None, Link())


def test_a_host_copy_counts_until_its_prefetch_has_ended_although_the_datum_is_offloaded_again():
    twice = schedule("F H oa pa oa K dh L dk pa B da")
    cost = validate(graph(), twice, None, GB)
    # the copies of a: out 4-8, back 8-12, out 12-16; from its step on the second counts beside the first, which is being read
    assert [(one.start, one.end) for one in cost.copies] == [(4, 8), (8, 12), (12, 16), (16, 20)]
    assert cost.host_timeline == (0, 0, 4, 4, 8, 8, 8, 8, 8, 8, 0, 0) and cost.host_peak == 8


def test_after_its_offload_a_datum_is_not_read():
    with pytest.raises(MissingRead) as caught:
        validate(graph(), schedule("F oa H K dh L dk B da"), None, GB)
    assert (caught.value.rule, caught.value.step) == ("S-READ", 2)


@pytest.mark.parametrize(
    ("text", "error", "step"),
    [
        ("oa F", NotResident, 0),
        ("F ox", NotResident, 1),
        ("F pa", NotResident, 1),
        ("F H oa ph", NotResident, 3),
        ("F H oa oa", NotResident, 3),
        ("F H K L ot", KeptDropped, 4),
    ],
)
def test_copies_of_what_is_not_there_or_may_not_go(text, error, step):
    with pytest.raises(error) as caught:
        validate(graph(), schedule(text), None, GB)
    assert caught.value.step == step


def test_without_a_link_there_are_no_copies():
    with pytest.raises(LinkViolation) as caught:
        validate(graph(), AWAY)
    assert (caught.value.rule, caught.value.step) == ("S-LINK", 2)


def test_the_step_ends_when_the_last_copy_has():
    steps = schedule("F H K dh L dk B oa")
    cost = validate(graph(), steps, None, GB)
    assert (cost.time, cost.idle) == (13 + 4, 4)


def test_a_phantom_may_be_copied_and_keeps_its_option():
    b = GraphBuilder("layer")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 1)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 1, Kind.INPUT_GRAD)
    b.forward("F", reads=["x"], writes=["a"])
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B", reads=["t"], writes=["g"])
    b.layer(
        "F",
        "B",
        [LayerOption(forward=2, backward=2, phantom=8), LayerOption(forward=2, backward=4, phantom=6)],
        phantom="P",
    )
    steps = (Run("F", 1), Offload("P"), Run("L"), Drop("a"), Prefetch("P"), Run("B", 1), Drop("P"))
    cost = validate(b.build(), Schedule(steps), None, GB)
    assert (cost.time, cost.host_peak) == (8 + 6 + 4, 6)
    with pytest.raises(MissingRead):
        validate(b.build(), Schedule((*steps[:5], Run("B", 0))), None, GB)


@pytest.mark.parametrize(("size", "speed", "time"), [(0, 7, 0), (1, 7, 142857143), (7, 7, 10**9), (10, 3 * 10**9, 4)])
def test_copy_times_are_whole_nanoseconds_rounded_up(size, speed, time):
    assert Link(to_host=speed, to_host_latency=5).offload_time(size) == time + 5
    assert Link.symmetric(gb_per_s=2, latency=1).prefetch_time(4) == 3


def test_a_no_save_forward_does_not_wait_for_a_phantom_that_it_does_not_touch():
    b = GraphBuilder("layer")
    for name, size, kind in (("a", 1, Kind.ACTIVATION), ("t", 1, Kind.TANGENT), ("g", 1, Kind.PARAM_GRAD)):
        b.data(name, size, kind)
    b.forward("F", writes=["a"])
    b.loss("L", reads=["a"], writes=["t"], time=1)
    b.backward("B", reads=["t"], writes=["g"])
    b.layer("F", "B", [LayerOption(forward=2, backward=3, phantom=8)], no_save=Option(time=1), phantom="p")
    away = (Run("F"), Offload("p"), Run("L"), Prefetch("p"))
    # F 0-2, the copy of p 2-10, L 2-3, the copy back 10-18
    assert validate(b.build(), Schedule((*away, Run("F", 1), Run("B"))), None, GB).idle == 18 - 4
    assert validate(b.build(), Schedule((*away, Run("F"), Run("B"))), None, GB).idle == 18 - 3
