"""The suites on a CUDA device (`make test-cuda`)."""
