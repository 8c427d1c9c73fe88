"""Child processes: interpreters with the same package on their path, which end when the parent ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import remat


def interpreter(
    code: str,
    *,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start an interpreter that runs `code`; its standard input is a pipe, which is closed when this process ends.

    Args:
        code: what it runs.
        stdout: as of `subprocess.Popen`.
        stderr: likewise.
        environment: variables in addition to those of this process.

    Raises:
        OSError: it cannot be started.
    """
    paths = [str(Path(remat.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **(environment or {})}
    # in a new session: the parent alone handles Ctrl-C
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, env=variables, start_new_session=True,
    )  # fmt: skip


def end_with_parent() -> None:
    """In a child: wait until the parent has ended, or has closed the pipe, then exit at once."""
    while os.read(0, 1):
        pass
    os._exit(1)  # the main thread may be inside a compiler or a solver


def ended(process: subprocess.Popen[bytes]) -> int:
    """Terminate a child that is still running; returns its exit code."""
    if process.poll() is None:
        process.kill()
    code = process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    return code
