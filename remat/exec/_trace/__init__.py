"""Running a forward under fake tensors: the joint graph, what Python read and changed meanwhile, and what stopped it."""
