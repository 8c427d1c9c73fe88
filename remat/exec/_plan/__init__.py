"""From a captured step and a budget to a plan: graph, solver, smallest budget, stages."""
