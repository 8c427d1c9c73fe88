"""Which attributes of modules a forward reads before it writes them: only these count as its state."""

from __future__ import annotations

import sys
import threading
from typing import Any

from torch import nn

from remat.exec._trace.containers import ALWAYS, Container

_MODULE_FILE = nn.Module.__getattr__.__code__.co_filename


class Reads:
    """While entered, notes which attributes of modules are read before they are written.

    Args:
        paths: path of each module in the snapshot that the reads are for.
    """

    def __init__(self, paths: dict[int, str]) -> None:
        self.paths = paths
        self.names: dict[str, set[str]] = {}
        self._written: set[tuple[int, str]] = set()

    def of(self, path: str) -> set[str] | None:
        """Attributes of a module that were read; None: possibly all of them."""
        names = self.names.get(path, set())
        return None if "__dict__" in names else names

    def counts(self, container: Container, key: Any) -> bool:
        """Whether an entry of a container counts; one that is no attribute of a module always does."""
        if container.module is None or key in ALWAYS:
            return True
        wanted = self.of(container.path)
        return wanted is None or key in wanted

    def merge(self, other: Reads) -> None:
        """Add the reads of another trace."""
        for path, names in other.names.items():
            self.names.setdefault(path, set()).update(names)

    def __enter__(self) -> Reads:
        plain, write = object.__getattribute__, nn.Module.__setattr__
        tracing = threading.get_ident()

        def read(module: nn.Module, name: str) -> Any:
            path = self.paths.get(id(module))
            if name == "__dict__" and sys._getframe(1).f_code.co_filename == _MODULE_FILE:
                return plain(module, name)
            if path is not None and (id(module), name) not in self._written:
                self.names.setdefault(path, set()).add(name)
            return plain(module, name)

        def assign(module: nn.Module, name: str, value: Any) -> None:
            # what another thread sets is none of the forward's
            if threading.get_ident() == tracing and name not in self.names.get(self.paths.get(id(module), ""), ()):
                self._written.add((id(module), name))
            write(module, name, value)

        self._write = write
        nn.Module.__getattribute__ = read  # type: ignore[method-assign, assignment]
        nn.Module.__setattr__ = assign  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_error: object) -> None:
        del nn.Module.__getattribute__
        nn.Module.__setattr__ = self._write  # type: ignore[method-assign]
