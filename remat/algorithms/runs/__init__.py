"""Planning over run sequences of flat graphs: kernels, moves, the search they share. See docs/explanation/planner.md."""
