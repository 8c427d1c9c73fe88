"""Field validators of the IR: wrong values are refused at birth, with the class, the field, the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from remat.errors import IllFormed
from remat.settings import Setting
from remat.units import LARGEST

if TYPE_CHECKING:
    from attrs import Attribute

Check = Callable[[Any, "Attribute[Any]", Any], None]


def _refuse(rule: str, instance: Any, attribute: Attribute[Any], problem: str, fix: str) -> IllFormed:
    name = getattr(instance, "name", None)
    place = f"{type(instance).__name__} {name!r}" if isinstance(name, str) else type(instance).__name__
    return IllFormed(rule, f"{place}: {attribute.name} {problem}.", fix=fix)


def at_least(low: int, unit: str) -> Check:
    """Check for an int from `low` up to the largest 64-bit word, stated in `unit`."""

    def check(instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if type(value) is not int:
            raise _refuse("G-INT", instance, attribute, f"is {value!r}, not an int", f"give whole {unit} as an int.")
        if value < low or value > LARGEST:
            raise _refuse("G-RANGE", instance, attribute, f"is {value} {unit}", f"give {low} to 2^63 - 1 {unit}.")

    return check


def encodes(value: str) -> bool:
    """Whether UTF-8, and so a file, can hold a text."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def a_text(instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """Check for text that a file can hold."""
    if not isinstance(value, str) or not encodes(value):
        raise _refuse("G-NAME", instance, attribute, f"is {value!r:.80}, not text", "give text that UTF-8 can hold.")


def a_name(instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """Check for a name: non-empty text without white space (the text form separates by it)."""
    if not isinstance(value, str) or value.split() != [value] or not (value.isascii() or encodes(value)):
        raise _refuse("G-NAME", instance, attribute, f"is {value!r}, not a name", "give text without white space.")


def an_object(kind: type, example: str) -> Check:
    """Check for an object of a class; `example` for the message."""

    def check(instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if not isinstance(value, kind):
            fix = f"give a {kind.__name__}, e.g. {example}."
            raise _refuse("G-TYPE", instance, attribute, f"is {value!r:.80}, not a {kind.__name__}", fix)

    return check


def such(setting: Setting) -> Check:
    """Check for what a setting accepts."""

    def check(instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if not setting.accepts(value):
            raise _refuse("G-TYPE", instance, attribute, f"is {value!r:.80}", f"give {setting.words}.")

    return check


def a_flag(instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """Check for True or False; the numbers 1 and 0 are neither."""
    if type(value) is not bool:
        raise _refuse("G-TYPE", instance, attribute, f"is {value!r:.80}, not a flag", "give True or False.")


def a_tuple(item: type) -> Check:
    """Check for a tuple of `item`; for names, also that none stands twice."""

    def check(instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if value == () and type(value) is tuple:
            return  # most are empty, and large graphs have many
        if type(value) is not tuple or any(map(odd, value)):
            fix = f"give a tuple of {item.__name__}."
            raise _refuse("G-TUPLE", instance, attribute, f"is {value!r:.80}, not a tuple of {item.__name__}", fix)
        if item is str and len(value) > 1 and len(set(value)) != len(value):
            raise _refuse("G-TWICE", instance, attribute, f"names something twice: {value}", "name each once.")

    def odd(element: object) -> bool:
        return not isinstance(element, item)

    return check
