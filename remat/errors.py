"""All errors of this library: the broken rule, the place, the numbers, and the remedy.

They share a base, so that `except RematError` catches all. The facts are attributes, from which the message is built.
"""

from __future__ import annotations


class RematError(Exception):
    """Base of all errors of this library.

    Attributes:
        rule: id of the broken rule (`G-…` of graphs, `S-…` of schedules, `F-…` of files, …).
        fix: the remedy, one sentence.
    """

    def __init__(self, rule: str, what: str, *, fix: str = "") -> None:
        self.rule = rule
        self.what = what
        self.fix = fix
        super().__init__(f"{rule}: {what}" + (f" Fix: {fix}" if fix else ""))

    def __reduce__(self) -> tuple[object, ...]:
        # Errors are pickled between processes (worker pools): rebuild without the signature of the subclass.
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(kind: type[RematError], args: tuple[object, ...], state: dict[str, object]) -> RematError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class BadArgument(RematError, ValueError):
    """An argument or a setting that is not one of its values (`A-SETTING`, `X-ARG`, `U-SIZE`, …); refused before any work."""


class IllFormed(BadArgument):
    """A value, node, graph, layer or link that breaks a `G-…` rule; refused when it is created."""


class MalformedFile(RematError):
    """A file or text of another format than it should have (rules `F-…`).

    Attributes:
        where: place in the document, as a path of keys (`computes[3].time`) or a line.
    """

    def __init__(self, rule: str, what: str, *, where: str, fix: str = "") -> None:
        self.where = where
        super().__init__(rule, f"at {where}: {what}", fix=fix)


class InvalidSchedule(RematError):
    """A schedule that breaks a replay rule (`S-…`).

    Attributes:
        step: index of the offending step in the schedule; the length of the schedule where its end is at fault.
        place: text of the offending step, e.g. `F7` or `drop a0`.
    """

    def __init__(self, rule: str, what: str, *, step: int, place: str, fix: str = "") -> None:
        self.step = step
        self.place = place
        super().__init__(rule, what, fix=fix)
        self.args = (f"{type(self).__name__} {rule} at step {step}, {place}: {what}" + (f" Fix: {fix}" if fix else ""),)


class UnknownName(InvalidSchedule):
    """S-NAME: a step names a node, an option or a datum that the graph does not have."""


class MissingRead(InvalidSchedule):
    """S-READ: a step reads what is not resident, not complete, or a phantom of another option."""


class WrongPhase(InvalidSchedule):
    """S-PHASE: the loss not exactly once, a forward node first run after it, or a backward node before it."""


class WrongOrder(InvalidSchedule):
    """S-ORDER: nodes that draw random numbers first run in another order than the graph's."""


class RunTwice(InvalidSchedule):
    """S-ONCE: a run-once node replayed, or a gradient contribution repeated or out of order."""


class KeptDropped(InvalidSchedule):
    """S-KEEP: a complete kept datum is dropped or offloaded."""


class NotResident(InvalidSchedule):
    """S-DROP: a drop or offload of a datum that is not resident, or a prefetch of one that is not offloaded."""


class Unfinished(InvalidSchedule):
    """S-END: the schedule ends and a kept datum is missing or incomplete."""


class BudgetExceeded(InvalidSchedule):
    """S-MEM: more bytes are live in a step than the budget allows.

    Attributes:
        live: bytes live in the step. budget: bytes allowed. residents: the largest resident data, as (name, bytes).
    """

    def __init__(
        self, *, step: int, place: str, live: int, budget: int, residents: tuple[tuple[str, int], ...]
    ) -> None:
        self.live = live
        self.budget = budget
        self.residents = residents
        largest = ", ".join(f"{name} {size} B" for name, size in residents)
        super().__init__(
            "S-MEM",
            f"{live} B live, budget {budget} B ({live - budget} B over). Largest residents: {largest or 'none'}.",
            step=step,
            place=place,
            fix=f"give {live} B" + (f", or drop one of them before step {step}." if residents else "."),
        )


class LinkViolation(InvalidSchedule):
    """S-LINK: a copy that the link cannot make (no link given, or memory for it is never free)."""


class ProofRefused(RematError):
    """A proof of a lower bound that does not prove its claim (`T-…`).

    Attributes:
        where: place in the proof (`proof.trees[0].rows[3]`), in the graph, or the file.
    """

    def __init__(self, rule: str, what: str, *, where: str, fix: str = "") -> None:
        self.where = where
        super().__init__(rule, f"at {where}: {what}", fix=fix)


class UnsoundBound(RematError):
    """A lower bound above a validated schedule's time: one of the two parts is wrong, and this is a bug to report."""


class BackendMissing(RematError, ImportError):
    """A solver back end or an optional dependency that is not installed; the message carries the install line."""


class Infeasible(RematError):
    """No schedule under the budget was found.

    Attributes:
        budget: bytes asked for. smallest: the smallest budget with a plan, or None. floor: below it there is no plan [bytes].
    """

    def __init__(self, what: str, *, budget: int, smallest: int | None, floor: int, fix: str = "") -> None:
        self.budget = budget
        self.smallest = smallest
        self.floor = floor
        super().__init__("B-INFEASIBLE", what, fix=fix)


class Uncapturable(RematError):
    """A module whose training step cannot be captured as one graph; the message names the module, the line and the reason.

    Attributes:
        where: path and class of the module, file and line; empty where that is not known.
    """

    def __init__(self, rule: str, what: str, *, fix: str = "", where: str = "") -> None:
        self.where = where
        super().__init__(rule, f"at {where}: {what}" if where else what, fix=fix)


class StalePlan(RematError):
    """A plan from a file that does not fit this step, this version of torch or this budget (rules `X-STALE`, `X-FIT`).

    Attributes:
        differs: the differences, one sentence each.
    """

    def __init__(self, rule: str, what: str, *, differs: tuple[str, ...], fix: str = "") -> None:
        self.differs = differs
        super().__init__(rule, what, fix=fix)


class GroupError(RematError):
    """Processes of a group that cannot train a step together (rules `X-RANK`, `X-GROUP`, `X-WAIT`).

    Attributes:
        ranks: of the processes concerned.
    """

    def __init__(self, rule: str, what: str, *, ranks: tuple[int, ...], fix: str = "") -> None:
        self.ranks = ranks
        super().__init__(rule, what, fix=fix)


def shown(value: object, most: int = 80) -> str:
    """The repr of a value for a message; where it is cut, it says so, and a text has its closing quote."""
    text = repr(value)
    if len(text) <= most:
        return text
    return f"{text[:most]}…{text[0] if isinstance(value, str) else ''}"
