"""The picture of replays of DTR, a column for each log: overhead above (figure 2 of the paper), accesses below (figure 12)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from remat.viz.canvas import finished, new_figure, refuse_nothing


@frozen(kw_only=True)
class ReplayMark:
    """One replay.

    Attributes:
        share: the budget in percent of the peak without one.
        overhead: cost over the cost without recomputation; None where it ran out of memory or thrashed.
        accesses: storage accesses of the heuristic.
    """

    share: float
    overhead: float | None
    accesses: int


def draw_replays(
    panels: Mapping[str, Mapping[str, Sequence[ReplayMark]]], path: str | os.PathLike[str] | None = None
) -> Any:
    """Draw replays of several logs under several heuristics.

    Args:
        panels: for each log, for each heuristic, its marks in any order.
        path: file to write, its ending says the format; None: write nothing.

    Returns:
        The matplotlib `Figure`; it belongs to no window.

    Raises:
        BackendMissing: V-MATPLOTLIB, without matplotlib.
        BadArgument: V-EMPTY, without logs; V-ENDING, for a path that does not end like a picture.
    """
    refuse_nothing(panels, "give at least one log.")
    figure = new_figure(3.2 * len(panels) + 1.5, 5.6)
    above, below = figure.subplots(2, len(panels), squeeze=False, sharex=True)
    for column, (log, lines) in enumerate(panels.items()):
        above[column].set_title(log)
        below[column].set_xlabel("budget [% of the peak]")
        below[column].set_yscale("log")
        for name, marks in lines.items():
            _draw_heuristic(above[column], below[column], name, marks)
    above[0].invert_xaxis()  # all columns share it
    above[0].set_ylabel("cost / cost without recomputation")
    below[0].set_ylabel("storage accesses")
    above[-1].legend(fontsize="small")
    return finished(figure, path)


def _draw_heuristic(above: Any, below: Any, name: str, marks: Sequence[ReplayMark]) -> None:
    """Draw the costs of the replays that ended, and their accesses below."""
    done = sorted((mark for mark in marks if mark.overhead is not None), key=lambda mark: mark.share)
    shares = [mark.share for mark in done]
    above.plot(shares, [mark.overhead for mark in done], marker="o", markersize=3, label=name)
    below.plot(shares, [max(1, mark.accesses) for mark in done], marker="o", markersize=3, label=name)
