"""A row of a benchmark in a process of its own, with a limit of time; what it writes goes into a log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def run_row(arguments: list[str], log: Path, limit: float, **environment: str) -> str | None:
    """Run `python -m` with arguments, on one thread; what ended the process, where it did not end well.

    Args:
        arguments: the module, and what it is given.
        log: receives both of its streams.
        limit: seconds of wall time, after which it is killed with all that it started.
        environment: variables besides those of this process.
    """
    variables: Mapping[str, str] = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=stream, stderr=stream, env=variables, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"timeout: not done after {limit:.0f} s"
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return None if code == 0 else failed_process(code, log)


def failed_process(code: int, log: Path) -> str:
    """What ended a process: its signal, or the last line that it wrote."""
    if code < 0:
        return f"crash: ended by {signal.Signals(-code).name}"
    return "crash: " + (log.read_text().strip().splitlines() or ["no word"])[-1]
