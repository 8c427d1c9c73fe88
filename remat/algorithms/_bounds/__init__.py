"""Formulations of lower bounds, as data."""
