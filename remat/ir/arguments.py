"""What arguments of the public functions of the IR may be: `@takes(graph=A_GRAPH)`. Clusters have theirs in `cluster.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remat.ir.cost import Cost
from remat.ir.graph import Graph
from remat.ir.link import Link
from remat.ir.option import LayerOption
from remat.ir.schedule import Schedule
from remat.ir.step import Drop, Offload, Prefetch, Run
from remat.settings import Setting, either, instance, optional


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _are_steps(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(step, Run | Drop | Offload | Prefetch) for step in value)


A_GRAPH = instance(Graph, "remat.load(path)")
A_SCHEDULE = instance(Schedule, "Schedule.from_runs(graph, runs)")
A_COST = instance(Cost, "validate(graph, schedule)")
A_THING = either(A_GRAPH, A_SCHEDULE)
AN_OPTION = instance(LayerOption, "plain_options(graph, cluster)[0]")
A_LINK = optional(instance(Link, "Link.symmetric(gb_per_s=12)"))
A_PATH = Setting("a path, as text or a Path", _is_path)
A_FILE_NAME = Setting("the path of a file, as text or a Path", lambda value: _is_path(value) and bool(Path(value).name))
A_TEXT = Setting("text", lambda value: isinstance(value, str))
RAW = Setting("text or bytes", lambda value: isinstance(value, (str, bytes)))
A_TABLE = Setting("a mapping", lambda value: isinstance(value, Mapping))
STEPS = Setting("a tuple of steps, e.g. schedule.steps", _are_steps)
