"""The dynamic programmes over chains: Rotor, rk-Rotor and POFO, with their compiled kernels."""

from remat.algorithms.dp.pofo import Pofo
from remat.algorithms.dp.rotor import RkRotor, Rotor

__all__ = ["Pofo", "RkRotor", "Rotor"]
