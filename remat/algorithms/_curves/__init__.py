"""Many budgets of one graph: the curve of time over memory, and the choice of a budget."""
