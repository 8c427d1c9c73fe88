"""Calls below autograd, as they are written down and compared."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from remat.exec._torch.outlined import Form
from remat.exec._torch.torch_private import OpOverload
from remat.exec._trace.tape import Scalar

READERS = ("aten._local_scalar_dense.default", "aten.equal.default", "aten.is_nonzero.default")
"""Operations by which Python reads values."""


class Differs(Exception):
    """A step does not make the calls that were expected; the message says where."""


@frozen
class Call:
    """One call below autograd.

    Attributes:
        target: the operation.
        given: its arguments: integers as they are, tensors by name, all else as type and text.
        named: likewise, by keyword.
        results: for each result: its form; the name of the argument that it is; or None, where there is none.
        names: the name of each result that is a new tensor.
        unpack: it returns several.
    """

    target: OpOverload
    given: tuple[Any, ...]
    named: tuple[Any, ...]
    results: tuple[Form | str | None, ...]
    names: tuple[str | None, ...]
    unpack: bool


@frozen
class Outline:
    """What one run showed.

    Attributes:
        calls: in order.
        returned: forms of the tensors that the module returned.
        answers: what Python read of tensors, in order.
        outside: forms of the tensors that no call has made, by name.
    """

    calls: tuple[Call, ...]
    returned: tuple[Form, ...]
    answers: tuple[Scalar, ...]
    outside: dict[str, Form]
