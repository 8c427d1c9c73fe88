"""What one thread runs and allocates, recorded; and whether a profile is on.

The profiler that lives in one thread is private to torch: a plan made while a profile is on must not disturb that profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from attrs import frozen
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.profiler import record_function

from remat._collector import collector_paused


@frozen
class Event:
    """Something that a `Recording` saw.

    Attributes:
        name: of an operation or mark that began; empty for memory.
        at: time since the start of the recording [ns].
        size: what the CPU allocator gave, or (below zero) took back [bytes].
    """

    name: str
    at: int
    size: int


class Recording:
    """What one thread runs and what the CPU's allocator gives it, from `start` to `stop`.

    This is torch's older profiler. It is local to its thread, so that a profile on another thread goes on, and it leaves nothing
    in the process. A thread has room for one recording or profile at a time (see `profiling`).
    """

    def start(self) -> None:
        """Begin; only where `profiling()` is false."""
        config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
        _enable_profiler_legacy(config)

    def stop(self) -> list[Event]:
        """End, on the thread that began and outside a backward (see `in_backward`); what was seen, in order of time."""
        lists = _disable_profiler_legacy()
        first = next(record for records in lists for record in records if record.name() == "__start_profile")
        events = [
            Event(record.name(), round(first.cpu_elapsed_us(record) * 1000), record.cpu_memory_usage())
            for records in lists
            for record in records
            if str(record.kind()) in ("push", "memory_alloc")  # a text, whatever torch's types say
        ]
        return events if len(lists) == 1 else sorted(events, key=lambda event: event.at)


@contextmanager
def recorded(events: list[Event]) -> Iterator[None]:
    """Record what runs inside into `events`, which is filled at the end.

    For single operations and parts: nothing is collected meanwhile. Garbage that was made under an earlier recording would count
    as memory taken back here.
    """
    recording = Recording()
    with collector_paused():
        recording.start()
        try:
            yield
        finally:
            events += recording.stop()


def mark(name: str) -> None:
    """Leave a mark in a recording of this thread, if there is one."""
    with record_function(name):
        pass


def profiling() -> bool:
    """Whether a profile or recording of this thread is on; they do not nest."""
    return torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


def profiled() -> bool:
    """Whether a profiler of the user's is on in this process; a `Recording` is none."""
    return torch.autograd.profiler._is_profiler_enabled


def in_backward() -> bool:
    """Whether this thread is inside autograd's engine, which puts back the thread's state when it is done."""
    return torch._C._current_graph_task_id() != -1


_before: list[Callable[[], None]] = []


def profile_begins() -> None:
    """Call what waits for the begin of a profile."""
    for call in tuple(_before):
        call()


def before_profiles(call: Callable[[], None]) -> Callable[[], None]:
    """Have `call` called whenever a profile is about to start; returns a function that undoes this.

    Torch has no place to ask for this, so its two entries are replaced for as long. What is about to record without them says
    so itself (`profile_begins`).
    """
    entries = {name: getattr(torch.autograd.profiler, name) for name in ("_prepare_profiler", "_enable_profiler")}

    def first(name: str) -> Callable[..., Any]:
        def enter(*args: Any, **kwargs: Any) -> Any:
            call()
            return entries[name](*args, **kwargs)

        return enter

    replaced = {name: first(name) for name in entries}

    def take_back() -> None:
        _before.remove(call)
        for name, entry in entries.items():
            if getattr(torch.autograd.profiler, name) is replaced[name]:
                setattr(torch.autograd.profiler, name, entry)

    _before.append(call)
    for name, enter in replaced.items():
        setattr(torch.autograd.profiler, name, enter)
    return take_back
