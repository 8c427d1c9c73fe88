"""Shipped tests: laws that every solver, transform and partitioner keeps, strategies that try them, an in-memory clock.

Nothing of the library imports this package. Hypothesis is imported when a check runs, torch never.
"""
