"""What new shapes cost a training, and the note that is given once where that is much."""

from __future__ import annotations

from attrs import define

SHARE = 0.1
"""Share of the time since the first plan that new shapes may take before a note says so."""
FEWEST = 8
"""New shapes before which nothing is said: every training begins with some."""
LEAST = 20.0
"""Seconds that new shapes must have taken before anything is said."""


@define(eq=False)
class ShapeBill:
    """Adds up what planning takes after the first plan.

    Attributes:
        since: when the first plan was made [s]; None: there is none.
        spent: on plans after the first [s].
        shapes: how many these were.
        noted: whether the note was given.
    """

    since: float | None = None
    spent: float = 0.0
    shapes: int = 0
    noted: bool = False

    def add(self, began: float, now: float) -> None:
        """A plan was made between these two times; the first is not counted."""
        if self.since is None:
            self.since = now
            return
        self.shapes += 1
        self.spent += now - began

    def restart(self, now: float) -> None:
        """Count from now: what was planned before was planned on purpose."""
        self.since, self.spent, self.shapes = now, 0.0, 0

    def note(self, now: float) -> str:
        """What to tell the user, the first time that shapes cost too much; else empty."""
        if self.noted or self.since is None or self.shapes < FEWEST or self.spent < LEAST:
            return ""
        share = self.spent / max(now - self.since, self.spent)
        if share < SHARE:
            return ""
        self.noted = True
        return (
            f"{self.shapes} new shapes (or other numbers and attributes) took {self.spent:.0f} s to capture and plan, "
            f"{share:.0%} of the time since the first plan. Pad to a few lengths and batch sizes, drop the last smaller batch, "
            "make a number that changes in every step a tensor, or plan before the training with `remat.exec.prepare`."
        )


__all__ = ["FEWEST", "LEAST", "SHARE", "ShapeBill"]
