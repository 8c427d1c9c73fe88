"""What a check says: the laws tried, those left out and why; and the error of a law that is broken."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping

from attrs import frozen

from remat.errors import BadArgument, RematError

Say = Callable[[str], object]


class LawBroken(RematError, AssertionError):
    """A law does not hold for the thing under check; the message carries the smallest example that was found.

    Attributes:
        law: id of the law. example: the problem, in text form.
    """

    def __init__(self, law: str, what: str, *, example: str = "") -> None:
        self.law = law
        self.example = example
        super().__init__(law, what + (f"\nOn this example:\n{example}" if example else ""))


@frozen(kw_only=True)
class Report:
    """What was checked.

    Attributes:
        subject: repr of the thing. tried: examples per law, by id. excluded: reasons, by id. refused: examples it refused.
    """

    subject: str
    tried: Mapping[str, int]
    excluded: Mapping[str, str]
    refused: int

    def __str__(self) -> str:
        lines = [f"{self.subject}: {len(self.tried)} laws hold"]
        lines += [f"  {law}: {count} examples" for law, count in sorted(self.tried.items())]
        lines += [f"  {law}: left out, because {reason}" for law, reason in sorted(self.excluded.items())]
        return "\n".join([*lines, f"  {self.refused} examples were refused"] if self.refused else lines)


class Tally:
    """Counts while a check runs, and says whether a law is to be tried.

    Attributes:
        subject: repr of the thing. excluded: reasons, by id. tried: examples per law. refused, examples: how many.
        only: the one law to be tried, while examples that break it are made smaller.
        seconds, plans, looks: time of all plans, how many, and how often they looked at their clocks.
    """

    def __init__(self, subject: object, laws: Mapping[str, str], exclude: Mapping[str, str] | None) -> None:
        self.subject = repr(subject)
        self.excluded = dict(exclude or {})
        self.tried: Counter[str] = Counter()
        self.refused = 0
        self.examples = 0
        self.only: str | None = None
        self.seconds, self.plans, self.looks = 0.0, 0, 0
        for law, reason in self.excluded.items():
            if law not in laws:
                raise BadArgument("L-EXCLUDE", f"{law!r} is not a law.", fix=f"laws are {', '.join(laws)}.")
            if not isinstance(reason, str) or not reason.strip():
                raise BadArgument("L-EXCLUDE", f"{law} is left out without a reason.", fix="say why, in a few words.")

    def tries(self, law: str) -> bool:
        """Whether to try a law; counts it, unless a broken law's examples are being made smaller."""
        if law in self.excluded:
            return False
        if self.only is not None:
            return law == self.only
        self.tried[law] += 1
        return True

    def report(self, say: Say | None) -> Report:
        """The report, after saying it (None: on the standard output).

        Raises:
            LawBroken: L-NONE, when every example was refused: nothing was checked.
        """
        if self.refused and self.refused >= self.examples:
            what = f"{self.subject} refused all {self.refused} examples: nothing was checked."
            raise LawBroken("L-NONE", what + " Give graphs=… that it accepts.")
        report = Report(subject=self.subject, tried=dict(self.tried), excluded=self.excluded, refused=self.refused)
        (sys.stdout.write if say is None else say)(f"{report}\n")
        return report
