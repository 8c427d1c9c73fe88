"""Pictures of replays of DTR."""

import pytest

from remat.viz.replays import ReplayMark, draw_replays


@pytest.mark.parametrize("logs", [1, 2, 3])
def test_budgets_fall_from_left_to_right_however_many_logs_there_are(logs):
    pytest.importorskip("matplotlib")
    marks = [ReplayMark(share=100, overhead=1.0, accesses=5), ReplayMark(share=50, overhead=None, accesses=9)]
    figure = draw_replays({f"log{number}": {"lru": marks} for number in range(logs)})
    assert len(figure.axes) == 2 * logs
    assert all(axes.xaxis_inverted() for axes in figure.axes)
    (line,) = figure.axes[0].lines
    assert line.get_xydata().tolist() == [[100.0, 1.0]]  # what did not end has no place in the curve
