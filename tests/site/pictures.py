"""`python -m tests.site.pictures`: draws the pictures of docs/how-to/look-at-a-plan.md again; chromium draws the page's."""

import tempfile
from pathlib import Path

from remat.algorithms import Problem, auto
from remat.ir import Schedule, read_joint_graph, validate
from remat.viz.lanes import draw_lanes
from remat.viz.page import print_page
from remat.viz.pictures import draw_memory
from remat.viz.residency import residency
from tests.site.browser import browser

ROOT = Path(__file__).parent.parent.parent
IMAGES = ROOT / "docs" / "images"
SHARE = 0.4
TENSOR = "add_1:24"


def main() -> None:
    """Plan a captured GPT-2 and draw it."""
    graph = read_joint_graph(ROOT / "tests" / "data" / "captured" / "gpt12.json.gz")
    budget = int(validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak * SHARE)
    schedule = auto.solve(Problem(graph=graph, budget=budget)).schedule
    assert schedule is not None
    memory = residency(graph, schedule, validate(graph, schedule, budget))
    title = f"GPT-2, 12 layers, at {SHARE:.0%} of its peak"
    draw_memory(memory, IMAGES / "memory.png", budget=budget, title=title)
    draw_lanes(memory, IMAGES / "lanes.png", title=title)
    with browser() as page, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.html"
        file.write_text(print_page(memory, budget=budget), encoding="utf-8")
        page.open(f"{file.as_uri()}#tensor={TENSOR}", width=1200, height=800)
        page.screenshot(IMAGES / "page.png")
        assert not page.errors, page.errors


if __name__ == "__main__":
    main()
