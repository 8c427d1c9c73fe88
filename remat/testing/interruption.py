"""Ctrl-C while a part runs: raised where the code of the part makes a call, which shows whether it catches the exception."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from inspect import CO_GENERATOR
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

_OTHERS: Final = ("builtins", "abc", "typing", "attr", "enum")


def part_modules(part: object) -> frozenset[str]:
    """The modules that define a part's classes, without those of remat if there are others."""
    names = {kind.__module__ for kind in type(part).__mro__ if not kind.__module__.startswith(_OTHERS)}
    outside = {name for name in names if not name.startswith("remat.")}
    return frozenset(outside or names)


def calls(modules: Collection[str], question: Callable[[], Any]) -> int:
    """How many calls the code of some modules makes during a question."""
    return _Counter(modules, None).run(question)


def interrupted(modules: Collection[str], at: int, question: Callable[[], T]) -> T:
    """The answer to a question during which KeyboardInterrupt is raised at the call number `at`.

    Raises:
        KeyboardInterrupt: if the part lets it through.
    """
    counter = _Counter(modules, at)
    answers: list[T] = []
    counter.run(lambda: answers.append(question()))
    return answers[0]


class _Counter:
    def __init__(self, modules: Collection[str], at: int | None) -> None:
        self.modules, self.at, self.count = modules, at, 0

    def run(self, question: Callable[[], Any]) -> int:
        before = sys.getprofile()
        sys.setprofile(self.event)
        try:
            question()
        finally:
            sys.setprofile(before)
        return self.count

    def event(self, frame: FrameType, event: str, arg: Any) -> None:
        del arg
        if event == "call":
            caller = frame.f_back
            counts = self.of(frame) or (caller is not None and self.of(caller))
            # Python ignores exceptions in destructors and when it closes generators
            counts = counts and not frame.f_code.co_flags & CO_GENERATOR and frame.f_code.co_name != "__del__"
        else:
            counts = event == "c_call" and self.of(frame)
        if counts:
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt

    def of(self, frame: FrameType) -> bool:
        # methods that attrs generates do not count: a generated repr that is interrupted returns "..." from then on
        written = not frame.f_code.co_filename.startswith("<attrs generated")
        return written and frame.f_globals.get("__name__") in self.modules
