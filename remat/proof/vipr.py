"""`vipr_texts`: the trees of a proof as certificates of integer programs in VIPR 1.0, one text for each order of its instants.

Such a text states rows over 0/1 variables and derives the bound from them. That the rows hold for every schedule is not in it:
`check.py` derives that from the graph, as docs/explanation/theorems.md proves. Format: Cheung, Gleixner and Steffy, *Verifying
integer programming results*, IPCO 2017; https://github.com/ambros-gleixner/VIPR.

| in a proof | in the text |
|---|---|
| a variable | an integer variable, with the rows x >= 0 and x <= 1 of CON |
| a fact | a row of CON |
| a cut | `asm`, `asm`: a sum is at most q, or at least q + 1; `lin`, `lin`: the cut in each case; `uns`; `rnd` |
| a branching | `asm`, `asm`, and `uns` of what its children show |
| a leaf of costs | `rnd` of rows, bounds and assumptions: the objective is at least the bound |
| a ray | `lin` of the same: 0 is at least a positive number |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd
from typing import Any, NamedTuple

from remat.errors import ProofRefused
from remat.proof.check import Expr, Formulation, Key, Step, combined, complemented

WAY_OUT = "check it with `remat check`, or export a proof by trees at instants."


def vipr_texts(graph: Any, proof: Any) -> list[str]:
    """A text for each tree of a proof that the checker has accepted, both as JSON documents.

    Raises:
        ProofRefused: T-VIPR, where there is no integer program: of a floor, with a link, and of a proof without instants.
    """
    if proof["theorem"] == "floor":
        what = "a floor is proved by sets of data, not by rows and a branch tree: VIPR has no form for it."
        raise ProofRefused("T-VIPR", what, where="proof.theorem", fix=WAY_OUT)
    if proof["theorem"] == "link":
        what = "waits are no variables that are 0 or 1, and these texts have no others."
        raise ProofRefused("T-VIPR", what, where="proof.theorem", fix=WAY_OUT)
    if not proof["instants"]:
        what = "it has no instants, hence no variables: its bound is the time of the nodes that must run."
        raise ProofRefused("T-VIPR", what, where="proof.instants", fix=WAY_OUT)
    step = Step(graph)
    return [_text(step, proof, tree) for tree in proof["trees"]]


def _text(step: Step, proof: Any, tree: Any) -> str:
    """The text of one tree."""
    formulation = Formulation(step, tree["order"], proof["budget"], proof["theorem"] == "captured")
    facts = [formulation.row(*row) if isinstance(row, list) else Expr() for row in tree["rows"]]
    branched = [tuple(of) for kind, *of in tree["tree"] if kind == "branch"]
    keys = list(dict.fromkeys([*(x for row in facts for x in row if x), *branched]))
    cost = {x: step.time[x[2]] for x in keys if x[0] == "y" and step.time[x[2]]}
    bound = None if proof["bound"] is None else proof["bound"] - step.base
    derivation = Derivation({x: j for j, x in enumerate(keys)}, cost, facts)
    for i, row in enumerate(tree["rows"]):
        if isinstance(row, list):
            derivation.give(i, _name(row))
    for i, row in enumerate(tree["rows"]):
        if isinstance(row, dict):
            derivation.cut(i, row["rows"], {tuple(x) for x in row["flip"]}, row["by"])
    derivation.tree(tree["tree"], 1 << proof["bits"], bound)
    lines = [
        f"% graph {proof['graph']}, budget {proof['budget']} bytes, instants {tree['order']}, theorem {proof['theorem']}",
        f"% OBJ: time of reruns [ns], to which the nodes that must run add {step.base} ns",
        "% s_k_d: datum d is resident at instant k; y_k_v: node v runs again in stage k; z_k_v: it has run before instant k",
        f"VER 1.0\nVAR {len(keys)}",
        *map(_name, keys),
        f"INT {len(keys)}\n{' '.join(map(str, range(len(keys))))}",
        f"OBJ min\n{_sparse((derivation.columns[x], a) for x, a in cost.items())}",
        f"CON {len(derivation.given)} {2 * len(keys)}",
        *derivation.given,
        "RTP infeas" if bound is None else f"RTP range {bound} inf",
        f"SOL 0\nDER {len(derivation.derived)}",
        *derivation.derived,
    ]
    return "\n".join(lines) + "\n"


def _name(parts: Iterable[object]) -> str:
    """A name without spaces, `mem_0`."""
    return "_".join(map(str, parts))


def _sparse(pairs: Iterable[tuple[int, int | Fraction]]) -> str:
    """How many pairs with a value other than 0 there are, and these: `2  0 1  4 -3/2`."""
    kept = [f"{j} {a}" for j, a in pairs if a]
    return "  ".join([str(len(kept)), *kept])


class _Case(NamedTuple):
    """A branching: its variable and the indices of both assumptions."""

    x: Key
    low: int
    high: int


class Derivation:
    """Lines of CON and DER: both bounds of each variable, then facts, then what follows from them.

    Args:
        columns: numbers of the variables. cost: of those with one [ns].
        rows: of the proof, as expressions that are at most 0; of a cut, anything.

    Attributes:
        given, derived: the lines of CON and of DER.
    """

    def __init__(self, columns: dict[Key, int], cost: Mapping[Key, int], rows: list[Expr]) -> None:
        self.columns, self.cost, self._rows = columns, cost, rows
        self.given, self.derived = list[str](), list[str]()
        self._at: dict[int, int] = {}  # index of each row of the proof
        for x in columns:
            self.given += [
                self._line(f"least_{_name(x)}", "G", 0, {x: 1}),
                self._line(f"most_{_name(x)}", "L", 1, {x: 1}),
            ]

    def _line(self, name: str, sense: str, right: int, row: Mapping[Key, int]) -> str:
        return f"{name} {sense} {right}  {_sparse((self.columns[x], a) for x, a in row.items())}"

    def _derive(self, sense: str, right: int, row: Mapping[Key, int] | None, reason: str) -> int:
        """Add a line of DER, of the objective where there is no row; its index."""
        index = len(self.given) + len(self.derived)
        line = f"D{index} {sense} {right}  OBJ" if row is None else self._line(f"D{index}", sense, right, row)
        self.derived.append(f"{line}  {{ {reason} }} -1")
        return index

    def give(self, number: int, name: str) -> None:
        """A fact: a row of CON."""
        row = self._rows[number]
        self._at[number] = len(self.given)
        self.given.append(self._line(name, "L", -row.get((), 0), {x: a for x, a in row.items() if x}))

    def cut(self, number: int, pairs: Sequence[Sequence[int]], flips: set[Key], by: int) -> None:
        """A rounded combination, by cases: the sum w of the lemma's proof is at most q, or at least q + 1."""
        row = complemented(combined([*pairs], self._rows), flips)
        quotient, rest = divmod(-row.pop(()), by)
        over = {x for x, a in row.items() if a % by > rest}
        split = complemented({x: a // by + (x in over) for x, a in row.items()}, flips)
        shift = split.pop(())
        low = self._derive("L", quotient - shift, split, "asm")
        high = self._derive("G", quotient - shift + 1, split, "asm")
        rounded = {x: a // by * (by - rest) + max(0, a % by - rest) for x, a in row.items()}
        rounded = complemented({**rounded, (): -quotient * (by - rest)}, flips)
        right = -rounded.pop(())
        below = {low: by - rest} | dict(self._positive(x, by - row[x] % by, flips) for x in over)
        above = self._summed((self._at[i], m) for i, m in pairs) | {high: -rest}
        above |= dict(self._positive(x, a % by, flips) for x, a in row.items() if x not in over)
        cases = [self._derive("L", right, rounded, f"lin {_sparse(case.items())}") for case in (below, above)]
        joined = self._derive("L", right, rounded, f"uns {cases[0]} {low} {cases[1]} {high}")
        divisor = gcd(*rounded.values()) or 1
        rounded = {x: a // divisor for x, a in rounded.items()}
        reason = f"rnd {_sparse([(joined, Fraction(1, divisor))])}"
        self._at[number] = self._derive("L", right // divisor, rounded, reason)
        self._rows[number] = {**rounded, (): -(right // divisor)}

    def _positive(self, x: Key, a: int, flips: set[Key]) -> tuple[int, int]:
        """The bound of a variable with the multiplier that makes it -a x <= 0; complemented: -a (1 - x) <= 0."""
        column = 2 * self.columns[x]
        return (column + 1, a) if x in flips else (column, -a)

    @staticmethod
    def _summed(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
        """The sum of multipliers by index."""
        total: dict[int, int] = defaultdict(int)
        for index, m in pairs:
            total[index] += m
        return dict(total)

    def tree(self, entries: Sequence[Sequence[Any]], unit: int, bound: int | None) -> None:
        """Leaves, and the conclusion from both children of each branching; the last line is the root's."""
        open_: list[tuple[_Case, int | None]] = []  # branchings above this entry, with the line of the 0 child
        for kind, *of in entries:
            if kind == "branch":
                x = tuple(of)
                case = _Case(x, self._derive("L", 0, {x: 1}, "asm"), self._derive("G", 1, {x: 1}, "asm"))
                open_.append((case, None))
                continue
            fixed = {case.x: (0, case.low) if shown is None else (1, case.high) for case, shown in open_}
            last = self._leaf(of[0], fixed, unit if kind == "cost" else 0, bound)
            while open_ and open_[-1][1] is not None:
                case, shown = open_.pop()
                last = self._joined(bound, f"uns {shown} {case.low} {last} {case.high}")
            if open_:
                open_[-1] = (open_[-1][0], last)

    def _joined(self, bound: int | None, reason: str) -> int:
        """The conclusion of both cases: a time of at least the bound, or that there is no schedule."""
        return self._derive("G", 1, {}, reason) if bound is None else self._derive("G", bound, None, reason)

    def _leaf(
        self, pairs: Sequence[Sequence[int]], fixed: Mapping[Key, tuple[int, int]], unit: int, bound: int | None
    ) -> int:
        """The conclusion of multipliers of rows in a case; unit 0: a ray."""
        row = combined([*pairs], self._rows)
        value = row.pop((), 0)
        multipliers = self._summed((self._at[i], -m) for i, m in pairs)
        for x, j in self.columns.items():
            a = row.get(x, 0) + self.cost.get(x, 0) * unit
            value_of, assumed = fixed.get(x, (None, -1))
            fitting = value_of == (1 if a > 0 else 0)
            multipliers[assumed if fitting else 2 * j + (a < 0)] = a
            value += min(a, 0) if value_of is None else a * value_of
        if not unit:
            return self._derive("G", value, {}, f"lin {_sparse(multipliers.items())}")
        reason = _sparse((index, Fraction(m, unit)) for index, m in multipliers.items())
        assert bound is not None  # in a proof that there is no schedule, all leaves are rays
        kind = "rnd" if any(multipliers.values()) else "lin"  # an empty combination is 0 = 0, which is not rounded
        return self._derive("G", bound, None, f"{kind} {reason}")
