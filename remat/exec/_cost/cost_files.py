"""Measured costs on disk, so that a process measures nothing that another process has measured on this machine.

One file for each device, version of torch and of this library, number of threads, and setting of torch that chooses kernels; its
name is a digest of these, and it says them. Files are written whole, hold a checksum, and are bounded in number and length.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import define, frozen

import remat
from remat._warn import RematWarning, warn
from remat.exec._cost.cost import OpCost
from remat.exec._cost.machine import machine_of
from remat.ir.json_document import write_whole

logger = logging.getLogger(__name__)

FOLDER = "REMAT_CACHE_DIR"
"""The environment variable that names the folder; "off": nothing is read or written."""
OFF = "off"
FORM = "remat-costs/2"
MOST_ENTRIES = 20_000
"""Signatures in a file, of some 200 bytes each; the least recently used are forgotten."""
MOST_FILES = 16
"""Files in the folder; the ones that were not written for longest are removed."""
PAUSE = 10.0
"""Least seconds between two writes of a file by one process, besides the one at its end."""


@frozen
class Entry:
    """A measured cost, and how many timed calls it rests on."""

    cost: OpCost
    calls: int


def cache_folder() -> Path | None:
    """Where costs are kept; None: nowhere."""
    named = os.environ.get(FOLDER)
    if named is not None:
        return None if named in ("", OFF) else Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return Path(base) / "remat" if os.path.isabs(base) else Path("~/.cache/remat").expanduser()


def conditions(device: torch.device) -> dict[str, str]:
    """What costs hold for: all of it is in the name of their file."""
    kernels = [
        f"deterministic {torch.are_deterministic_algorithms_enabled()}",
        f"products of float32 {torch.get_float32_matmul_precision()}",
    ]
    if device.type == "cuda":
        cudnn = torch.backends.cudnn
        kernels.append(f"cuDNN {cudnn.enabled} {cudnn.benchmark} {cudnn.deterministic}")
    else:
        kernels.append(f"oneDNN {torch.backends.mkldnn.is_available()} {torch.backends.mkldnn.enabled}")
    return {
        "form": FORM,
        "machine": machine_of(device),
        "torch": torch.__version__,
        "remat": remat.__version__,
        "kernels": ", ".join(kernels),
    }


def cost_file(device: torch.device) -> CostFile | None:
    """The file of the costs of a device as they are now; None: costs are not kept."""
    folder = cache_folder()
    if folder is None:
        return None
    about = conditions(device)
    path = folder / f"costs-{_digest(about)[:24]}.json"
    if path not in _files:
        _files[path] = CostFile(path, about)
    return _files[path]


@define(eq=False)
class CostFile:
    """The costs of one file, and those of this process that are not in it yet.

    Attributes:
        path: of the file.
        about: what its costs hold for.
        entries: by signature, the most recently used last; None: not read yet.
    """

    path: Path
    about: Mapping[str, str]
    entries: dict[str, Entry] | None = None
    _unwritten: bool = False
    _written: float | None = None
    _warned: bool = False

    def costs_of(self, signatures: Iterable[str], *, calls: int) -> dict[str, OpCost]:
        """The costs of those signatures that were measured by at least so many calls."""
        if self.entries is None:
            self.entries = self._read()
        costs = {}
        for text in signatures:
            entry = self.entries.get(text)
            if entry is not None and entry.calls >= calls:
                self.entries[text] = self.entries.pop(text)
                costs[text] = entry.cost
        return costs

    def add(self, entries: Mapping[str, Entry]) -> None:
        """Take new costs, and write them if that was not done just now; else they are written at the end of the process."""
        if not entries:
            return
        mine = {text: entry for text, entry in (self.entries or {}).items() if text not in entries}
        self.entries = mine | dict(entries)
        self._unwritten = True
        if self._written is None or time.monotonic() - self._written >= PAUSE:
            self.write()

    def write(self) -> None:
        """Write what is new, with what other processes have written meanwhile."""
        if not self._unwritten:
            return
        mine = self.entries or {}
        others = {text: entry for text, entry in self._read().items() if text not in mine}
        self.entries = dict(list((others | mine).items())[-MOST_ENTRIES:])
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, self._text())
            _remove_old(self.path.parent)
        except OSError as error:
            self._tell(f"measured costs are not kept in {self.path.parent}: {error}. Set {FOLDER}, or {FOLDER}={OFF}.")
        self._unwritten, self._written = False, time.monotonic()

    def _text(self) -> bytes:
        costs = {text: _row(entry) for text, entry in (self.entries or {}).items()}
        return json.dumps({"about": self.about, "checksum": _digest(costs), "costs": costs}).encode()

    def _read(self) -> dict[str, Entry]:
        """The entries of the file; none where there is no file, or where it is damaged, which is told once."""
        try:
            document = json.loads(self.path.read_bytes())
            about, costs = document["about"], document["costs"]
            if about != self.about:
                raise ValueError("it says that its costs are of another machine, version or setting")
            if document["checksum"] != _digest(costs):
                raise ValueError("its checksum is wrong")
            return {text: _entry(row) for text, row in costs.items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._tell(f"{self.path} cannot be read: {error}. Its costs are measured again.")
        except (ValueError, TypeError, KeyError) as error:
            what = f"{self.path} is damaged ({error!s:.80}); its costs are measured again, and the file is replaced."
            self._tell(what)
        return {}

    def _tell(self, what: str) -> None:
        logger.warning(what) if self._warned else warn(what, RematWarning)
        self._warned = True


_files: dict[Path, CostFile] = {}


@atexit.register
def write_all() -> None:
    """Write what every file lacks."""
    for file in _files.values():
        file.write()


def _remove_old(folder: Path) -> None:
    """Remove the files that are too many, those written longest ago first."""
    files = sorted(folder.glob("costs-*.json"), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - MOST_FILES)]:
        path.unlink(missing_ok=True)


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def _row(entry: Entry) -> list[Any]:
    cost = entry.cost
    return [cost.time, cost.workspace, list(cost.outputs), cost.host, entry.calls]


def _entry(row: Any) -> Entry:
    time_ns, workspace, outputs, host, calls = row
    numbers = (time_ns, workspace, host, calls, *(size for size in outputs if size is not None))
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a cost is no number")
    return Entry(OpCost(time=time_ns, workspace=workspace, outputs=tuple(outputs), host=host), calls)


__all__ = ["FOLDER", "MOST_ENTRIES", "MOST_FILES", "OFF", "CostFile", "Entry", "cache_folder", "cost_file", "write_all"]
