"""`make fuzz-proofs`: proofs of random legal graphs against the exhaustive search; exit 1 on any fault.

python -m tests.proof [--seeds 0:2000]
"""

import argparse
import sys

from tests.proof.exhaustive import judged


def main():
    """Judge the seeds, and say what was proved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:2000")
    first, last = map(int, parser.parse_args().seeds.split(":"))
    total = dict.fromkeys(("proofs", "tight", "nothing", "raised", "seconds"), 0)
    faulty = 0
    for seed in range(first, last):
        verdict = judged(seed)
        for name in total:
            total[name] += getattr(verdict, name)
        for fault in verdict.faults:
            print(f"seed {seed}: {fault}", flush=True)
        faulty += bool(verdict.faults)
        if (seed - first) % 200 == 199:
            print(f"{seed + 1 - first} graphs, {total}", flush=True)
    print(f"{last - first} graphs, {faulty} with faults; {total}")
    return bool(faulty)


if __name__ == "__main__":
    sys.exit(main())
