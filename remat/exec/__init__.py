"""Execution: capture any module's training step, plan it, and run the plan inside PyTorch autograd."""

from remat.exec._capture.capturing import Captured, capture
from remat.exec._cost.audit import StepMemory, measure_step
from remat.exec._cost.cost import OpCost, estimate, resized
from remat.exec._cost.devices import DEVICES, Device
from remat.exec._cost.measuring import measure
from remat.exec._plan.build import build_graph
from remat.exec._plan.planned import Planned
from remat.exec._plan.planning import plan_step
from remat.exec._plan.settings import Settings
from remat.exec._run.lowering import Lowered, lower
from remat.exec._run.runtime import StepError
from remat.exec.blocks import Division, apply_budget
from remat.exec.buckets import BucketCollator, bucket_lengths
from remat.exec.estimating import Estimate
from remat.exec.in_place import give_plans, unwrap, wrap_in_place
from remat.exec.inspecting import Inspection
from remat.exec.plan_files import load_plan, plans_of, save_plan
from remat.exec.preparing import Preparation, ShapeFit, prepare
from remat.exec.reporting import Report, report
from remat.exec.sweeping import Choice, ModelCurve, sweep, sweep_graph
from remat.exec.under_dtr import DtrReport, PartReport, dtr, dtr_report
from remat.exec.weightless import Weightless, capture_without_weights, graph_without_weights
from remat.exec.wrapping import RematWarning, wrap

__all__ = [
    "DEVICES",
    "BucketCollator",
    "Captured",
    "Choice",
    "Device",
    "Division",
    "DtrReport",
    "Estimate",
    "Inspection",
    "Lowered",
    "ModelCurve",
    "OpCost",
    "PartReport",
    "Planned",
    "Preparation",
    "RematWarning",
    "Report",
    "Settings",
    "ShapeFit",
    "StepError",
    "StepMemory",
    "Weightless",
    "apply_budget",
    "bucket_lengths",
    "build_graph",
    "capture",
    "capture_without_weights",
    "dtr",
    "dtr_report",
    "estimate",
    "give_plans",
    "graph_without_weights",
    "load_plan",
    "lower",
    "measure",
    "measure_step",
    "plan_step",
    "plans_of",
    "prepare",
    "report",
    "resized",
    "save_plan",
    "sweep",
    "sweep_graph",
    "unwrap",
    "wrap",
    "wrap_in_place",
]
