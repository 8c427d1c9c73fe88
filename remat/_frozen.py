"""Copies of frozen objects whose new fields are known to be right: without validators, which cost more than the copy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import attrs

T = TypeVar("T")


def copied(first: T, changed: Iterable[tuple[str, Any]]) -> T:
    """A copy of an object of a slotted class of attrs, with other values in some fields."""
    kind: Any = type(first)
    result, slots = kind.__new__(kind), _slots(kind)
    for get, put in slots.values():
        put(result, get(first))
    for name, value in changed:
        slots[name][1](result, value)
    return result  # type: ignore[no-any-return]


def share(source: Any, target: Any, names: Iterable[str]) -> None:
    """Hand on cached properties that an object has worked out already."""
    kind: Any = type(source)
    for name in names:
        member = member_of(kind, name)
        try:
            member.__set__(target, member.__get__(source))
        except AttributeError:  # not worked out yet
            continue


def fields_of(kind: type) -> tuple[str, ...]:
    """The names of the fields of a class of attrs."""
    return tuple(about.name for about in attrs.fields(kind))


@functools.cache
def member_of(kind: type, name: str) -> Any:
    """What reads and writes a slot of a class, past what refuses to write a frozen object."""
    return inspect.getattr_static(kind, name)


@functools.cache
def _slots(kind: type) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]]:
    """How each field is read and written."""
    members = {name: member_of(kind, name) for name in fields_of(kind)}
    return {name: (member.__get__, member.__set__) for name, member in members.items()}
