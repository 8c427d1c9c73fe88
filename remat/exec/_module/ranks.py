"""How the processes of a group agree on the plans of one wrapped module.

At the first planned call, which all of them make, each says what its step holds and what its operations cost; rank 0 says what
follows: one budget in bytes, the largest costs, and who plans which step. Plans are shared as they are saved in files, and every
process validates what it runs on its own step. Later steps are planned by the process that meets them, within the agreed bytes.
A process that refuses tells the others, which raise the same at their next call or backward.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from attrs import asdict, define, field, frozen

from remat._warn import RematWarning, warn
from remat.budget import Share
from remat.errors import GroupError
from remat.exec._cost.cost import OpCost
from remat.exec._module.board import Board
from remat.exec._module.hearing import hear
from remat.exec._plan.settings import Budget
from remat.exec._torch.groups import WORLD, Members, is_running, members_of
from remat.ir import PlanFile, parse_plans, print_plans
from remat.units import Bytes

PATIENCE = 60.0
"""Most seconds for which a backward waits for another process that plans; then the collectives of the stack wait in its place."""
MOST_SHARED = 64
"""How many later plans a process shares; the store keeps them as long as the group lives."""
_PAUSE = 0.002

_numbers: Counter[str] = Counter()
"""How many boards this process has had, by group: processes agree on modules in the order of their first planned calls."""


@frozen(kw_only=True)
class Statement:
    """What a process says of its first step.

    Attributes:
        about: what must be the same on all: module, settings and version of torch, in words.
        fingerprint: of the captured step; empty: it runs bare, for the reason that the process has warned of.
        whole: what the step holds if it keeps everything [bytes].
        costs: measured, by signature.
    """

    about: str
    fingerprint: str = ""
    whole: Bytes = 0
    costs: Mapping[str, OpCost] = field(factory=dict)


@frozen(kw_only=True)
class Terms:
    """What follows from all statements.

    Attributes:
        budget: of every process [bytes]; None: all run bare.
        costs: the largest over the processes, by signature.
        planners: which rank plans a step, by fingerprint.
    """

    budget: Bytes | None
    costs: Mapping[str, OpCost]
    planners: Mapping[str, int]


def terms_of(statements: Iterable[Statement], budget: Budget) -> Terms:
    """The terms that follow from the statements of all ranks, in their order.

    A share is of the step that holds most. Of equal steps the first rank plans.

    Raises:
        GroupError: X-GROUP, when the ranks train different modules, or were given different settings.
    """
    statements = list(statements)
    _check_alike(statements)
    planned = [(rank, statement) for rank, statement in enumerate(statements) if statement.fingerprint]
    if not planned:
        return Terms(budget=None, costs={}, planners={})
    costs: dict[str, OpCost] = {}
    planners: dict[str, int] = {}
    for rank, statement in planned:
        planners.setdefault(statement.fingerprint, rank)
        for signature, cost in statement.costs.items():
            costs[signature] = _larger(costs[signature], cost) if signature in costs else cost
    whole = max(statement.whole for _, statement in planned)
    agreed = budget.bytes(whole) if isinstance(budget, Share) else budget
    return Terms(budget=agreed, costs=costs, planners=planners)


def _check_alike(statements: list[Statement]) -> None:
    first = statements[0].about
    for rank, statement in enumerate(statements):
        if statement.about != first:
            what = f"rank 0 has {first}; rank {rank} has {statement.about}: they cannot share plans and a budget."
            fix = (
                "wrap the same modules with the same settings and make their first training calls in one order; or give as "
                "group= the processes that train this module, or None."
            )
            raise GroupError("X-GROUP", what, ranks=(0, rank), fix=fix)


def _larger(first: OpCost, second: OpCost) -> OpCost:
    """The larger of each figure of two measurements of one operation."""
    outputs = tuple(
        None if mine is None or theirs is None else max(mine, theirs)
        for mine, theirs in zip(first.outputs, second.outputs, strict=True)
    )
    return OpCost(time=max(first.time, second.time), workspace=max(first.workspace, second.workspace), outputs=outputs)


@define(eq=False)
class Ranks:
    """What one process knows of the agreement on the plans of a wrapped module.

    Attributes:
        group: a process group, "world", or None: this process plans alone.
        agreed: whether there are terms that all processes have accepted.
    """

    group: Any = None
    agreed: bool = False
    _members: Members | None = None
    _board: Board | None = None
    _terms: Terms | None = None
    _planning: bool = False
    _shared: Iterator[int] = field(factory=itertools.count)
    _quiet: int = 0

    def copied(self) -> Ranks:
        """Of a copy of the module: it agrees for itself, or plans alone within what was agreed already."""
        return Ranks(None if self.agreed else self.group)

    def pickled(self) -> Ranks:
        """What goes into a pickle: no process group does."""
        return Ranks(None if self.group is None else WORLD)

    @property
    def shared(self) -> bool:
        """Whether there are other processes to agree with."""
        if self._members is None and not self.agreed:
            self._members = members_of(self.group)
        return self._members is not None and is_running()

    @property
    def halfway(self) -> bool:
        """Whether the first agreement has begun and is not complete: a failure is one of all processes."""
        return self._board is not None and not self.agreed

    # -- the first planned call ----------------------------------------------------------------------------------------

    def agree(self, statement: Statement, budget: Budget) -> Terms:
        """Say what this process has, and get the terms; all processes call it.

        Raises:
            GroupError: the ranks differ, or one did not come.
            Infeasible, GroupError: another rank refused.
        """
        board = self._open()
        board.put(f"statement/{self._rank}", _statement_text(statement))
        if self._rank == 0:
            texts = board.wait({f"statement/{rank}": rank for rank in range(board.members.size)})
            terms = terms_of(map(_read_statement, texts), budget)
            board.put("terms", _terms_text(terms))
        (text,) = board.wait({"terms": 0})
        self._terms = _read_terms(text)
        return self._terms

    def settle(self) -> None:
        """This process has a valid plan; the agreement holds when all have. What follows here is waited for by the others."""
        board = self._open()
        self._begin(board)
        board.put(f"done/{self._rank}", "")
        if self._rank == 0:
            board.wait({f"done/{rank}": rank for rank in range(board.members.size)})
            board.put("go", "")
        board.wait({"go": 0})
        self.agreed = True
        hear(board)

    def adopt(self, texts: list[str]) -> list[str]:
        """The texts of the first process, when all have come so far without a refusal."""
        board = self._open()
        board.put(f"ready/{self._rank}", "")
        if self._rank == 0:
            board.wait({f"ready/{rank}": rank for rank in range(board.members.size)})
            board.put("texts", json.dumps(texts))
        (text,) = board.wait({"texts": 0})
        adopted: list[str] = json.loads(text)
        return adopted

    # -- plans ---------------------------------------------------------------------------------------------------------

    def offer(self, fingerprint: str) -> PlanFile | None:
        """A plan of the step that another process shares: at the first agreement it is waited for; None: there is none."""
        if self.agreed:
            with self._unless_lost() as board:
                text = None if board is None else board.peek(f"plan/{fingerprint}")
                return None if text is None else parse_plans(text)
            return None
        assert self._terms is not None
        planner = self._terms.planners[fingerprint]
        if planner == self._rank:
            return None
        (text,) = self._open().wait({f"plan/{fingerprint}": planner})
        return parse_plans(text)

    def share(self, file: PlanFile) -> None:
        """Offer the one plan of a file to the others, unless there is one of its step or this process has shared many."""
        key = f"plan/{file.plans[0].fingerprint}"
        if not self.agreed:
            self._open().put(key, print_plans(file))
            return
        with self._unless_lost() as board:
            if board is not None and board.peek(key) is None and next(self._shared) < MOST_SHARED:
                board.put(key, print_plans(file))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Before a call: raise the refusal of another process.

        Raises:
            Infeasible, GroupError: with its reason.
        """
        with self._unless_lost() as board:
            if board is not None:
                board.raise_refusal()

    def gate(self) -> None:
        """Before a backward hands on its gradients: wait while another process plans, and raise its refusal.

        Behind it a stack may wait for all processes (DDP adds up gradients), and one that refuses would never come.

        Raises:
            Infeasible, GroupError: another process refused.
        """
        with self._unless_lost() as board:
            begun = 0 if board is None else board.begun()
            if board is None or begun == self._quiet:
                return
            until = time.monotonic() + PATIENCE
            while board.ended() < begun and time.monotonic() < until:
                board.raise_refusal()
                time.sleep(_PAUSE)
            board.raise_refusal()
            self._quiet = begun

    @contextmanager
    def planning(self) -> Iterator[None]:
        """The block plans: others wait for its end where they must, and hear of what it raises."""
        if not self.shared:
            yield
            return
        if self.agreed:
            with self._unless_lost() as board:
                if board is not None:
                    self._begin(board)
        try:
            yield
        except BaseException as error:
            self._refuse(error)
            raise
        finally:
            self._end()

    # -- parts ---------------------------------------------------------------------------------------------------------

    @property
    def _rank(self) -> int:
        assert self._members is not None
        return self._members.rank

    def _open(self) -> Board:
        """The board, a new one for each agreement that is tried."""
        if self._board is None:
            assert self._members is not None
            name = self._members.name
            self._board = Board(self._members, _numbers[name])
            _numbers[name] += 1
        return self._board

    @contextmanager
    def _unless_lost(self) -> Iterator[Board | None]:
        """The board of an agreement, or None where there is none; without the store the process goes on alone, and says so."""
        board = self._board if self.agreed and is_running() else None
        try:
            yield board
        except GroupError as error:
            if error.rule != "X-WAIT" or (board is not None and error is board.heard):
                raise
            self._board = self._members = None
            what = (
                f"{error.what} From here on it plans alone, within the agreed bytes, and does not hear of other ranks."
            )
            warn(what, RematWarning)

    def _begin(self, board: Board) -> None:
        board.planning_begins()
        self._planning = True

    def _end(self) -> None:
        if self._planning and self._board is not None:
            self._planning = False
            with self._unless_lost() as board:
                if board is not None:
                    board.planning_ends()

    def _refuse(self, error: BaseException) -> None:
        """Tell the others what this process could not do, unless it heard that from them."""
        if self._members is not None:
            board = self._open()
            if error is not board.heard:
                with suppress(GroupError):  # without the store there is nobody to tell
                    board.refuse(error, later=self.agreed)
        if not self.agreed:
            self._board = self._terms = self._members = None  # the next call tries again, with all


# -- as text -----------------------------------------------------------------------------------------------------------


def _statement_text(statement: Statement) -> str:
    return json.dumps({**asdict(statement, recurse=False), "costs": _costs(statement.costs)})


def _read_statement(text: str) -> Statement:
    record = json.loads(text)
    return Statement(**{**record, "costs": _read_costs(record["costs"])})


def _terms_text(terms: Terms) -> str:
    return json.dumps({**asdict(terms, recurse=False), "costs": _costs(terms.costs)})


def _read_terms(text: str) -> Terms:
    record = json.loads(text)
    return Terms(**{**record, "costs": _read_costs(record["costs"])})


def _costs(costs: Mapping[str, OpCost]) -> dict[str, Any]:
    return {name: [cost.time, cost.workspace, list(cost.outputs)] for name, cost in costs.items()}


def _read_costs(record: Mapping[str, Any]) -> dict[str, OpCost]:
    return {
        name: OpCost(time=time_ns, workspace=workspace, outputs=tuple(outputs))
        for name, (time_ns, workspace, outputs) in record.items()
    }


__all__ = ["Ranks", "Statement", "Terms", "terms_of"]
