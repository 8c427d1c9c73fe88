"""The typed IR of a training step: graphs, schedules, the validator, and their forms. Needs attrs only."""

from remat.ir.build import GraphBuilder
from remat.ir.canonical import cluster_classes, node_classes, renaming, translate, translate_steps
from remat.ir.chain import Chain
from remat.ir.cluster import Cluster, clusters, is_convex
from remat.ir.cost import Cost, Interval, Lane
from remat.ir.graph import Graph
from remat.ir.hierarchy import Condensed, condense, expand, layer_option, part, plain_options
from remat.ir.interchange import dump, dumps, load, loads
from remat.ir.joint import read_joint_graph
from remat.ir.link import Link
from remat.ir.node import KEPT, OUTSIDE, Compute, Data, Kind, Layer, Phantom, Phase
from remat.ir.offer import option_of
from remat.ir.option import LayerOption, Moment, Option
from remat.ir.plan_file import PlanFile, SavedPlan, parse_plans, print_plans, read_plans, write_plans
from remat.ir.rules import GRAPH_RULES
from remat.ir.schedule import Schedule
from remat.ir.step import Drop, Offload, Prefetch, Run, Step
from remat.ir.text import parse_text, print_text
from remat.ir.validation import SCHEDULE_RULES, validate

__all__ = [
    "GRAPH_RULES",
    "KEPT",
    "OUTSIDE",
    "SCHEDULE_RULES",
    "Chain",
    "Cluster",
    "Compute",
    "Condensed",
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
    "PlanFile",
    "Prefetch",
    "Run",
    "SavedPlan",
    "Schedule",
    "Step",
    "cluster_classes",
    "clusters",
    "condense",
    "dump",
    "dumps",
    "expand",
    "is_convex",
    "layer_option",
    "load",
    "loads",
    "node_classes",
    "option_of",
    "parse_plans",
    "parse_text",
    "part",
    "plain_options",
    "print_plans",
    "print_text",
    "read_joint_graph",
    "read_plans",
    "renaming",
    "translate",
    "translate_steps",
    "validate",
    "write_plans",
]
