"""The command line: `remat validate`, `remat show`, `remat solve`, …; each is a module here with `register(app)`.

One clear message and an exit code: 0 done, 1 an error of this library, 2 a wrong call, 3 no schedule found, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys

import typer

from remat.cli.words import complain, of_system
from remat.errors import RematError

COMMANDS = (
    "validate",
    "show",
    "apply",
    "solve",
    "prove",
    "check",
    "records",
    "capture",
    "estimate",
    "inspect",
    "doctor",
    "demo",
    "sweep",
    "warm_up",
    "dtr",
)
"""Modules of this package, in the order of the help page."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as of shells."""

app = typer.Typer(help="Train a network under a hard memory budget.", no_args_is_help=True, add_completion=False)


@app.callback()
def _remat() -> None:
    """Train a network under a hard memory budget."""


for _name in COMMANDS:
    importlib.import_module(f"remat.cli.{_name}").register(app)


def main(args: list[str] | None = None) -> int:
    """Run the command line; errors of this library become one message and exit code 1."""
    try:
        code = app(args=sys.argv[1:] if args is None else args, standalone_mode=False)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the reader has gone, and what is left is flushed at the end
        return 1
    except RematError as error:
        complain(error)
        return 1
    except OSError as error:
        complain(of_system(error))
        return 1
    except typer.Exit as done:
        code = done.exit_code
    except Exception as error:
        if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "show"):
            error.show()  # a wrong call: the message of the command line's own library
            return int(getattr(error, "exit_code", 2))
        raise
    if code == INTERRUPTED:
        typer.echo("interrupted", err=True)
    return int(code or 0)


def entry() -> None:
    """The console script."""
    sys.exit(main())
