"""Torch's detector of races between streams, which needs no device: streams, events and pointers are numbers to it."""

from __future__ import annotations

from torch.cuda._sanitizer import EventHandler, UnsynchronizedAccessError

__all__ = ["EventHandler", "UnsynchronizedAccessError"]
