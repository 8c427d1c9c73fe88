"""Random legal graphs against a second oracle: no bound above the optimum, no false `optimal` or `infeasible`, no crash."""
