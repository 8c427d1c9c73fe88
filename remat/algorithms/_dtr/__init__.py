"""Dynamic tensor rematerialization (Kirisame et al., ICLR 2021): logs, scores, the runtime of the simulator, and the solver `Dtr`."""
