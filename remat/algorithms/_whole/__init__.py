"""Solvers of a whole graph at once: baselines, DTR, TW-Remat, exhaustive search."""
