"""Integers as exact functions of the sizes of a call, found from their values at a few sizes.

A function is a rational multiple of a product of sizes, such a multiple and an integer (from two values: a size and an
integer), a sum of two, or one of these over quotients of a size, rounded down (`(n + 1) // 2`). It has fewer free numbers than
there were values, so that at least one of these confirms it; what no function gives exactly has none. A value that comes out
broken at a new size is none either.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from attrs import define, field, frozen

MOST_FACTORS = 4
FEW_VARIABLES, MOST_VARIABLES = 6, 16
"""With more variables products have three factors at most; of so many none is added."""
MOST_PRODUCTS = 64
"""Products that pairs are made of."""
DIVISORS = (2, 3, 4, 8, 16, 32, 64, 128)
NEAR = 8
"""Up to this divisor all shifts before the division are tried, beyond it rounding down and rounding up."""

Column = tuple[int, ...]
"""The values of one integer at the sizes that were seen, in order."""


class NoFunction(Exception):
    """An integer is no function of sizes that is known here, or has no value at these sizes; the message says which."""


@frozen
class Quotient:
    """`(value + shift) // divisor` of an earlier variable."""

    variable: int
    shift: int
    divisor: int


@frozen
class Function:
    """A sum of terms, each a coefficient and the variables that it is multiplied with."""

    terms: tuple[tuple[Fraction, tuple[int, ...]], ...]

    def at(self, variables: Sequence[int]) -> int:
        """Its value.

        Raises:
            NoFunction: it is broken, or below zero where no value was.
        """
        value = sum(coefficient * math.prod(variables[at] for at in factors) for coefficient, factors in self.terms)
        if Fraction(value).denominator != 1:
            raise NoFunction(f"an integer would be {value}")
        return int(value)


@define(eq=False)
class Functions:
    """The functions of one structure.

    Attributes:
        samples: the sizes that were seen, each as all numbers of a call.
        variables: values of each variable at these, and what it is: a place among the numbers, or a quotient.
    """

    samples: tuple[tuple[int, ...], ...]
    variables: list[tuple[Column, int | Quotient | Function]] = field(init=False)
    _products: list[tuple[Column, tuple[int, ...]]] = field(init=False)
    _stale: bool = True

    def __attrs_post_init__(self) -> None:
        columns = dict.fromkeys(zip(*self.samples, strict=True))
        numbers = list(zip(*self.samples, strict=True))
        varying = [column for column in columns if len(set(column)) > 1]
        if any(min(column) < 2 for column in varying):
            raise NoFunction("a size is below two")
        self.variables = [(column, numbers.index(column)) for column in varying]

    def _know(self, column: Column, source: Quotient | Function) -> None:
        """One more variable."""
        if len(self.variables) < MOST_VARIABLES and min(column) > 1:
            self.variables.append((column, source))
            self._stale = True

    def values(self, numbers: tuple[int, ...]) -> list[int]:
        """The variables at new sizes.

        Raises:
            NoFunction: a number differs that never did, or two that were always equal.
        """
        first: dict[Column, int] = {}
        for number, column in zip(numbers, zip(*self.samples, strict=True), strict=True):
            if first.setdefault(column, number) != number or (len(set(column)) == 1 and number != column[0]):
                raise NoFunction("other numbers vary than in the captures")
            if len(set(column)) > 1 and number < 2:
                raise NoFunction("a size is below two")
        values: list[int] = []
        for _, source in self.variables:
            if isinstance(source, Function):
                values.append(source.at(values))
            elif isinstance(source, Quotient):
                values.append((values[source.variable] + source.shift) // source.divisor)
            else:
                values.append(numbers[source])
        return values

    def of_all(self, columns: tuple[Column, ...]) -> tuple[Function, ...]:
        """A function for each column; those of small integers first, of which larger ones may be products.

        Raises:
            NoFunction: there is none for a column.
        """
        functions: dict[Column, Function] = {}
        pending = sorted(columns, key=max)
        while pending:
            left: list[Column] = []
            for column in pending:
                try:
                    functions[column] = self.of(column)
                except NoFunction:
                    left.append(column)
            if len(left) == len(pending):
                self.of(left[0])
            pending = left
        return tuple(functions[column] for column in columns)

    def of(self, column: Column) -> Function:
        """The simplest function with these values.

        Raises:
            NoFunction: there is none.
        """
        if self._stale:
            self._multiply()
        for function in self._single(column):
            return function
        for function in itertools.chain(self._shifted(column), self._pairs(column)):
            self._know(column, function)
            return function
        if len(self.samples) > 2 and (quotient := self._quotient(column)) is not None:
            return quotient
        raise NoFunction(f"an integer is {', '.join(map(str, column))} at the sizes that were captured")

    def _multiply(self) -> None:
        """All products of a few variables, the shortest first."""
        self._products, self._stale = [], False
        for length in range(1, (MOST_FACTORS if len(self.variables) <= FEW_VARIABLES else 3) + 1):
            for factors in itertools.combinations_with_replacement(range(len(self.variables)), length):
                columns = [self.variables[at][0] for at in factors]
                self._products.append((tuple(map(math.prod, zip(*columns, strict=True))), factors))

    def _single(self, column: Column) -> Iterator[Function]:
        for product, factors in self._products:
            if all(value * product[0] == column[0] * other for value, other in zip(column, product, strict=True)):
                yield Function(((Fraction(column[0], product[0]), factors),))

    def _shifted(self, column: Column) -> Iterator[Function]:
        if len(self.samples) == 2:
            for at, (values, _) in enumerate(self.variables):
                if column[0] - values[0] == column[1] - values[1]:
                    yield Function(((Fraction(1), (at,)), (Fraction(column[0] - values[0]), ())))
        else:
            for product, factors in self._products:
                if (line := _line(column, product)) is not None:
                    yield Function(((line[0], factors), (line[1], ())))

    def _pairs(self, column: Column) -> Iterator[Function]:
        if len(self.samples) < 3:
            return
        for (first, ours), (second, theirs) in itertools.combinations(self._products[:MOST_PRODUCTS], 2):
            if (pair := _solved(column, first, second)) is not None:
                yield Function(((pair[0], ours), (pair[1], theirs)))

    def _quotient(self, column: Column) -> Function | None:
        """The same of a quotient, which is a variable from now on."""
        for at, (values, source) in enumerate(self.variables):
            for divisor, shift in _divisions() if isinstance(source, int) else ():
                quotient = tuple((value + shift) // divisor for value in values)
                if len(set(quotient)) > 1 and (line := _line(column, quotient)) is not None:
                    self.variables.append((quotient, Quotient(at, shift, divisor)))
                    function = Function(((line[0], (len(self.variables) - 1,)), (line[1], ())))
                    self._stale = True
                    if line != (Fraction(1), Fraction(0)):
                        self._know(column, function)
                    return function
        return None


def _divisions() -> Iterator[tuple[int, int]]:
    for divisor in DIVISORS:
        for shift in range(1 - divisor, divisor) if divisor <= NEAR else (0, divisor - 1):
            yield divisor, shift


def _line(column: Column, values: Column) -> tuple[Fraction, Fraction] | None:
    """Factor and summand of a line through all pairs."""
    other = next((at for at, value in enumerate(values) if value != values[0]), None)
    if other is None:
        return None
    factor = Fraction(column[other] - column[0], values[other] - values[0])
    summand = column[0] - factor * values[0]
    same = all(factor * value + summand == wanted for wanted, value in zip(column, values, strict=True))
    return (factor, summand) if same and factor and summand.denominator == 1 else None


def _solved(column: Column, first: Column, second: Column) -> tuple[Fraction, Fraction] | None:
    """The factors of two columns whose sum is a third."""
    for i, j in itertools.combinations(range(len(column)), 2):
        if determinant := first[i] * second[j] - first[j] * second[i]:
            a = Fraction(column[i] * second[j] - column[j] * second[i], determinant)
            b = Fraction(first[i] * column[j] - first[j] * column[i], determinant)
            wanted = zip(column, first, second, strict=True)
            return (a, b) if a and b and all(a * x + b * y == value for value, x, y in wanted) else None
    return None
