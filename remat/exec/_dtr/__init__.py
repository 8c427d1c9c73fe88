"""Dynamic tensor rematerialization while a step runs: wrapper tensors over the runtime core of `remat.algorithms`."""
