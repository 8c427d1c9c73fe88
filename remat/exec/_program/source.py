"""Generated code: names for what it calls, texts for what it passes, and the compiled functions."""

from __future__ import annotations

import functools
import hashlib
import linecache
import math
import threading
import types
import weakref
from typing import Any

import torch

from remat.exec._program.program import Ref, Spec
from remat.exec._torch import torch_private


class _Text:
    """The source of a piece of generated code, for tracebacks; its lines are removed with the last function compiled from it."""

    def __init__(self, name: str, source: str) -> None:
        lines = (len(source), None, source.splitlines(keepends=True), name)
        linecache.cache[name] = lines
        weakref.finalize(self, _forget, name, lines).atexit = False


def _forget(name: str, lines: object) -> None:
    if linecache.cache.get(name) is lines:
        del linecache.cache[name]


_texts: weakref.WeakValueDictionary[str, _Text] = weakref.WeakValueDictionary()
_lock = threading.Lock()

MOST_CODES = 32
"""Compiled texts that are kept for further plans, the most recently used."""


class Size(int):
    """An integer that generated code reads under a name, so that the code is the same at other sizes."""

    name: str

    @classmethod
    def of(cls, value: int, name: str) -> Size:
        """A named integer."""
        size = cls(value)
        size.name = name
        return size


def blank(spec: Spec) -> torch.Tensor:
    """A tensor of which only shape, strides and type will be looked at."""
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)


def zeros_of(spec: Spec) -> torch.Tensor:
    """A tensor of zeros, also where its strides have it overlap itself."""
    memory = torch.zeros(spec.extent // spec.dtype.itemsize, dtype=spec.dtype, device=spec.device)
    return memory.as_strided(spec.shape, spec.stride)


class Names:
    """The global names of a piece of generated code.

    Args:
        names: names that exist at the start.
    """

    def __init__(self, names: dict[str, Any] | None = None) -> None:
        self.names = {} if names is None else names
        self.entries: dict[Any, str] = {}

    def entry(self, target: Any) -> str:
        """The name under which an operation is called."""
        if target not in self.entries:
            if isinstance(target, torch_private.OpOverload):
                name, call = str(target).replace(".", "_").replace(":", "_"), torch_private.entry(target)
            else:
                name, call = target.__name__, target
            while name in self.names:
                name += "_"
            self.entries[target] = name
            self.names[name] = call
        return self.entries[target]

    def constant(self, value: Any) -> str:
        """A name for an object."""
        name = f"_constant_{len(self.names)}"
        self.names[name] = value
        return name

    def text(self, arg: Any) -> str:
        """An argument as code."""
        if isinstance(arg, Ref):
            return arg.name
        if type(arg) is Size:
            self.names[arg.name] = int(arg)
            return arg.name
        if isinstance(arg, Spec):
            self.names["_blank"] = blank
            return f"_blank({self._spec(arg)})"
        if isinstance(arg, (list, tuple)):
            return self._sequence(arg)
        if isinstance(arg, float) and not math.isfinite(arg):
            return f'float("{arg}")'
        if isinstance(arg, (type(None), bool, int, float, str)):
            return repr(arg)
        name = _name_of(arg)
        if name is None:
            return self.constant(arg)
        self.names[name] = arg
        return name

    def _spec(self, spec: Spec) -> str:
        """A name for a spec, or its text where sizes have names."""
        if not any(type(number) is Size for number in (*spec.shape, *spec.stride)):
            return self.constant(spec)
        self.names["_Spec"] = Spec
        return f"_Spec({', '.join(map(self.text, (spec.shape, spec.stride, spec.dtype, spec.device, spec.bits)))})"

    def _sequence(self, items: list[Any] | tuple[Any, ...]) -> str:
        inside = ", ".join(map(self.text, items))
        if isinstance(items, list):
            return f"[{inside}]"
        return f"({inside},)" if len(items) == 1 else f"({inside})"

    def compiled(self, source: str, what: str, constants: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run a source text and give its names; tracebacks show its lines for as long as one of its functions lives."""
        name = f"<remat {what} {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
        with _lock:  # two plans with one source share its text
            text = _texts.get(name) or _texts.setdefault(name, _Text(name, source))
        space = {**self.names, **(constants or {}), "_text": text}
        exec(_code(source, name), space)
        return space


@functools.lru_cache(maxsize=MOST_CODES)
def _code(source: str, name: str) -> types.CodeType:
    return compile(source, name, "exec")


def _name_of(arg: Any) -> str | None:
    """The name of a type, layout, memory format or device in generated code; None for other values."""
    if isinstance(arg, (torch.dtype, torch.layout, torch.memory_format)):
        return str(arg).replace(".", "_")
    if isinstance(arg, torch.device):
        return f"device_{arg.type}{'' if arg.index is None else arg.index}"
    return None
