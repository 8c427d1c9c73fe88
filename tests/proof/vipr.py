"""A verifier of VIPR 1.0 texts in exact rationals, written from the description of the format; the exporter is not used.

https://github.com/ambros-gleixner/VIPR, cert_spec_v1_0.md. Integer programs that are minimized, all of whose variables are
integers, without solutions. `verified(text)` gives what is proved: a lower bound, or infinity; anything wrong raises `Wrong`.
"""

import math
from fractions import Fraction

from attrs import field, frozen

SENSES = {"E": 0, "L": -1, "G": 1}


class Wrong(Exception):
    """A text that is no certificate."""


def need(holds, what):
    """Refuse unless it holds."""
    if not holds:
        raise Wrong(what)


@frozen
class Row:
    """coefficients · x {≤, =, ≥} right, under assumptions (indices of rows)."""

    sense: int
    right: Fraction
    coefficients: dict
    assumptions: frozenset = field(default=frozenset())

    @property
    def absurd(self):
        """Whether nothing satisfies it."""
        wrong = {-1: self.right < 0, 0: self.right != 0, 1: self.right > 0}
        return not self.coefficients and wrong[self.sense]

    def dominates(self, other):
        """Whether what satisfies this one satisfies the other."""
        if self.absurd:
            return True
        if self.coefficients != other.coefficients:
            return False
        if other.sense == 0:
            return self.sense == 0 and self.right == other.right
        return self.sense in (0, other.sense) and (self.right - other.right) * other.sense >= 0


class Reader:
    """The words of a text, one after the other."""

    def __init__(self, text):
        lines = text.splitlines()
        while lines and lines[0].startswith("%"):
            lines.pop(0)
        self.words = iter(" ".join(lines).split())
        self.variables = 0
        self.objective = {}

    def word(self):
        """The next word."""
        word = next(self.words, None)
        need(word is not None, "the text ends early")
        return word

    def expect(self, *words):
        """These words come next."""
        for word in words:
            found = self.word()
            need(found == word, f"{found} instead of {word}")

    def index(self, below=math.inf):
        """An index."""
        value = int(self.word())
        need(0 <= value < below, f"{value} is no index below {below}")
        return value

    def pairs(self, below, count=None):
        """Numbers by index, distinct."""
        count = self.index() if count is None else count
        pairs = [(self.index(below), Fraction(self.word())) for _ in range(count)]
        need(len(dict(pairs)) == len(pairs), "an index stands twice")
        return {i: a for i, a in pairs if a}

    def row(self):
        """A constraint, without assumptions."""
        self.word()
        sense, right, count = SENSES[self.word()], Fraction(self.word()), self.word()
        return Row(sense, right, self.objective if count == "OBJ" else self.pairs(self.variables, int(count)))


def combined(rows, multipliers):
    """A suitable linear combination of rows."""
    coefficients, right, senses, assumptions = {}, Fraction(0), set(), frozenset()
    for i, m in multipliers.items():
        senses.add(rows[i].sense * (1 if m > 0 else -1))
        right += m * rows[i].right
        assumptions |= rows[i].assumptions
        for j, a in rows[i].coefficients.items():
            coefficients[j] = coefficients.get(j, 0) + m * a
    senses.discard(0)
    need(len(senses) < 2, "multipliers of unlike signs")
    return Row(next(iter(senses), 0), right, {j: a for j, a in coefficients.items() if a}, assumptions)


def rounded(row):
    """The row with its right-hand side rounded; all variables are integers."""
    need(row.sense and all(a.denominator == 1 for a in row.coefficients.values()), "what cannot be rounded")
    right = math.floor(row.right) if row.sense < 0 else math.ceil(row.right)
    return Row(row.sense, Fraction(right), row.coefficients, row.assumptions)


def united(rows, target, cases):
    """The assumptions that are left when a case split is closed."""
    first, low, second, high = cases
    need(rows[first].dominates(target) and rows[second].dominates(target), "a case does not show it")
    one, other = sorted((rows[low], rows[high]), key=lambda row: row.sense)
    need((one.sense, other.sense) == (-1, 1) and one.coefficients == other.coefficients, "no two sides of a split")
    need(other.right == one.right + 1 and one.right.denominator == 1, "a split with a gap")
    need(all(a.denominator == 1 for a in one.coefficients.values()), "a split of no integer")
    return (rows[first].assumptions - {low}) | (rows[second].assumptions - {high})


def derived(reader, rows):
    """The next line of DER."""
    target, index = reader.row(), len(rows)
    reader.expect("{")
    kind = reader.word()
    need(kind in ("asm", "lin", "rnd", "uns"), f"{kind} is no reason")
    if kind == "asm":
        assumptions = frozenset({index})
    elif kind == "uns":
        assumptions = united(rows, target, [reader.index(index) for _ in range(4)])
    else:
        row = combined(rows, reader.pairs(index))
        row = rounded(row) if kind == "rnd" else row
        need(row.dominates(target), f"line {index} does not follow")
        assumptions = row.assumptions
    reader.expect("}")
    reader.word()
    return Row(target.sense, target.right, target.coefficients, assumptions)


def verified(text):
    """What a text proves of the least objective: a bound, infinite where nothing is feasible."""
    reader = Reader(text)
    reader.expect("VER", "1.0", "VAR")
    reader.variables = reader.index()
    names = [reader.word() for _ in range(reader.variables)]
    need(len(set(names)) == len(names), "a variable twice")
    reader.expect("INT", str(reader.variables))
    need({reader.index(reader.variables) for _ in names} == set(range(reader.variables)), "not all are integers")
    reader.expect("OBJ", "min")
    reader.objective = reader.pairs(reader.variables)
    reader.expect("CON")
    given, bounds = reader.index(), reader.index()
    rows = [reader.row() for _ in range(given)]
    need(all(len(row.coefficients) == 1 for row in rows[:bounds]), "bounds that are none")
    reader.expect("RTP")
    kind = reader.word()
    goal = Row(1, Fraction(1), {}) if kind == "infeas" else Row(1, Fraction(reader.word()), reader.objective)
    need(kind in ("infeas", "range") and (kind == "infeas" or reader.word() == "inf"), "another relation to prove")
    reader.expect("SOL", "0", "DER")
    for _ in range(reader.index()):
        rows.append(derived(reader, rows))
    need(next(reader.words, None) is None, "more words")
    need(not rows[-1].assumptions and rows[-1].dominates(goal), "the last line is not what was to be proved")
    return math.inf if kind == "infeas" else int(goal.right)
