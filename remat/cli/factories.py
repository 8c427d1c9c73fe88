"""Models on the command line: the argument `MODULE:FACTORY` and the options that several commands have for it."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from remat.errors import BadArgument

METAVAR = "MODULE:FACTORY"

FACTORY = Annotated[
    str, typer.Argument(metavar=METAVAR, help="Function that returns (module, args) or (module, args, kwargs).")
]
"""The first argument of every command that makes a model."""

SETTINGS = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Argument of the factory, as a Python literal."),
]
"""Arguments of the factory."""

DIFFERENTIABLE = Annotated[str, typer.Option(help="Outputs that gradients come back through: auto, loss or all.")]
"""Which outputs of the model its training step has gradients of."""


def factory_of(text: str, settings: list[str] | None) -> Callable[..., Any]:
    """The function `package.module:name` with its arguments given.

    Raises:
        BadArgument: C-FACTORY, when there is no such function; C-SETTING, when an argument is not NAME=VALUE, the function has
            none of that name, or needs one more.
    """
    function, given = find(text), dict(map(read_setting, settings or []))
    try:
        names = inspect.signature(function).parameters
    except (ValueError, TypeError):  # a callable that does not say what it takes
        return functools.partial(function, **given)
    unknown = next((name for name in given if name not in names), None)
    if unknown is not None and not any(each.kind is each.VAR_KEYWORD for each in names.values()):
        what = f"{text} has no argument {unknown!r}; it has {', '.join(names) or 'none'}."
        raise BadArgument("C-SETTING", what, fix="give --set one of its arguments.")
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    missing = [
        name for name, each in names.items() if each.kind in named and each.default is each.empty and name not in given
    ]
    if missing:
        what = f"{text} needs the argument {missing[0]!r}."
        raise BadArgument("C-SETTING", what, fix=f"give --set {missing[0]}=VALUE.")
    return functools.partial(function, **given)


def find(text: str) -> Callable[..., Any]:
    """The function `package.module:name`; modules of the current directory count too.

    Raises:
        BadArgument: C-FACTORY, when there is none.
    """
    module, _, name = text.partition(":")
    if module.endswith(".py"):
        fix = f"write {Path(module).stem}:{name or 'FACTORY'}, in the folder of the file."
        raise BadArgument("C-FACTORY", f"{module!r:.80} is a file, not a module.", fix=fix)
    if not module or module.startswith(".") or not name:
        raise _not_a_factory(f"{text!r:.80} is not of the form MODULE:FACTORY.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        target: Any = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except ModuleNotFoundError as error:
        raise _not_a_factory(f"there is no module {error.name!r}.") from error
    except AttributeError as error:
        raise _not_a_factory(f"{error}.") from error
    except (Exception, SystemExit) as error:  # whatever the code of the module raises
        what = f"the module {module} cannot be imported: {type(error).__name__}: {error!s:.200}."
        raise BadArgument("C-FACTORY", what, fix=f'mend it: python -c "import {module}" shows where.') from error
    if not callable(target):
        raise _not_a_factory(f"{text} is of type {type(target).__name__}, not a function.")
    return target  # type: ignore[no-any-return]


def _not_a_factory(what: str) -> BadArgument:
    return BadArgument("C-FACTORY", what, fix="give it like remat.zoo.large:gpt24.")


def read_setting(text: str) -> tuple[str, Any]:
    """Name and value of `layers=400`.

    Raises:
        BadArgument: C-SETTING, when the text is not one.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise BadArgument("C-SETTING", f"{text!r:.80} is not a setting.", fix="write it like layers=400.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: nested too deep
        return name, value
