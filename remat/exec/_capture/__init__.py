"""From a joint graph to a program: passes over a draft, guards, and agreement with the kernels."""
