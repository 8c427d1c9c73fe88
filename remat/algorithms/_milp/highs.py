"""HiGHS by its own interface: the one place that gives it a problem."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from remat.algorithms._core.startup import importing
from remat.algorithms._milp.answer import Floats
from remat.algorithms._milp.linear import Flags
from remat.errors import BackendMissing


def loaded(matrix: sp.csc_matrix, cost: Floats, right: Floats, equal: Flags, integral: Flags) -> Any:
    """A silent HiGHS with minimize cost·x, matrix x <= right (= where `equal`), 0 <= x <= 1, integer where `integral`."""
    with importing():
        try:
            import highspy
        except ImportError as error:
            fix = "pip install highspy; ask a package that brings a HiGHS of its own, as ortools does, in another process."
            raise BackendMissing("A-BACKEND", f"HiGHS cannot be loaded ({error}).", fix=fix) from error

    model = highspy.HighsModel()
    lp = model.lp_
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_ = cost
    lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.ones(lp.num_col_)
    lp.row_lower_, lp.row_upper_ = np.where(equal, right, -highspy.kHighsInf), right
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
    if integral.any():
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in integral.tolist()]
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(model)
    return solver
