"""Whether a forward sets torch's generators itself, also where it puts them back afterwards.

Nothing draws during a trace: the generators stand still, and a state that is put back looks like one that nobody has touched. So
they are moved here, at the beginning of a pass and at each of its draws, to states that nothing else leads to. Where they are in
another one, the forward has set them: it has seeded them, or has put a state back that its draws had left.
"""

from __future__ import annotations

import secrets
from typing import Any

import torch

from remat.exec._torch import rng, torch_private


class Seeding:
    """While entered, follows torch's generators through a pass; afterwards they are as before."""

    def __init__(self) -> None:
        self._before: list[torch.Tensor] = []
        self._expected: list[bytes] = []
        self._seen = False

    def __enter__(self) -> None:
        with torch_private.no_modes():
            self._before = [generator.get_state() for generator in rng.generators()]
        self._move()

    def __exit__(self, *_error: Any) -> None:
        self.put_back()
        self._before, self._expected, self._seen = [], [], False

    @property
    def seen(self) -> bool:
        """Whether the forward has set a generator by now."""
        self._seen = self._seen or (bool(self._expected) and self._expected != _states())
        return self._seen

    def drawn(self) -> None:
        """The forward draws."""
        if self._expected and not self.seen:
            self._move()

    def put_back(self) -> None:
        """Set the generators as they were before the pass."""
        with torch_private.no_modes():
            for generator, state in zip(rng.generators(), self._before, strict=False):
                generator.set_state(state)

    def _move(self) -> None:
        for generator in rng.generators():
            generator.manual_seed(secrets.randbits(63))
        self._expected = _states()


def _states() -> list[bytes]:
    with torch_private.no_modes():
        return [generator.get_state().numpy().tobytes() for generator in rng.generators()]
