"""Every planted bug in the default run: killed or not, by which law, in how many seconds; exit 1 where a bar is missed.

python -m tests.testing.planted [NAME ...]
"""

import statistics
import sys
from collections import Counter

from tests.testing.planted import ALL

SURVIVING = 0.05  # of all
MEDIAN, LONGEST = 3.0, 20.0  # seconds of process time


def main():
    chosen = [one for one in ALL if not sys.argv[1:] or one.name in sys.argv[1:]]
    kinds, seconds, surviving, others = Counter(), [], [], []
    print(f"{'kind':14}{'bug':46}{'law':14}{'expected':24}{'seconds':>8}")
    for one in chosen:
        law, took = one.killed()
        kinds[one.kind] += 1
        seconds.append(took)
        surviving += [one.name] if law is None else []
        others += [one.name] if law is not None and law not in one.laws else []
        print(f"{one.kind:14}{one.name:46}{law or 'SURVIVES':14}{' '.join(one.laws):24}{took:8.2f}", flush=True)
    print(f"\n{len(chosen)} bugs: {', '.join(f'{count} of {kind}s' for kind, count in kinds.items())}")
    print(
        f"surviving: {len(surviving)} {', '.join(surviving)}; by another law than expected: {', '.join(others) or 'none'}"
    )
    print(f"seconds: median {statistics.median(seconds):.2f}, longest {max(seconds):.2f}")
    missed = len(surviving) > SURVIVING * len(chosen) or statistics.median(seconds) > MEDIAN or max(seconds) > LONGEST
    sys.exit(missed)


if __name__ == "__main__":
    main()
