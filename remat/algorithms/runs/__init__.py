"""Planning over run sequences: kernels, moves, the search they share. See docs/explanation/planner.md."""
