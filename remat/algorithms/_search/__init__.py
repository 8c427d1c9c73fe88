"""The default planner: run sequences, the passes that improve them, and the bounds that stop it."""
