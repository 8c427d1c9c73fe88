"""A wrapped module: which plan a call runs, and what the call depends on."""
