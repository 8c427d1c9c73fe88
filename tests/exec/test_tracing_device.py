"""Races of copies are found without an accelerator: the library has none, and each planted bug dies."""

import random
import subprocess
import sys
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remat.exec._copy.copies import Copier, Copies
from remat.exec._copy.host_pool import HostPool
from remat.exec._run.copying import Arrive
from remat.exec._run.lowering import Copying, lower
from remat.ir import Lane, Link, validate
from remat.testing import LawBroken, TracingDevice
from remat.testing.walks import Walk
from tests.exec.copying import CopyRig, copied
from tests.exec.support import SMALL, FailAt

LINK = Link.symmetric(gb_per_s=2)


@cache
def rig():
    module, sample = SMALL["mlp"].instantiate(torch.float64)
    return CopyRig(module, sample, cost="estimate")


def schedule_of(seed):
    """All that can be copied is; or a random walk with copies, reruns and drops."""
    graph = rig().graph
    return copied(graph) if seed is None else Walk(graph, random.Random(seed).randint, copies=True).schedule()


@cache
def actions_of(seed):
    schedule = schedule_of(seed)
    cost = validate(rig().graph, schedule, None, LINK)
    copying = Copying.of(rig().graph, schedule, cost, Copier.on(TracingDevice()))
    return schedule, cost, copying.actions if copying is not None else schedule.steps


def stepped(copier, seed=None, actions=None, mode=None):
    """A step by hand, as a rehearsal runs it: outputs and gradients."""
    program = rig().program
    schedule, _, planned = actions_of(seed)
    lowered = lower(program, schedule, Copying(actions=planned if actions is None else actions, copier=copier))
    params, sample = dict(rig().module.named_parameters()), rig().sample
    primals = (*(params[path] for _, path in program.params), *(sample[at] for _, at in program.inputs))
    torch.manual_seed(1)
    with torch.no_grad(), copier.device.watching(), mode or torch.no_grad():
        outputs, read_outputs, activations = lowered.forward(primals)
        saved = (*(primals[at] for at in lowered.backward_primals), *read_outputs)
        tangents = tuple(torch.ones(spec.shape, dtype=spec.dtype) for spec in lowered.tangents.specs)
        return outputs, lowered.backward((), saved, tangents, activations)


@cache
def right():
    return stepped(Copier.on(TracingDevice()))


def same(results):
    return all(torch.equal(x, y) for xs, ys in zip(results, right(), strict=True) for x, y in zip(xs, ys, strict=True))


# -- the library ---------------------------------------------------------------------------------------------------------


@given(st.one_of(st.none(), st.integers(0, 10**6)), st.integers(0, 2**32))
@settings(max_examples=5)
def test_whatever_is_copied_and_whenever_copies_end_there_is_no_race(seed, order):
    device = TracingDevice(random.Random(order).randint)
    copier = Copier.on(device)
    for _ in range(1 + (order % 2)):  # the second time with buffers that are used again
        assert same(stepped(copier, seed))
    device.check()
    assert copier.pool.taken == 0


@given(st.data())
@settings(max_examples=3)
def test_interleavings_are_drawn(data):
    device = TracingDevice(lambda least, most: data.draw(st.integers(least, most)))
    assert same(stepped(Copier.on(device)))
    device.check()


@pytest.mark.parametrize("seed", [None, 3])
def test_each_datum_is_copied_once_each_way_as_planned(seed):
    device = TracingDevice()
    stepped(Copier.on(device), seed)
    _, cost, _ = actions_of(seed)
    sizes = {lane: [rig().graph.datum(c.what).size for c in cost.copies if c.lane is lane] for lane in device.copied}
    if seed is None:
        assert device.copied == {lane: sum(sizes[lane]) for lane in sizes} and device.copied[Lane.TO_HOST]
    assert all(device.copied[lane] <= sum(sizes[lane]) for lane in sizes)


@given(st.integers(1, 130), st.integers(0, 2**32))
@settings(max_examples=6)
def test_an_exception_anywhere_leaves_no_copy_in_flight_and_the_next_step_is_right(at, order):
    device = TracingDevice(random.Random(order).randint)
    copier = Copier.on(device)
    with pytest.raises(KeyboardInterrupt):
        stepped(copier, mode=FailAt(at, KeyboardInterrupt))
    device.check()
    assert copier.pool.taken == 0
    assert same(stepped(copier))
    device.check()


def test_a_forward_that_is_given_up_leaves_no_copy_in_flight():
    device = TracingDevice()
    copier = Copier.on(device)
    copies = copier.begin()
    copies.out("a", torch.ones(5))
    assert device.in_flight and copier.pool.taken
    del copies
    device.check()
    assert copier.pool.taken == 0


@pytest.mark.parametrize(
    "shape", ["transposed", "strided", "part", "several", "complex", "conjugate", "negative", "empty", "scalar"]
)
def test_views_and_tensors_that_are_not_contiguous_come_back_as_they_were(shape):
    base = torch.randn(6, 8, dtype=torch.float64)
    roots = {
        "transposed": (base.t(),),
        "strided": (base[::2, 1::3],),
        "part": (base[2:],),
        "several": (base, base[3], base.t()),
        "complex": (torch.randn(3, dtype=torch.complex64),),
        "conjugate": (torch.randn(3, dtype=torch.complex64).conj(),),
        "negative": (torch.randn(3, dtype=torch.complex64).conj().imag,),
        "empty": (torch.empty(0, 4),),
        "scalar": (torch.tensor(3, dtype=torch.int64),),
    }[shape]
    expected = [root.clone() for root in roots]
    device = TracingDevice()
    copies = Copier.on(device).begin()
    copies.out("a", *roots)
    copies.free("a")
    back = copies.back("a")
    copies.arrive("a")
    for before, after, root in zip(expected, back, roots, strict=True):
        assert torch.equal(before, after) and after.stride() == root.stride() and after.dtype == root.dtype
    storages = {after.untyped_storage().data_ptr() for after in back}
    assert len(storages) == 1
    copies.close()
    device.check()


# -- planted bugs --------------------------------------------------------------------------------------------------------


class Without:
    """A device that leaves out the n-th wait of a lane in each call of a method of the copies."""

    def __init__(self, device, lane):
        self.device, self.lane = device, lane

    def __enter__(self):
        self.wait = self.device.wait
        self.device.wait = lambda lane, event: None if lane is self.lane else self.wait(lane, event)

    def __exit__(self, *error):
        self.device.wait = self.wait


class OutDoesNotWaitForTheComputeLane(Copies):
    def out(self, datum, *roots):
        with Without(self.device, Lane.TO_HOST):
            super().out(datum, *roots)


class BackDoesNotWaitForAnything(Copies):
    def back(self, datum):
        with Without(self.device, Lane.TO_DEVICE):
            return super().back(datum)


class BackDoesNotWaitForTheCopyOut(Copies):
    def back(self, datum):
        self.on_host[datum].whole = self.device.record(Lane.COMPUTE)
        return super().back(datum)


class BackDoesNotWaitForTheMemory(Copies):
    def back(self, datum):
        record = self.device.record
        self.device.record = lambda lane: self.on_host[datum].whole if lane is Lane.COMPUTE else record(lane)
        try:
            return super().back(datum)
        finally:
            self.device.record = record


class NothingWaitsForTheArrival(Copies):
    def arrive(self, datum):
        self.arriving.pop(datum, None)


class WaitsForTheWrongArrival(Copies):
    def arrive(self, datum):
        if datum in self.arriving:
            self.arriving[datum] = self.on_host[datum].whole if datum in self.on_host else self.first
        super().arrive(datum)

    def back(self, datum):
        self.first = self.on_host[datum].whole
        return super().back(datum)


class FreesBeforeTheCopyHasEnded(Copies):
    def free(self, datum):
        _, source, _ = self.leaving.popleft()
        self.device.free(source)


class FreesBehindTheEventBefore(Copies):
    def free(self, datum):
        name, source, ended = self.leaving.popleft()
        previous = getattr(self, "previous", self.device.record(Lane.COMPUTE))
        self.leaving.appendleft((name, source, previous))
        self.previous = ended
        super().free(datum)


class HoldsNothingWhileItIsCopiedOut(Copies):
    def out(self, datum, *roots):
        super().out(datum, *roots)
        _, _, ended = self.leaving.pop()
        self.leaving.append((datum, None, ended))


class ReturnsHostMemoryBeforeTheCopyBack(Copies):
    def forget(self, datum):
        copy = self.on_host[datum]
        copy.last = copy.whole
        super().forget(datum)


class CopiesBackTwice(Copies):
    def back(self, datum):
        super().back(datum)
        return super().back(datum)


class DropsTheCopyWhenItIsGivenUp(Copies):
    def abort(self):
        self._closed = True
        self.leaving.clear()
        self.arriving.clear()


class EarlyPool(HostPool):
    """Gives a buffer out while a copy back reads it."""

    def take(self, size):
        with Without(self.device, Lane.TO_HOST):
            return super().take(size)


PLANTED = (
    OutDoesNotWaitForTheComputeLane, BackDoesNotWaitForAnything, BackDoesNotWaitForTheCopyOut, BackDoesNotWaitForTheMemory,
    NothingWaitsForTheArrival, WaitsForTheWrongArrival, FreesBeforeTheCopyHasEnded, FreesBehindTheEventBefore, CopiesBackTwice,
    HoldsNothingWhileItIsCopiedOut,
)  # fmt: skip


class Begun(Copier):
    """A copier whose steps have other copies."""

    bug = Copies

    def begin(self):
        return self.bug(self)


def with_bug(bug, device):
    copier = Begun.on(device)
    if issubclass(bug, HostPool):
        copier.pool = bug(device)
    else:
        copier.bug = bug
    return copier


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug):
    device = TracingDevice()
    stepped(with_bug(bug, device))
    with pytest.raises(LawBroken, match="L-RACE"):
        device.check()


def test_memory_that_goes_away_behind_nothing_is_found_also_if_its_copy_has_ended_by_chance():
    device = TracingDevice(lambda least, most: most)
    copies = with_bug(HoldsNothingWhileItIsCopiedOut, device).begin()
    copies.out("a", torch.ones(100))
    copies.close()
    with pytest.raises(LawBroken, match=r"without a reference, used again .* is not ordered behind copy to host"):
        device.check()


def test_a_host_buffer_that_nothing_holds_while_it_is_written_is_found():
    device = TracingDevice()
    device.copy(Lane.TO_HOST, device.host_buffer(8), torch.ones(8, dtype=torch.uint8), 8)
    device.synchronize(device.record(Lane.TO_HOST))
    with pytest.raises(LawBroken, match="memory went away while it was under way"):
        device.check()


def test_operations_on_sizes_and_strides_alone_touch_no_memory():
    device = TracingDevice()
    copies = Copier.on(device).begin()
    data = torch.ones(8, 4)
    copies.out("data", data)
    with device.watching():
        data.t_().unsqueeze_(0)
        torch.empty(0).set_(data.untyped_storage())
    copies.free("data")
    (back,) = copies.back("data")
    with device.watching():
        assert torch.equal(torch.zeros_like(back) + back.new_zeros(8, 4), torch.zeros(8, 4))
    copies.arrive("data")
    copies.close()
    device.check()


def reused(bug, device):
    """A host buffer is used again while a copy back still reads it; what comes back."""
    copies = with_bug(bug, device).begin()
    copies.out("a", torch.ones(100))
    copies.free("a")
    (back,) = copies.back("a")
    copies.forget("a")
    copies.out("b", torch.zeros(100))
    copies.free("b")
    copies.arrive("a")
    copies.close()
    return back


@pytest.mark.parametrize("bug", [ReturnsHostMemoryBeforeTheCopyBack, EarlyPool], ids=lambda bug: bug.__name__)
def test_a_host_buffer_that_is_used_again_too_early_is_found(bug):
    device = TracingDevice()
    assert not torch.equal(reused(bug, device), torch.ones(100))
    with pytest.raises(LawBroken, match=r"copy to host .* is not ordered behind copy to device"):
        device.check()


def test_a_host_buffer_is_used_again_behind_the_copy_that_reads_it():
    device = TracingDevice()
    assert torch.equal(reused(Copies, device), torch.ones(100))
    device.check()


def test_copies_that_are_lost_under_an_exception_are_found():
    device = TracingDevice()
    with pytest.raises(KeyboardInterrupt):
        stepped(with_bug(DropsTheCopyWhenItIsGivenUp, device), mode=FailAt(20, KeyboardInterrupt))
    with pytest.raises(LawBroken, match="in flight"):
        device.check()


NUMBERS = (
    BackDoesNotWaitForAnything, BackDoesNotWaitForTheCopyOut, NothingWaitsForTheArrival, FreesBeforeTheCopyHasEnded,
)  # fmt: skip


@pytest.mark.parametrize("bug", NUMBERS, ids=lambda bug: bug.__name__)
def test_where_copies_end_late_a_bug_changes_numbers_too(bug):
    device = TracingDevice()
    copier = with_bug(bug, device)
    assert not same(stepped(copier))


def test_a_wait_that_the_actions_lack_is_found_wherever_it_is():
    _, _, actions = actions_of(None)
    arrivals = [at for at, action in enumerate(actions) if isinstance(action, Arrive)]
    assert len(arrivals) > 5
    for at in arrivals[::4]:
        device = TracingDevice()
        stepped(Copier.on(device), actions=actions[:at] + actions[at + 1 :])
        with pytest.raises(LawBroken, match=r"copy to device .* \(writing to\)"):
            device.check()


def test_to_import_the_kit_does_not_have_a_device_call_into_python():
    program = """
import torch, torch.cuda._gpu_trace as traces
calls = []
torch._C._activate_gpu_trace = lambda: calls.append(1)
import remat.testing
from torch._utils import CallbackRegistry
lists = [value.callback_list for value in vars(traces).values() if isinstance(value, CallbackRegistry)]
assert not calls and not any(lists), (calls, lists)
import torch.cuda._sanitizer
assert calls and all(lists)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
