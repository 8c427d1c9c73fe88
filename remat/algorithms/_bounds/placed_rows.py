"""Rows of a formulation as arrays: one entry for each row of a kind, and the place of each row among those of all kinds."""

from __future__ import annotations

import numpy as np

from remat.algorithms._milp.linear import Builder, Ints

Terms = list[tuple[Ints, int]]
"""The column of each row, -1: none, and their common coefficient."""


def add_rows(builder: Builder, terms: Terms, rhs: Ints) -> Ints:
    """Add a row for each right-hand side; returns their numbers."""
    rows: Ints = builder.rows(len(rhs), rhs) + np.arange(len(rhs))
    _fill(builder, rows, terms)
    return rows


class PlacedRows:
    """Rows of several kinds, sorted by their places when they are added to a formulation."""

    def __init__(self) -> None:
        self._groups: list[tuple[Ints, Terms, Ints]] = []

    def add(self, places: Ints, terms: Terms, rhs: Ints) -> None:
        """Give the rows of a kind; no place may occur twice."""
        self._groups.append((places, terms, rhs))

    def add_to(self, builder: Builder) -> Ints:
        """Add them to a formulation; returns their numbers among the rows as given, in the order of the places."""
        order = np.argsort(np.concatenate([places for places, _, _ in self._groups]))
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        rank += builder.rows(len(order), np.concatenate([rhs for _, _, rhs in self._groups])[order])
        begin = 0
        for places, terms, _ in self._groups:
            _fill(builder, rank[begin : begin + len(places)], terms)
            begin += len(places)
        return order


def _fill(builder: Builder, rows: Ints, terms: Terms) -> None:
    for column, value in terms:
        present = np.flatnonzero(column >= 0)
        builder.flat_entries(rows[present], column[present], np.full(len(present), value, np.int64))
