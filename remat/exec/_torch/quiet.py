"""Torch's tracebacks of calls that its shape functions refuse are not logged: the refusal, or the module's own error, says it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Inside, fake tensors do not log the errors that they raise."""
    _LOGGER.addFilter(_is_news)
    try:
        yield
    finally:
        _LOGGER.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("failed while attempting to run meta")


__all__ = ["without_tracebacks"]
