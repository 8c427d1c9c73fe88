"""The Hypothesis profiles of `tests`."""

from tests.conftest import settings

__all__ = ["settings"]
