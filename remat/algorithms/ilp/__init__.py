"""Integer programmes of rematerialization, written in CVXPY: Checkmate, rk-Checkmate, H-ILP, and a faster form of them."""
