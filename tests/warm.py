"""`python -m tests.warm`: every solver on random graphs, DTR on a log: tests find compiled kernels; CI runs it beside mypy."""

import warnings

from remat.algorithms.dynamic import read_program, simulate, unit_chain_log, write_instructions
from tests.soundness.judging import WIDE, judge
from tests.soundness.solvers import every


def main():
    warnings.simplefilter("ignore")
    simulate(read_program(write_instructions(unit_chain_log(10))), 8, "h_dtr")
    solvers = every()
    for seed in range(0, 3 * WIDE, WIDE):
        judge(seed, solvers)


if __name__ == "__main__":
    main()
