"""Torch's tracebacks of calls that its shape functions refuse are not logged: the refusal, or the module's own error, says it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Inside, fake tensors do not log the errors that they raise."""
    _logger_of_torch().addFilter(_is_news)
    try:
        yield
    finally:
        _logger_of_torch().removeFilter(_is_news)


def _logger_of_torch() -> logging.Logger:
    return logging.getLogger(FakeTensorMode.__module__)


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("failed while attempting to run meta")


__all__ = ["without_tracebacks"]
