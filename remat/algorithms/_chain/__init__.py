"""Chains: the way into one, and the dynamic programs over it (Rotor, Revolve, periodic, POFO)."""
