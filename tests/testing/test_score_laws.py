"""`check_score`: scores that keep the laws pass, and each planted bug breaks the law that is about it."""

import random
import threading

import numpy as np
import pytest
from attrs import field, frozen

from remat.algorithms._dtr.scores import lru, msps
from remat.algorithms._plugins import registry
from remat.algorithms.dynamic import Family, Score, score_named
from remat.errors import BadArgument
from remat.testing import SCORE_LAWS, LawBroken, check_score


def quiet(text):
    """A report nobody reads."""


@pytest.mark.parametrize(
    "score", [Family(), Family(cost="e*"), msps, lru, Family(cost="no", staleness=False)], ids=repr
)
def test_scores_of_this_library_keep_every_law(score):
    report = check_score(score, examples=6, say=quiet)
    online = {"L-ONLINE"} if score.measure in ("e*", "ancestors") else set()
    assert set(report.tried) == set(SCORE_LAWS) - online - {"L-RAISE"}


def test_a_score_from_outside_keeps_every_law():
    largest = registry.get("scores", "largest")
    report = check_score(largest() if isinstance(largest, type) else largest, examples=6, say=quiet)
    assert report.tried["L-REPLAY"] == 18


def test_chance_has_no_values_to_check():
    for wrong in (score_named("random"), "h_dtr_eq", Family):
        with pytest.raises(BadArgument, match="A-SETTING"):
            check_score(wrong, say=quiet)


THREADS = threading.Event()


@frozen
class Planted(Score):
    """The local score, with one bug."""

    bug: str
    seen: list = field(factory=list, eq=False, repr=False)

    @property
    def measure(self):
        """Of cost."""
        return "costs" if self.bug == "L-MEASURE" else "local"

    def value(self, cost, size, staleness, access):
        """Cost over bytes and staleness."""
        if self.bug == "L-RAISE":
            return cost / size
        if self.bug == "L-GLOBAL":
            random.random()
        if self.bug == "L-REPEAT":
            return cost + random.random()
        if self.bug == "L-HASH":
            return hash(f"{cost}") % 97
        if self.bug == "L-ONLINE":
            self.seen.append(cost)
            return len(self.seen) % 3
        return cost / max(1, size * staleness)

    def values(self, pool):
        """All of them."""
        values = super().values(pool)
        if self.bug == "L-NUMBER":
            return values[:-1]
        if self.bug == "L-PURE":
            pool.cost[:] = 0
        if self.bug == "L-ORDER":
            return values + np.arange(len(values))
        if self.bug == "L-SINGLE":
            return values + 1
        if self.bug == "L-THREAD":
            threading.Thread(target=THREADS.wait, daemon=True).start()
        return values


@pytest.mark.parametrize(
    ("bug", "laws"),
    [
        ("L-RAISE", {"L-RAISE"}), ("L-GLOBAL", {"L-GLOBAL"}), ("L-REPEAT", {"L-REPEAT", "L-GLOBAL"}), ("L-NUMBER", {"L-NUMBER"}),
        ("L-PURE", {"L-PURE"}), ("L-ORDER", {"L-ORDER"}), ("L-SINGLE", {"L-SINGLE"}), ("L-THREAD", {"L-THREAD"}),
        ("L-MEASURE", {"L-MEASURE"}), ("L-HASH", {"L-HASH"}),
    ],
)  # fmt: skip
def test_a_planted_bug_breaks_its_law(bug, laws):
    try:
        with pytest.raises(LawBroken) as caught:
            check_score(Planted(bug), examples=20, say=quiet)
        assert caught.value.law in laws
    finally:
        THREADS.set()
        THREADS.clear()


def test_a_score_with_a_memory_is_not_the_same_in_two_replays():
    left_out = {law: "this bug breaks it too" for law in ("L-REPEAT", "L-ORDER", "L-SINGLE")}
    with pytest.raises(LawBroken, match="L-REPLAY"):
        check_score(Planted("L-ONLINE"), examples=20, exclude=left_out, say=quiet)
    left_out["L-REPLAY"] = "likewise"
    with pytest.raises(LawBroken, match="L-ONLINE"):
        check_score(Planted("L-ONLINE"), examples=20, exclude=left_out, say=quiet)


def test_a_repr_and_a_pickle_rebuild_the_score():
    class Inner(Score):
        def value(self, cost, size, staleness, access):
            return cost

    class Nameless(Inner):
        def __repr__(self):
            return "lru"

    with pytest.raises(LawBroken, match="L-REPR"):
        check_score(Nameless(), examples=1, say=quiet)
    with pytest.raises(LawBroken, match="L-PICKLE"):
        check_score(Inner(), examples=1, say=quiet)
