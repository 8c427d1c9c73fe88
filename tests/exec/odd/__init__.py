"""Odd modules: what a capture may stumble over, as a table, and the judge that says exact or refused."""

from tests.exec.odd import branches, changes, foreign, outputs, randomness, settings, state

__all__ = ["branches", "changes", "foreign", "outputs", "randomness", "settings", "state"]
