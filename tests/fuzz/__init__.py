"""Random modules as readable code, wrapped at random budgets and judged from outside (`make fuzz-wrap`)."""
