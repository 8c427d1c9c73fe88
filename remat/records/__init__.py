"""A library of instances of rematerialization: graphs at budgets, the best times and bounds known, and the evidence for each."""
