"""Dynamic tensor rematerialization (Kirisame et al., ICLR 2021): logs of programs, scores, and the simulator.

    program = load_program("resnet.log")
    simulate(program, budget=program_peak(program) // 2, score="h_dtr_eq")

A log has the format of the paper's appendix C.6; every number agrees with the public simulator's. The solver over graphs of
this library is `remat.algorithms.Dtr`.
"""

from __future__ import annotations

from remat.algorithms._dtr.adversary import Attack, attack, unit_chain_log
from remat.algorithms._dtr.log import (
    Alias,
    Annotate,
    Call,
    Constant,
    Copy,
    CopyFrom,
    Instruction,
    Memory,
    Mutate,
    Release,
    read_instructions,
    write_instructions,
)
from remat.algorithms._dtr.program import Program, ProgramBuilder
from remat.algorithms._dtr.reader import load_program, read_program
from remat.algorithms._dtr.scores import Chance, Family, LastAccess, Pool, Score, score_named
from remat.algorithms._dtr.simulator import LIMIT, Replay, Status, program_peak, simulate

__all__ = [
    "LIMIT",
    "Alias",
    "Annotate",
    "Attack",
    "Call",
    "Chance",
    "Constant",
    "Copy",
    "CopyFrom",
    "Family",
    "Instruction",
    "LastAccess",
    "Memory",
    "Mutate",
    "Pool",
    "Program",
    "ProgramBuilder",
    "Release",
    "Replay",
    "Score",
    "Status",
    "attack",
    "load_program",
    "program_peak",
    "read_instructions",
    "read_program",
    "score_named",
    "simulate",
    "unit_chain_log",
    "write_instructions",
]
