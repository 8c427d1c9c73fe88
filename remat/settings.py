"""What settings may be: validators of fields of solvers, passes, transforms and partitioners, and of arguments of functions.

A `Setting` is a test with its words. As the validator of an attrs field it refuses a wrong value at birth; `check`
does the same for an argument of a function. NaN, infinity and booleans are not numbers here. What is refused is a `BadArgument`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import field, frozen

from remat.errors import BadArgument, shown
from remat.units import LARGEST

if TYPE_CHECKING:
    from attrs import Attribute

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

RULE = "A-SETTING"
"""Id of a refusal; a class may name another in `SETTINGS_RULE`."""


@frozen
class Setting:
    """What a value may be.

    Attributes:
        words: what is accepted, as the message says it: `a number from 0 to 1`.
        accepts: whether a value is accepted.
    """

    words: str
    accepts: Callable[[Any], bool] = field(repr=False)

    def __call__(self, instance: Any, attribute: Attribute[Any], value: Any) -> None:
        """Check the field of an attrs class."""
        kind = type(instance)
        self.check(value, f"{kind.__name__}: {attribute.name}", rule=getattr(kind, "SETTINGS_RULE", RULE))

    def check(self, value: Any, place: str, *, rule: str = RULE) -> None:
        """Check an argument.

        Args:
            value: what was given.
            place: function and argument, for the message.
            rule: id of the refusal.

        Raises:
            BadArgument: with the rule, the place, the value and what is accepted.
        """
        if not self.accepts(value):
            raise BadArgument(rule, f"{place} is {shown(value, 200)}.", fix=f"give {self.words}.")


def whole(low: int, unit: str = "") -> Setting:
    """An int of at least `low`, stated in `unit`, that a signed 64-bit word holds."""
    words = f"an int from {low} to 2^63 - 1" + (f" ({unit})" if unit else "")
    return Setting(words, lambda value: type(value) is int and low <= value <= LARGEST)


def number(low: float = 0, high: float | None = None) -> Setting:
    """A finite int or float from `low` up to `high`; None: no limit."""
    words = f"a finite number of at least {low:g}" if high is None else f"a number from {low:g} to {high:g}"
    most = sys.float_info.max if high is None else high
    return Setting(words, lambda value: _is_number(value) and bool(low <= value <= most))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def one_of(*words: str) -> Setting:
    """One of some words."""
    listed = ", ".join(map(repr, words))
    return Setting(f"one of {listed}", lambda value: isinstance(value, str) and value in words)


def instance(kind: type, example: str) -> Setting:
    """An object of a class, or of a protocol that is checked at run time; `example` for the message."""
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return Setting(f"{article} {kind.__name__}, e.g. {example}", lambda value: isinstance(value, kind))


def optional(setting: Setting) -> Setting:
    """What another setting accepts, or None."""
    return either(setting, Setting("None", lambda value: value is None))


def either(*settings: Setting) -> Setting:
    """A value that any of several settings accepts."""
    words = ", or ".join(setting.words for setting in settings)
    return Setting(words, lambda value: any(setting.accepts(value) for setting in settings))


def tuple_of(item: Setting, *, empty: bool = False) -> Setting:
    """A tuple of what another setting accepts, with at least one item unless it may be `empty`."""

    def accepts(value: Any) -> bool:
        return type(value) is tuple and (empty or len(value) > 0) and all(map(item.accepts, value))

    return Setting(f"a tuple{'' if empty else ' of one or more'}, each {item.words}", accepts)


def each_of(items: Iterable[T], item: Setting, place: str) -> tuple[T, ...]:
    """The items of a collection, every one of them checked; `place` for the message.

    Raises:
        BadArgument: of the first item that is refused.
    """
    checked = tuple(items)
    for value in checked:
        item.check(value, f"{place}: an item")
    return checked


def function(example: str) -> Setting:
    """Anything that can be called; `example` for the message."""
    return Setting(f"a function, e.g. {example}", callable)


FLAG = Setting("True or False", lambda value: type(value) is bool)
"""A boolean."""

NAME = Setting("a name", lambda value: isinstance(value, str) and bool(value))
"""Text that is not empty."""

MANY = Setting(
    "a list, a tuple or another collection (a text is none)",
    lambda value: isinstance(value, Iterable) and not isinstance(value, (str, bytes)),
)
"""Several things, of which each is looked at where it is used."""

SEED = Setting("an int", lambda value: type(value) is int)
"""Of random choices."""

SECONDS = number(0)
"""How long something may take."""


def takes(*, rule: str = RULE, **settings: Setting) -> Callable[[F], F]:
    """Decorate a public function: arguments of these names are checked before it begins; what is left out is not checked.

    Raises:
        BadArgument: of a call, with the rule, the function, the argument, the value and what is accepted.
    """

    def checked(function: F) -> F:
        order = list(signature(function).parameters)
        rows = [
            (order.index(name), name, setting, f"{function.__name__}: {name}") for name, setting in settings.items()
        ]

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for at, name, setting, place in rows:
                if at < len(args):
                    setting.check(args[at], place, rule=rule)
                elif name in kwargs:
                    setting.check(kwargs[name], place, rule=rule)
            return function(*args, **kwargs)

        return cast(F, call)

    return checked
