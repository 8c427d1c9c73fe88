"""A captured step as a list of operations, and what everybody asks of it: code, costs' signatures, digests, inputs to try."""
