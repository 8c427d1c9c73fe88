"""A graph as arrays, and the compiled kernels that replay run sequences on them."""
