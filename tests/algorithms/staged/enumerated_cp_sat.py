"""The part of `ortools.sat.python.cp_model` that `CpSat` uses, by enumeration: what it states can be tried without OR-Tools."""

import itertools
import math
from types import SimpleNamespace


class LinearExpr:
    def __init__(self, places, values):
        assert all(type(value) is int for value in values)
        self.terms = list(zip(places, values, strict=True))

    @staticmethod
    def weighted_sum(columns, values):
        return LinearExpr(columns, values)

    def at(self, point):
        return sum(value * point[column] for column, value in self.terms)


class CpModel:
    def __init__(self):
        self.count, self.rows, self.cost, self.hints = 0, [], None, {}

    def new_bool_var(self, name):
        self.count += 1
        return self.count - 1

    def add_linear_constraint(self, expression, low, high):
        assert type(low) is type(high) is int and low <= high
        self.rows.append((expression, low, high))

    def minimize(self, expression):
        self.cost = expression

    def has_objective(self):
        return self.cost is not None

    def add_hint(self, column, value):
        assert value in (0, 1) and column not in self.hints
        self.hints[column] = value

    def validate(self):
        return "too large" if any(abs(high) > 2**61 for _, _, high in self.rows) else ""

    def points(self):
        for point in itertools.product((0, 1), repeat=self.count):
            if all(low <= row.at(point) <= high for row, low, high in self.rows):
                yield (0 if self.cost is None else self.cost.at(point)), point


class CpSolverSolutionCallback:
    def value(self, column):
        return self.solver.value(column)

    @property
    def best_objective_bound(self):
        return float(min(self.every)[0])


class CpSolver:
    def __init__(self):
        self.parameters = SimpleNamespace()
        self.best_bound_callback = None
        self.stopped, self.cost, self.point = False, math.inf, None

    def stop_search(self):
        self.stopped = True

    def solve(self, model, callback):
        """The points from the dearest to the cheapest, each told; out of time at once without any."""
        self.bound = -math.inf
        if getattr(self.parameters, "max_time_in_seconds", 1.0) == 0.0:
            return "UNKNOWN"
        every = sorted(model.points(), reverse=True)
        if not every:
            return "INFEASIBLE"
        callback.solver, callback.every, self.bound = self, every, float(every[-1][0])
        if self.best_bound_callback is not None:
            self.best_bound_callback(0.0)
        for self.cost, self.point in every:
            callback.on_solution_callback()
            if self.stopped:
                return "FEASIBLE"
        return "OPTIMAL"

    def value(self, column):
        return self.point[column]

    @property
    def best_objective_bound(self):
        return self.bound

    def status_name(self, status):
        return status
