"""The protocol of solvers and the algebra over it: clock, combinators, options, transforms."""
