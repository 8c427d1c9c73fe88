"""Time in memory: laws about deadlines must not depend on the machine."""

from __future__ import annotations

from remat.algorithms._core.clock import Clock


class Ticks:
    """A source of time that moves on by `step` seconds each time somebody looks."""

    def __init__(self, step: float = 1.0) -> None:
        self.step = step
        self.looks = 0

    def __call__(self) -> float:
        """The time [s]."""
        self.looks += 1
        return self.step * self.looks


def memory_clock(looks: int | None = None) -> Clock:
    """A clock that is over after so many looks at it; None: never."""
    return Clock(None if looks is None else float(looks), now=Ticks())


__all__ = ["Ticks", "memory_clock"]
