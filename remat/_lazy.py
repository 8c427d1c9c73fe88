"""Names of a package that are imported when they are first asked for (PEP 562), so that importing the package stays light.

The package lists the same names under `if TYPE_CHECKING` and in `__all__`, for type checkers and readers; a test compares them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from remat._collector import collector_paused


def lazy(package: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`.

    Args:
        package: its name.
        where: for each name, `module:name` where it is, or `module` for a module.
    """

    def __getattr__(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = where[name].partition(":")
        with collector_paused():
            value = importlib.import_module(module)
        return getattr(value, attribute) if attribute else value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where})

    return __getattr__, __dir__
