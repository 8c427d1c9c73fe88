"""The runtime for programs that come as they are called: it does what the simulator does, and forgets what nothing needs."""

import gc
import weakref

import pytest

from remat.algorithms._dtr.memory import OutOfRoom
from remat.algorithms._dtr.online import Core, Thrashing
from remat.algorithms._dtr.scores import score_named
from remat.algorithms._dtr.values import Call, Handle, Out
from remat.algorithms.dynamic import Status, program_peak, read_program, simulate, unit_chain_log, write_instructions
from remat.testing.programs import OnlineReplay, numbers_of, random_log

SCORES = ("h_dtr_eq", "h_local", "lru", "size", "random", "h'(yes, no, eq)", "h'(no, yes, local)")


def replays(score, seeds, shares=(75, 50, 35, 15)):
    """Each program as the simulator runs it and as the online runtime does."""
    for seed in seeds:
        program = read_program(random_log(seed, 60), keep=False)
        peak = program_peak(program)
        for share in shares:
            budget = peak * share // 100
            yield simulate(program, budget, score), OnlineReplay(program, budget, score_named(score))


@pytest.mark.parametrize("score", SCORES)
def test_random_programs_go_as_in_the_simulator(score):
    ended = {Status.OK: 0, Status.OUT_OF_MEMORY: 0}
    for expected, replayed in replays(score, range(12)):
        assert replayed.numbers == numbers_of(expected)
        ended[expected.status] += expected.remats > 0 or expected.status is not Status.OK
    assert min(ended.values()) > 5


@pytest.mark.parametrize("score", ["h_dtr_eq", "h_dtr", "msps", "lru"])
def test_unit_chains_go_as_in_the_simulator(score):
    program = read_program(write_instructions(unit_chain_log(60)))
    replayed = OnlineReplay(program, 16, score_named(score))
    assert replayed.numbers == numbers_of(simulate(program, 16, score)) and replayed.core.remats > 20


def chain(core, length):
    """A chain of unit calls of which the program holds every value."""
    handles = [Handle(core.constant("0"))]
    for _ in range(length):
        handles.append(Handle(extended(core, handles[-1].value)))
    return handles


def extended(core, value, **how):
    call = Call((value,), lambda payloads: [payloads[0] + "'"], cost=1, **how)
    (result,) = core.declare(call, [Out(1)])
    core.perform(call)
    return result


def test_payloads_are_computed_again_as_deep_as_it_takes():
    core = Core(3, score_named("lru"), limit=float("inf"))
    handles = chain(core, 3000)
    assert core.get(handles[-1].value) == "0" + 3000 * "'"
    assert core.get(handles[2000].value) == "0" + 2000 * "'"
    assert core.remats >= 1999 and core.peak <= 3


def test_what_nothing_needs_any_more_is_forgotten():
    core = Core(10, score_named("h_dtr_eq"))
    handles = chain(core, 50)
    alive = [weakref.ref(handle.value.storage) for handle in handles]
    gc.disable()
    try:
        del handles[:-1]
        assert all(ref() is not None for ref in alive)  # the last one may have to be computed again
        handles.clear()
        assert all(ref() is None for ref in alive)
    finally:
        gc.enable()
    assert core.memory == 0 and not core.pool


def test_room_is_made_before_a_call_and_its_workspace_counts():
    core = Core(4, score_named("lru"))
    handles = chain(core, 3)
    assert core.memory == 3
    handles.append(Handle(extended(core, handles[-1].value, work=2)))
    assert core.peak == 4 and core.evictions == 2
    with pytest.raises(OutOfRoom) as caught:
        extended(core, handles[-1].value, work=3)
    assert (caught.value.need, caught.value.kept) == (4, 1)
    extended(core, handles[-1].value, work=2)  # nothing stays locked


def test_spare_room_is_made_as_far_as_it_goes():
    core = Core(4, score_named("lru"))
    handles = chain(core, 3)
    call = Call((handles[-1].value,), lambda payloads: ["x"], cost=1)
    call.spare = 100
    core.declare(call, [Out(1)])
    core.perform(call)
    assert core.evictions == 2


def test_a_run_that_fails_leaves_nothing_locked():
    core = Core(10, score_named("lru"))
    handles = chain(core, 2)

    def fail(_):
        raise ZeroDivisionError

    call = Call((handles[-1].value,), fail, cost=1)
    core.declare(call, [Out(1)])
    with pytest.raises(ZeroDivisionError):
        core.perform(call)
    assert [handle.value.storage.locks for handle in handles] == [1, 0, 0] and core.busy == 0


def test_thrashing_is_given_up():
    core = Core(3, score_named("lru"), limit=2)
    handles = chain(core, 30)
    with pytest.raises(Thrashing):
        for _ in range(100):
            for handle in reversed(handles):
                core.get(handle.value)
    assert core.remat_cost > core.compute


def test_an_overwritten_storage_keeps_its_memory_and_its_references_follow():
    core = Core(2, score_named("lru"))
    core.view_of = lambda value: lambda payloads: [payloads[0]]
    first = Handle(extended(core, core.constant("0")))
    before, old = first.value, first.value.storage
    call = Call((before,), lambda payloads: [payloads[0] + "!"], cost=1)
    call.takes = (before,)
    outs = core.declare(call, [Out(1)])
    core.perform(call)
    del outs
    assert core.peak == 1 and not old.material and before.payload is None
    assert first.value.storage is not old and core.get(first.value) == "0'"  # the same memory, as the writer left it
    core.evict(first.value.storage)
    assert core.get(first.value) == "0'!"
    assert core.peak == 1  # the memory of what was computed on the way was taken again
