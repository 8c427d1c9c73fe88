"""Dynamic tensor rematerialization (Kirisame et al., ICLR 2021): logs, programs, scores, and the runtime of the simulator."""
