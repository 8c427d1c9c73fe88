"""`python -m tests.warm`: every solver on random graphs, so that the tests find compiled kernels; CI runs it beside the check of types."""

import warnings

from tests.soundness.judging import WIDE, judge
from tests.soundness.solvers import every


def main():
    warnings.simplefilter("ignore")
    solvers = every()
    for seed in range(0, 3 * WIDE, WIDE):
        judge(seed, solvers)


if __name__ == "__main__":
    main()
