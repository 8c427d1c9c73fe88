"""A digest of a captured program: equal digests, equal steps, so that what was planned for one can be run for the other.

What an argument's value does not change in the trace is not planned again. Only the program counts: what a module returns besides
tensors is not in it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from remat.exec._program.program import Op, Program, Ref, Spec, Storage, Value
from remat.exec._torch import torch_private

_LITERALS = (
    type(None), bool, int, float, complex, str, type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_strangers = itertools.count()
_digests: WeakKeyDictionary[Program, str] = WeakKeyDictionary()
"""Of programs that were asked about: it takes a hundredth of a second."""


def program_digest(program: Program, *, any_device: bool = False) -> str:
    """Sixty-four hexadecimal digits; the same for two captures of one step, in any process.

    Args:
        program: the captured step.
        any_device: devices do not count: the same for a step that was captured on another device as the same operations.

    Operations with their arguments to the last bit, phases, scopes and order; shapes, strides, types and devices; who shares
    which storage; constants with their values; inputs, outputs, gradients and updates. Sequence numbers of autograd count by
    their order alone. An argument of a kind that is not known here makes a digest that no other capture has.
    """
    if any_device:
        return _digest(program, any_device=True)
    if program not in _digests:
        _digests[program] = _digest(program, any_device=False)
    return _digests[program]


def _digest(program: Program, *, any_device: bool) -> str:
    numbers = {op.sequence for op in program.ops if op.sequence is not None}
    order = {number: rank for rank, number in enumerate(sorted(numbers))}
    hasher = hashlib.sha256()
    parts = (
        program.name,
        program.device,
        [_op(op, order) for op in program.ops],
        [_value(value) for value in program.values.values()],
        [_storage(storage) for storage in program.storages.values()],
        program.params,
        program.buffers,
        program.inputs,
        [(name, _tensor(tensor)) for name, tensor in program.constants.items()],
        program.outputs,
        program.tangents,
        program.grads,
        program.updates,
    )
    for word in _words(parts):
        if any_device:
            word = _anywhere(word)
        hasher.update(f"{len(word)}:".encode())
        hasher.update(word)
    return hasher.hexdigest()


def structure_digest(program: Program) -> str:
    """The same for two steps whose operations and storages agree in names, order, kinds and readers, whatever their sizes.

    A schedule of the graph of one is then a schedule of the graph of the other, of another peak.
    """
    if program.structure:
        return program.structure
    hasher = hashlib.sha256()
    ops = (
        (op.name, op.role.name, op.phase.name, program.read(op), program.written(op), op.draws, op.run_once)
        for op in program.nodes
    )
    storages = ((storage.name, storage.outside) for storage in program.storages.values())
    outputs = [program.values[value].storage for value in program.outputs]
    grads = [(key, program.values[value].storage) for key, value in program.grads.items()]
    for part in (*ops, *storages, outputs, grads):
        hasher.update(repr(part).encode())
    return hasher.hexdigest()


def _op(op: Op, order: Mapping[int, int]) -> tuple[Any, ...]:
    sequence = None if op.sequence is None else order[op.sequence]
    call = (op.name, op.role, op.target, op.args, op.kwargs, op.outputs, op.unpack)
    return (*call, op.phase, op.scope, op.draws, op.run_once, op.subject, op.needs, sequence, op.adds)


def _value(value: Value) -> tuple[Any, ...]:
    return value.name, value.spec, value.storage, value.view


def _storage(storage: Storage) -> tuple[Any, ...]:
    # Not its size: that follows from the operations, and traces of one step differ in it (torch caches what a fake operation
    # returns with a storage that may end at the last element).
    return storage.name, storage.roots, storage.outside


def _tensor(tensor: torch.Tensor) -> tuple[Spec, str]:
    """Spec and digest of the values."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return Spec.of(tensor), hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def _words(part: Any) -> list[bytes]:
    """A part as words that tell it from every other; the type of a number is in them, and the structure."""
    words: list[bytes] = []
    _write(part, words.append)
    return words


def _write(part: Any, write: Callable[[bytes], None]) -> None:
    kind = type(part)
    if kind is tuple or kind is list:
        _write_group(kind.__name__, part, write)
    elif isinstance(part, _LITERALS):
        write(f"{kind.__name__} {part!r}".encode())
    elif isinstance(part, Enum):
        write(f"{kind.__name__}.{part.name}".encode())
    elif isinstance(part, Ref):
        write(f"value {part.name}".encode())
    elif isinstance(part, Spec):
        write(f"spec {part}".encode())
    elif isinstance(part, torch_private.OpOverload):
        write(f"operation {part}".encode())
    elif isinstance(part, (FunctionType, BuiltinFunctionType)):
        write(f"function {part.__module__}.{part.__qualname__}".encode())
    elif isinstance(part, Mapping):
        _write_group("mapping", itertools.chain.from_iterable(part.items()), write)
    elif isinstance(part, slice):
        _write_group("slice", (part.start, part.stop, part.step), write)
    elif isinstance(part, (tuple, list)):
        _write_group(kind.__name__, part, write)
    else:
        write(f"stranger {kind.__name__} {next(_strangers)}".encode())


def _write_group(name: str, parts: Iterable[Any], write: Callable[[bytes], None]) -> None:
    write(f"{name} (".encode())
    for part in parts:
        _write(part, write)
    write(b")")


def _anywhere(word: bytes) -> bytes:
    """A word without the device in it."""
    if word.startswith(b"device "):
        return b"device"
    return word.partition(b"@")[0] if word.startswith(b"spec ") else word


__all__ = ["program_digest", "structure_digest"]
