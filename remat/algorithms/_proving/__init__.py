"""Proofs of lower bounds that others can check: multipliers in integers, rounding cuts, branch trees, sets of data."""
