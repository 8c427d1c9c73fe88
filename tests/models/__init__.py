"""One catalogue of real models, tiny and called as their users call them; suites and benchmarks extend it, never copy it."""
