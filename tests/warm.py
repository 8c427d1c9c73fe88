"""`python -m tests.warm`: every solver on random graphs, so that tests find compiled kernels; CI runs it beside mypy."""

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
