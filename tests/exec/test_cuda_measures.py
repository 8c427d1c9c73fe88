"""What is measured on a CUDA device, by stand-ins of torch's statistics and events; `make test-cuda` runs the real ones."""

import pytest
import torch

from remat.exec._cost import measuring
from remat.exec._torch import cuda_memory, cuda_timing
from remat.units import MiB

CUDA = torch.device("cuda")


class Allocator:
    """Counts blocks as torch's allocator does: small ones in multiples of 512, large ones with what is left of a cached block."""

    def __init__(self, monkeypatch, counts=True):
        self.now = {"small": 0, "large": 0, "asked small": 0, "asked large": 0}
        self.peak, self.most, self.counts = dict(self.now), 0, counts
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: self._reset())
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self._all())
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.most)
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: self._statistics())

    def _all(self):
        return self.now["small"] + self.now["large"]

    def _reset(self):
        self.peak, self.most = dict(self.now), self._all()

    def _statistics(self):
        rows = {"allocated_bytes.all.current": self._all(), "allocated_bytes.all.peak": self.most}
        if self.counts:
            for what, now in (("current", self.now), ("peak", self.peak)):
                rows[f"allocated_bytes.small_pool.{what}"] = now["small"]
                rows[f"requested_bytes.large_pool.{what}"] = now["asked large"]
        return rows

    def take(self, size, excess=0):
        """Take a block, or give one back where the size is negative."""
        pool = "small" if abs(size) < MiB else "large"
        sign = 1 if size > 0 else -1
        self.now[pool] += sign * (cuda_memory.rounded(abs(size)) + excess)
        self.now[f"asked {pool}"] += size
        self.peak = {name: max(self.peak[name], now) for name, now in self.now.items()}
        self.most = max(self.most, self._all())


def test_what_a_call_takes_beyond_its_results_is_what_it_asks_for(monkeypatch):
    allocator = Allocator(monkeypatch)
    allocator.take(5 * MiB)

    def call():
        allocator.take(3 * MiB, excess=700_000)
        allocator.take(2 * MiB, excess=500_000)
        allocator.take(-2 * MiB, excess=500_000)
        return "result"

    result, use = cuda_memory.used_by(call, CUDA)
    assert result == "result"
    assert use.peak == 5 * MiB + 1_200_000 and use.left == 3 * MiB + 700_000
    assert use.asked_peak == 5 * MiB and use.workspace == 2 * MiB


def test_small_blocks_count_whole(monkeypatch):
    allocator = Allocator(monkeypatch)

    def call():
        allocator.take(12)
        allocator.take(4)
        allocator.take(4)
        allocator.take(-4)
        allocator.take(-4)

    _, use = cuda_memory.used_by(call, CUDA)
    assert use.asked_peak == 3 * 512 and use.workspace == 2 * 512


def test_where_nothing_is_said_of_requests_blocks_count(monkeypatch):
    allocator = Allocator(monkeypatch, counts=False)
    allocator.take(MiB)
    _, use = cuda_memory.used_by(lambda: (allocator.take(2 * MiB), allocator.take(-MiB)), CUDA)
    assert use.asked_peak == use.peak == 2 * MiB and use.workspace == MiB


class Event:
    """An event that takes the time of a device whose calls are queued."""

    def __init__(self, **_how):
        self.at = None

    def record(self):
        self.at = Device.busy_until

    def synchronize(self):
        Device.host = max(Device.host, self.at)

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e6


class Device:
    """A device and a host with a clock each [ns]."""

    host = busy_until = 0

    @classmethod
    def call(cls, queue, run):
        """A call that takes the host `queue` and the device `run`."""
        cls.host += queue
        cls.busy_until = max(cls.busy_until, cls.host) + run


@pytest.mark.parametrize("queue, run", [(10_000, 2_000), (10_000, 400_000), (10_000, 5_000_000)])
def test_the_time_of_the_device_is_told_from_that_of_the_host(monkeypatch, queue, run):
    def synchronize(device=None):
        Device.host = Device.busy_until = max(Device.host, Device.busy_until)

    class Context:
        def __init__(self, device):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_error):
            return None

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "device", Context)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: Device.call(0, cycles // 2), raising=False)
    monkeypatch.setattr(cuda_timing.time, "perf_counter_ns", lambda: Device.host)
    timed = measuring._timed(lambda: Device.call(queue, run), CUDA, measuring.ONE_ROUND)
    assert timed["host"] == queue and abs(timed["time"] - run) <= 1
    assert timed["calls"] >= measuring.FEWEST
