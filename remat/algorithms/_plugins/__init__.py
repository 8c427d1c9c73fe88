"""Names of solvers, and expressions in text: what is registered here and by other packages."""
