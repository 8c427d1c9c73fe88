"""The CPU's stand-in for copy streams: a worker thread for each direction, and host memory or a file for what is copied out.

With memory it is a stand-in for a device: it shows plans with copies, and tests them. With a file it is of use: what
does not fit into memory lies on disk while it is not needed.
"""

from __future__ import annotations

import atexit
import errno
import mmap
import os
import queue
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeAlias

import torch
from attrs import define, field

from remat.errors import RematError
from remat.exec._copy.mapped import mapped_file
from remat.ir import Lane, Link
from remat.units import Bytes, Ns, format_bytes


@define(eq=False)
class CpuEvent:
    """An event: happened or not, when [ns of the clock], and the error of the copy before it, if there was one."""

    happened: threading.Event = field(factory=threading.Event)
    at: Ns = 0
    error: BaseException | None = None

    def happen(self, error: BaseException | None = None) -> None:
        """It happens now."""
        self.at, self.error = time.perf_counter_ns(), error
        self.happened.set()

    def wait(self) -> None:
        """Wait for it.

        Raises:
            RematError: X-HOST, when the copy before it failed.
        """
        self.happened.wait()
        if self.error is not None:
            fix = "see the error above; the step after this one starts with fresh copies."
            raise RematError("X-HOST", f"a copy failed: {self.error}", fix=fix) from self.error


Job: TypeAlias = Callable[["_Work"], None]


class _Work:
    """What a worker thread shares with its device: it must not hold the device itself, which ends the thread when it is gone."""

    def __init__(self, duration: Callable[[Bytes], Ns] | None) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.duration = duration
        self.error: BaseException | None = None
        self.ready: Ns = 0  # when the lane last had nothing to do
        self.free: Ns = 0  # when its last copy ended, on the link that is imitated

    def run(self) -> None:
        """Jobs in order, until None comes."""
        while (job := self._next()) is not None:
            try:
                job(self)
            except BaseException as error:  # noqa: BLE001 (raised where the step waits for the copy)
                self.error = error
            job = None  # an event that is set next must find the tensors of this job released

    def _next(self) -> Job | None:
        idle = self.jobs.empty()
        job = self.jobs.get()
        if idle:
            self.ready = time.perf_counter_ns()
        return job

    def copy(self, target: torch.Tensor, source: torch.Tensor, size: Bytes) -> None:
        """Copy, not faster than the link that is imitated: that link begins when this copy was ready and the last one had ended.

        What the system takes to wake this thread is no time of the link, and is not added up over copies in a row.
        """
        start = time.perf_counter_ns()
        target[:size].copy_(source[:size])
        taken = time.perf_counter_ns() - start
        if self.duration is not None:
            taken = max(taken, self.duration(size))
            self.free = max(self.free, self.ready) + taken
            rest = self.free - time.perf_counter_ns()
            if rest > 0:
                time.sleep(rest / 1e9)

    def wait(self, event: CpuEvent, *, depends: bool) -> None:
        """Wait; what reads the result of a copy that failed fails too."""
        if not event.happened.is_set():
            event.happened.wait()
            self.ready = time.perf_counter_ns()
        if depends:
            self.error = self.error or event.error

    def happen(self, event: CpuEvent) -> None:
        """Set an event, with the error since the last one."""
        error, self.error = self.error, None
        event.happen(error)


class _Worker:
    """A lane: a thread that is started with its first job, anew in a forked process.

    `starting` is held while it is: threads that train at the same time share a lane.
    """

    starting = threading.Lock()

    def __init__(self, name: str, duration: Callable[[Bytes], Ns] | None) -> None:
        self.name = name
        self.duration = duration
        self.process = -1
        self.work = _Work(duration)
        self.thread: threading.Thread | None = None

    def give(self, job: Job) -> None:
        """Add a job."""
        if not self._is_started():
            with _Worker.starting:
                if not self._is_started():
                    self._start()
        self.work.jobs.put(job)

    def _is_started(self) -> bool:
        return self.thread is not None and self.process == os.getpid()

    def _start(self) -> None:
        """Start a thread; where none can be started, the next job tries again."""
        work = _Work(self.duration)
        thread = threading.Thread(target=work.run, name=self.name, daemon=True)
        thread.start()
        self.work, self.process, self.thread = work, os.getpid(), thread
        weakref.finalize(self, work.jobs.put, None).atexit = False
        _workers.add(self)

    def end(self) -> None:
        """Wait until all jobs are done, and end the thread; the next job starts another one."""
        if self.thread is not None and self._is_started():
            self.work.jobs.put(None)
            self.thread.join()
            self.thread = None


_workers: weakref.WeakSet[_Worker] = weakref.WeakSet()


def _begin_anew() -> None:
    """Another thread of the parent may hold the lock, which is not in the forked process."""
    _Worker.starting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


@atexit.register
def _end_workers() -> None:
    """No thread goes on while Python ends, and a step that is dropped then waits for its copies."""
    for worker in list(_workers):
        worker.end()


class CpuDevice:
    """Two worker threads and a store on the host.

    Args:
        throttle: copies take at least as long as this link takes; None: as fast as they go.
        disk: whether what is copied out lies in files, one for each buffer, without a name: they go with the process.
    """

    blocks = True

    def __init__(self, *, throttle: Link | None = None, disk: bool = False) -> None:
        self.device = torch.device("cpu")
        self.throttle = throttle
        self.disk = disk
        out, back = (None, None) if throttle is None else (throttle.offload_time, throttle.prefetch_time)
        self._workers = {
            Lane.TO_HOST: _Worker("remat to host", out),
            Lane.TO_DEVICE: _Worker("remat to device", back),
        }

    def record(self, lane: Lane) -> CpuEvent:
        """See `CopyDevice`; the caller computes, so that an event of the compute lane has happened."""
        event = CpuEvent()
        if lane is Lane.COMPUTE:
            event.happen()
        else:
            worker = self._workers[lane]
            worker.give(lambda work: work.happen(event))
        return event

    def wait(self, lane: Lane, event: CpuEvent) -> None:
        """See `CopyDevice`."""
        if lane is not Lane.COMPUTE:
            worker = self._workers[lane]
            if not event.happened.is_set() or event.error is not None:
                worker.give(lambda work: work.wait(event, depends=lane is Lane.TO_DEVICE))
        elif not self._is_worker():  # a collection of garbage may run anywhere, and a worker cannot wait for itself
            event.wait()

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor, size: Bytes) -> None:
        """See `CopyDevice`."""
        worker = self._workers[lane]
        worker.give(lambda work: work.copy(target, source, size))

    def allocate(self, size: Bytes) -> torch.Tensor:
        """See `CopyDevice`."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def free(self, block: torch.Tensor) -> None:
        """Nothing: memory goes with its last reference."""

    def host_buffer(self, size: Bytes) -> torch.Tensor:
        """See `CopyDevice`; outside torch's allocator, whose numbers are those of the device."""
        try:
            memory = mapped_file(size) if self.disk else mmap.mmap(-1, size)
        except OSError as error:
            if self.disk:
                raise _no_file(size, error) from error
            what = f"the host has no room for {format_bytes(size)} ({size} B) more: {error.strerror}."
            raise RematError("X-HOST", what, fix="give a smaller host_budget or a larger budget.") from error
        return torch.frombuffer(memory, dtype=torch.uint8)

    def free_host(self, buffer: torch.Tensor) -> None:
        """Nothing: the map and its file go with the last reference."""

    def synchronize(self, event: CpuEvent) -> None:
        """See `CopyDevice`; whether the copy failed is no matter here."""
        if not self._is_worker():
            event.happened.wait()

    def between(self, first: CpuEvent, second: CpuEvent) -> Ns:
        """See `CopyDevice`."""
        self.synchronize(first)
        self.synchronize(second)
        return second.at - first.at

    def _is_worker(self) -> bool:
        return any(worker.thread is threading.current_thread() for worker in self._workers.values())


def _no_file(size: Bytes, error: OSError) -> RematError:
    more = f"for {format_bytes(size)} ({size} B) more"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        what = f"no file can be opened {more}: {error.strerror}."
        return RematError("X-DISK", what, fix="close files, or allow more (`ulimit -n`).")
    where = "" if tempfile.tempdir is None else f" in {tempfile.tempdir}"  # None: there is no folder to write to
    if error.errno == errno.EFBIG:
        fix = "allow larger files (`ulimit -f`), name another folder in TMPDIR, or leave offload out."
        return RematError("X-DISK", f"no file can be made{where} {more}: {error.strerror}.", fix=fix)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        what = f"no file can be made{where} {more}: {error.strerror}."
        return RematError("X-DISK", what, fix="name a folder that can be written to in TMPDIR, or leave offload out.")
    fix = "make room there, name another folder in TMPDIR, or give a larger budget."
    return RematError("X-DISK", f"no room {more}{where}: {error.strerror}.", fix=fix)


__all__ = ["CpuDevice", "CpuEvent"]
