"""What calls return, as shape functions tell it, asked once for calls that are equal in all that decides it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, evolve

from remat.exec._capture.agree import corrected_targets
from remat.exec._sizes import laws
from remat.exec._sizes.calls import READERS, Call, Differs, Outline
from remat.exec._torch.outlined import Fakes, Form, Metas
from remat.exec._torch.torch_private import OpOverload


@define(eq=False)
class Shapes:
    """The shape functions of the calls of some outlines.

    Attributes:
        distinct: for each call, whether no earlier one is equal to it in all that decides what it returns.
        lawful: for each call, whether a law has told what it returns in every outline.
        fake: operations whose results depend on the device, or are corrected: only fake tensors tell them.
        calibrates: whether it is being found out which these are.
    """

    distinct: tuple[bool, ...]
    lawful: tuple[bool, ...]
    fake: set[OpOverload]
    calibrates: bool = False

    @classmethod
    def of(cls, outlines: Sequence[Outline]) -> Shapes:
        """Those of equal outlines of several sizes."""
        seen: set[Any] = set()
        distinct, lawful = [], []
        forms = [dict(outline.outside) for outline in outlines]
        for calls in zip(*(outline.calls for outline in outlines), strict=True):
            pairs = zip(calls, forms, strict=True)
            arguments = [_resolved((call.given, call.named), named) for call, named in pairs]
            key = (calls[0].target, *arguments)
            distinct.append(calls[0].target.namespace != "aten" or key not in seen)
            lawful.append(distinct[-1] and all(map(_lawful, calls, arguments)))
            seen.add(key)
            for call, named in zip(calls, forms, strict=True):
                pairs_of_results = zip(call.names, call.results, strict=True)
                named.update(
                    (name, form) for name, form in pairs_of_results if name is not None and isinstance(form, Form)
                )
        return cls(tuple(distinct), tuple(lawful), set(corrected_targets()))

    def check(self, at: int, call: Call, args: Any, kwargs: Any) -> None:
        """Ask what a call returns, where no earlier one tells it.

        Args:
            at: its place among the calls.
            call: as it is expected.
            args: its arguments.
            kwargs: likewise.

        Raises:
            Differs: not what is expected.
        """
        if not self.distinct[at] or str(call.target) in READERS:
            return
        if self.lawful[at] and call.target not in self.fake and _lawful(call, (_formed(args), tuple(kwargs.items()))):
            return
        if call.target not in self.fake and "device" not in kwargs:
            try:
                if results_of(call, args, kwargs, Metas()) == call.results:
                    return
            except (RuntimeError, NotImplementedError, TypeError):
                if not self.calibrates:
                    raise
            if self.calibrates:
                self.fake.add(call.target)
        results = results_of(call, args, kwargs, Fakes())
        if results != call.results:
            raise Differs(f"{call.target} returns {results} where {call.results} was expected")


def _lawful(call: Call, arguments: tuple[Any, Any]) -> bool:
    """Whether a law tells that a call returns what it is said to return; arguments with forms in place of tensors."""
    laid = laws.laid_out(call.target, arguments[0], dict(arguments[1]))
    return laid is not None and laws.agrees(laid, call.results, call.given[0] if call.given else None)


def _formed(args: Any) -> tuple[Any, ...]:
    """Arguments with forms in place of tensors."""
    return tuple(Form.of(value) if isinstance(value, torch.Tensor) else value for value in args)


def _resolved(tree: Any, forms: dict[str, Form]) -> Any:
    """Arguments with forms in place of names."""
    if isinstance(tree, tuple):
        return tuple(_resolved(item, forms) for item in tree)
    return forms.get(tree, tree) if type(tree) is str else tree


def results_of(call: Call, args: Any, kwargs: Any, blanks: Any) -> tuple[Form | str | None, ...]:
    """The results of a call as shape functions tell them, on the devices that are expected."""
    tensors: dict[int, str] = {}

    def blank(value: Any, key: Any) -> Any:
        """An argument with such tensors in it."""
        if isinstance(value, torch.Tensor):
            tensor = blanks(Form.of(value))
            tensors[id(tensor)] = key
            return tensor
        if type(value) in (list, tuple):
            return type(value)([blank(*pair) for pair in zip(value, key, strict=True)])
        return value

    blank_args = [blank(*pair) for pair in zip(args, call.given, strict=True)]
    blank_kwargs = {name: blank(value, key) for (name, value), (_, key) in zip(kwargs.items(), call.named, strict=True)}
    with blanks:
        result = call.target(*blank_args, **blank_kwargs)
    results: list[Form | str | None] = []
    parts = result if isinstance(result, (tuple, list)) else [result]
    if len(parts) != len(call.results):
        return (None,) * len(parts)
    for part, expected in zip(parts, call.results, strict=True):
        if not isinstance(part, torch.Tensor):
            results.append(None)
        elif id(part) in tensors:
            results.append(tensors[id(part)])
        else:
            form = Form.of(part)
            results.append(
                evolve(form, device=expected.device)
                if isinstance(blanks, Metas) and isinstance(expected, Form)
                else form
            )
    return tuple(results)
