"""A captured step as a list of operations, with what later stages need of it: code, cost signatures, digests, trial inputs."""
