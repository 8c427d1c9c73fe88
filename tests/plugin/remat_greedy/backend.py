"""A back end from outside."""

import itertools

import numpy as np
from attrs import frozen

from remat.algorithms import Answer, Backend, Hints


@frozen
class Enumeration(Backend):
    """Tries every point of a formulation of few columns."""

    most: int = 16

    def check(self):
        """It needs nothing."""

    def solve(self, model, limits, hints=Hints()):
        """The cheapest point that keeps every row."""
        linear, right = model.linear, model.right
        if len(linear.cost) > self.most:
            return Answer(note=f"{len(linear.cost)} columns are too many to enumerate")
        points = np.array(list(itertools.product((0, 1), repeat=len(linear.cost))), np.int64)
        matrix = np.zeros(linear.shape, np.int64)
        matrix[linear.row, linear.col] = linear.val
        sums = points @ matrix.T
        points = points[np.where(linear.equal, sums == right, sums <= right).all(1)]
        if not len(points):
            return Answer(infeasible=True, finished=True, note="enumerated")
        point = points[np.argmin(points @ linear.cost)]
        return Answer(point=point.astype(float), bound=int(point @ linear.cost), finished=True, note="enumerated")
