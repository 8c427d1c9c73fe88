"""The typed IR of a training step: graphs, schedules, the validator, and their forms. Needs attrs only."""

from remat.ir.build import GraphBuilder
from remat.ir.cost import Cost, Interval, Lane
from remat.ir.graph import Graph
from remat.ir.interchange import dump, dumps, load, loads
from remat.ir.joint import read_joint_graph
from remat.ir.link import Link
from remat.ir.node import KEPT, OUTSIDE, Compute, Data, Kind, Layer, Phantom, Phase
from remat.ir.option import LayerOption, Moment, Option
from remat.ir.rules import GRAPH_RULES
from remat.ir.schedule import Drop, Offload, Prefetch, Run, Schedule, Step
from remat.ir.validate import SCHEDULE_RULES, validate

__all__ = [
    "GRAPH_RULES",
    "KEPT",
    "OUTSIDE",
    "SCHEDULE_RULES",
    "Compute",
    "Cost",
    "Data",
    "Drop",
    "Graph",
    "GraphBuilder",
    "Interval",
    "Kind",
    "Lane",
    "Layer",
    "LayerOption",
    "Link",
    "Moment",
    "Offload",
    "Option",
    "Phantom",
    "Phase",
    "Prefetch",
    "Run",
    "Schedule",
    "Step",
    "dump",
    "dumps",
    "load",
    "loads",
    "read_joint_graph",
    "validate",
]
