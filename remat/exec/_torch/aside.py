"""Running what needs the thread's recorder while a profile uses it: on a separate thread, for as long as that takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from remat.exec._torch import recording

T = TypeVar("T")


def unprofiled(call: Callable[[], T]) -> T:
    """What `call` returns, run where no profile is on: here, or on another thread with as many threads to compute with.

    A profile of this thread goes on and sees nothing of it. On the other thread neither autocast nor `no_grad` of this one
    holds.
    """
    if not recording.profiling():
        return call()
    results: list[T] = []
    errors: list[BaseException] = []
    threads = torch.get_num_threads()

    def run() -> None:
        torch.set_num_threads(threads)
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again below, where the caller is
            errors.append(error)

    thread = threading.Thread(target=run, name="remat-unprofiled")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
