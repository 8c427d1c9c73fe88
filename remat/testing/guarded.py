"""A trial that guards the calls of its part: L-RAISE, L-TIME, L-THREAD, L-GLOBAL, L-INTERRUPT, and repeated calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TypeVar

from remat.testing import guard
from remat.testing.guard import Overrun, patient
from remat.testing.interruption import calls, interrupted, part_modules
from remat.testing.trial import Trial

T = TypeVar("T")


class GuardedTrial(Trial):
    """One example tested under the laws of any kind of part."""

    def guarded(self, what: str, question: Callable[[], T]) -> T:
        """The answer; L-RAISE, L-TIME, L-THREAD and L-GLOBAL."""
        before, working = guard.whole_process(), guard.workers()
        answer = self.quietly(what, question)
        self.tally.tries("L-TIME")  # it has ended
        self.left_alone(what, before, working)
        return answer

    def quietly(self, what: str, question: Callable[[], T]) -> T:
        """The answer; L-RAISE, L-TIME."""
        try:
            with patient():
                return self.asked(what, question)
        except Overrun:
            raise self.broken("L-TIME", f"{what} did not end within seconds.") from None

    def left_alone(self, what: str, before: dict[str, object], working: dict[object, str]) -> None:
        """L-THREAD and L-GLOBAL."""
        if self.tally.tries("L-THREAD"):
            left = [name for key, name in guard.workers().items() if key not in working]
            self.expect("L-THREAD", not left, f"{what} left {', '.join(left)} running.")
        if self.tally.tries("L-GLOBAL"):
            after = guard.whole_process()
            changed = [part for part, state in before.items() if part in after and after[part] != state]
            guard.put_back(before)
            self.expect("L-GLOBAL", not changed, f"{what} changed {', '.join(changed)}.")

    def reseeded(self, what: str, question: Callable[[], T]) -> Iterator[T]:
        """The answer of two more calls, with other states of the global generators."""
        before = guard.whole_process()
        for seed in (1, 2):
            guard.seed_all(seed)
            try:
                yield self.quietly(what, question)
            finally:
                guard.put_back(before)

    def interrupted(
        self, what: str, number: int, question: Callable[[], object], stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """L-INTERRUPT, at a random call made by the code of the part; on a third of the examples.

        Args:
            what: name of the call, for messages.
            number: of the example.
            question: makes the call.
            stopped: whether the clock of the call was stopped, which informs the caller.
        """
        if not self.tally.tries("L-INTERRUPT") or (number % 3 and self.tally.only is None):
            return
        modules, before = part_modules(self.part), guard.whole_process()
        try:
            count = calls(modules, lambda: self.asked(what, question))
            at = Random(number).randint(1, max(1, count))
            interrupted(modules, at, lambda: self.asked(what, question))
        except KeyboardInterrupt:
            return
        finally:
            guard.put_back(before)
        what = f"Ctrl-C in {what}, at call {at} of {count}, was swallowed: it answered, and the caller continues."
        self.expect("L-INTERRUPT", count < at or stopped(), what)
