"""Linear and mixed integer formulations, and the programs that solve them."""
