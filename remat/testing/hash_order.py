"""The same calls in a child process with another hash seed: a part that depends on the order of a set gives other answers."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from remat.errors import RematError

PATIENCE: Final = 60
"""Seconds to wait for a child, unless its caller says otherwise."""

_CHILD = "from remat.testing.hash_order import answer; answer()"


class NoChild(Exception):
    """The calls could not be made in a child process; the message has the reason."""


def in_a_child(
    ask: Callable[[Any, Any], Any], part: Any, questions: list[Any], *, patience: float = PATIENCE
) -> list[Any]:
    """The answers of a child process.

    Args:
        ask: a function of a module that returns the answer of a part to a question.
        part: the part.
        questions: the questions; all three are pickled.
        patience: seconds to wait for the child.

    Raises:
        NoChild: the part cannot be imported in the child, or the child failed or took too long.
    """
    if type(part).__module__ == "__main__":
        raise NoChild("its class is defined in the main script, which other processes cannot import")
    hash_seed = os.environ.get("PYTHONHASHSEED", "")
    environment = {**os.environ, "PYTHONHASHSEED": "2" if hash_seed == "1" else "1"}
    try:
        sent = base64.b64encode(pickle.dumps((sys.path, pickle.dumps((ask, part, questions)))))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NoChild(f"it cannot be pickled ({error})") from error
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD],
            input=sent,
            capture_output=True,
            env=environment,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoChild(f"a child process took more than {patience} s") from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise NoChild(f"a child process ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
    fine, answers = pickle.loads(base64.b64decode(lines[-1]))
    if not fine:
        raise NoChild(str(answers))
    return list(answers)


def answer() -> None:
    """In the child: read the questions, write the answers."""
    path, packed = pickle.loads(base64.b64decode(sys.stdin.buffer.read()))
    sys.path[:] = path
    try:
        ask, part, questions = pickle.loads(packed)
    except (ImportError, AttributeError) as error:
        reply: tuple[bool, Any] = (False, f"a child process cannot import it ({error})")
    else:
        reply = (True, [_answer(ask, part, question) for question in questions])
    sys.stdout.buffer.write(b"\n" + base64.b64encode(pickle.dumps(reply)) + b"\n")


def _answer(ask: Callable[[Any, Any], Any], part: Any, question: Any) -> Any:
    try:
        return ask(part, question)
    except (RematError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return repr(error)
