"""The limits on functions, and the count of complexity against examples worked out by hand."""

import ast

import pytest

from tests.sizes import COMPLEXITY, ENTRY_POINTS, LONG, branching, crowded, long, measured, quantile, sizes_in

SIZES = measured()


def test_no_function_is_too_long_but_those_in_a_short_list():
    assert len(LONG) <= 5
    assert [size.place for size in long(SIZES)] == []


def test_no_function_takes_too_many_parameters():
    assert [size.place for size in crowded(SIZES)] == []


def test_of_twenty_functions_nineteen_keep_to_the_complexity():
    assert quantile(SIZES) <= COMPLEXITY, [size.place for size in branching(SIZES)]


def test_the_exceptions_are_functions_that_need_one():
    places = {size.place: size for size in SIZES}
    assert all(places[place].lines > 60 for place in LONG)
    assert all(places[place].positional + places[place].named > 6 for place in ENTRY_POINTS)


@pytest.mark.parametrize(
    "body, complexity",
    [
        ("pass", 1),
        ("if a:\n  pass\nelif b:\n  pass\nelse:\n  pass", 3),
        ("return a and b and c or d", 4),
        ("for x in a:\n  pass\nelse:\n  pass", 3),
        ("while a:\n  pass", 2),
        ("try:\n  pass\nexcept A:\n  pass\nexcept B:\n  pass\nelse:\n  pass\nfinally:\n  pass", 4),
        ("return [x for x in a if x if y]", 4),
        ("return {x: y for x in a for y in b}", 3),
        ("return a if b else c", 2),
        ("assert a", 2),
        ("match a:\n  case 1:\n    pass\n  case [x]:\n    pass\n  case _:\n    pass", 3),
        ("with a:\n  return lambda: 0", 1),
    ],
)
def test_complexity_is_counted_as_by_hand(body, complexity):
    source = "def f():\n" + "\n".join(f"  {line}" for line in body.splitlines())
    (size,) = sizes_in(ast.parse(source), "")
    assert size.complexity == complexity


def test_nested_functions_and_methods_are_counted_once_each():
    source = "class A:\n  def f(self, a, *, b):\n    def g(c):\n      if c:\n        pass\n    return g\n"
    outer, inner = sizes_in(ast.parse(source), "m:")
    assert (outer.place, outer.positional, outer.named, outer.lines, outer.complexity) == ("m:A.f", 1, 1, 5, 1)
    assert (inner.place, inner.positional, inner.complexity) == ("m:A.f.g", 1, 2)


@pytest.mark.parametrize("count, expected", [(100, 95), (20, 19), (19, 19), (1, 1)])
def test_the_quantile_is_the_least_value_that_the_share_does_not_exceed(count, expected):
    source = "\n".join(f"def f{k}(a):\n  return [{'a or ' * k}a]" for k in range(count))
    assert quantile(sizes_in(ast.parse(source), "")) == expected
