"""Partitioners, and solvers that work on a hierarchy of blocks."""
