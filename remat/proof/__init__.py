"""Proofs of lower bounds as documents, and their checker: `check.py` stands alone and shares no code with solvers."""

from remat.proof.check import Verdict
from remat.proof.document import Proof

__all__ = ["Proof", "Verdict"]
