"""The report of a check: the laws tested, those left out and why; and the error for a broken law."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping

from attrs import frozen

from remat.errors import BadArgument, RematError
from remat.settings import Setting, optional, whole

Say = Callable[[str], object]


class LawBroken(RematError, AssertionError):
    """A law does not hold for the part under check; the message has the smallest example that was seen.

    Attributes:
        law: id of the law. example: the problem, in text form.
    """

    def __init__(self, law: str, what: str, *, example: str = "") -> None:
        self.law = law
        self.example = example
        super().__init__(law, what + (f"\nOn this example:\n{example}" if example else ""))


@frozen(kw_only=True)
class Report:
    """The result of a check.

    Attributes:
        subject: repr of the part. tried: examples per law, by id. excluded: reasons, by id. refused: examples that it refused.
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


def check_arguments(
    check: str, part: object, kind: Setting, exclude: object, examples: int, graphs: object = None
) -> None:
    """Refuse what a check of this kit cannot check.

    Args:
        check: its name.
        part: what it is given.
        kind: what that should be.
        exclude: laws to leave out.
        examples: number of examples.
        graphs: a Hypothesis strategy, or None.

    Raises:
        BadArgument: A-SETTING.
    """
    kind.check(part, f"{check}: {check.removeprefix('check_')}")
    optional(_REASONS).check(exclude, f"{check}: exclude")
    whole(1).check(examples, f"{check}: examples")
    if graphs is not None:
        _GRAPHS.check(graphs, f"{check}: graphs")


_REASONS = Setting(
    'a reason for each law, e.g. {"L-PICKLE": "its class is local"}', lambda value: isinstance(value, Mapping)
)


def _is_strategy(value: object) -> bool:
    from hypothesis.strategies import SearchStrategy

    return isinstance(value, SearchStrategy)


_GRAPHS = Setting("a Hypothesis strategy of graphs, e.g. hypothesis.strategies.just(graph)", _is_strategy)


class Tally:
    """Counts examples during a check, and decides whether a law is tested.

    Attributes:
        subject: repr of the part. excluded: reasons, by id. tried: examples per law. refused, examples: how many.
        only: the only law that is tested, while examples that break it are reduced.
        seconds, plans, looks: time of all plans, how many, and how often they read their clocks.
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
        """Whether to test a law; counts it, unless examples of a broken law are being reduced."""
        if law in self.excluded:
            return False
        if self.only is not None:
            return law == self.only
        self.tried[law] += 1
        return True

    def report(self, say: Say | None) -> Report:
        """The report, after passing its text to `say` (None: print it).

        Raises:
            LawBroken: L-NONE, if every example was refused: nothing was checked.
        """
        if self.refused and self.refused >= self.examples:
            what = f"{self.subject} refused all {self.refused} examples: nothing was checked."
            raise LawBroken("L-NONE", what + " Give graphs=… that it accepts.")
        report = Report(subject=self.subject, tried=dict(self.tried), excluded=self.excluded, refused=self.refused)
        (sys.stdout.write if say is None else say)(f"{report}\n")
        return report
