"""Execution: capture any module's training step, plan it, and run the plan inside PyTorch autograd."""

from remat.exec.audit import StepMemory, measure_step
from remat.exec.build import build_graph
from remat.exec.capture import Captured, capture
from remat.exec.cost import OpCost, estimate, resized
from remat.exec.devices import DEVICES, Device
from remat.exec.lower import Lowered, lower
from remat.exec.measure import measure
from remat.exec.plan_only import Weightless, capture_without_weights, graph_without_weights
from remat.exec.planning import Planned, Settings, plan_step
from remat.exec.report import Report, report
from remat.exec.runtime import StepError
from remat.exec.sweep import Choice, ModelCurve, sweep, sweep_graph
from remat.exec.wrap import RematWarning, wrap

__all__ = [
    "DEVICES",
    "Captured",
    "Choice",
    "Device",
    "Lowered",
    "ModelCurve",
    "OpCost",
    "Planned",
    "RematWarning",
    "Report",
    "Settings",
    "StepError",
    "StepMemory",
    "Weightless",
    "build_graph",
    "capture",
    "capture_without_weights",
    "estimate",
    "graph_without_weights",
    "lower",
    "measure",
    "measure_step",
    "plan_step",
    "report",
    "resized",
    "sweep",
    "sweep_graph",
    "wrap",
]
