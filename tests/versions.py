"""The tests under other versions of Python and torch: `make test-versions`.

One environment for each pair, under build/versions. torch is installed first, alone and pinned, and only where it comes without
CUDA packages; where it does not, the tests that need no torch run instead, once for each Python. What has no interpreter or no
wheel here is said in the closing table and is no failure; a test that fails is, and so is a run in which nothing was tested.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHONS, TORCHES = ("3.11", "3.12", "3.13"), ("2.11.0", "2.12.0", "2.13.0", "2.14.1", "2.15.0")
TORCHLESS = (
    "tests/ir",
    "tests/algorithms",
    "tests/testing",
    "tests/viz",
    "tests/test_plugin.py",
    "property_tests",
)
"""Tests that import no torch."""
TOOLS = ("pytest>=8", "pytest-xdist>=3.5", "jsonschema>=4.20", "dask[distributed]>=2024.1")
CUDA = ("nvidia", "cuda", "triton")
"""Beginnings of the names of packages that only a CUDA build needs."""


def interpreter(version: str) -> str | None:
    """A Python of that version: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    for candidate in (
        *((named,) if named else ()),
        *map(str, sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)),
    ):
        code = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"  # a shim of pyenv may stand for nothing
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return candidate
    return None


def cuda_packages(requirements: list[str]) -> list[str]:
    """Those of a wheel's requirements that only a CUDA build has; extras are not counted."""
    names = [requirement.split(";")[0].strip() for requirement in requirements if "extra ==" not in requirement]
    return [name for name in names if name.lower().startswith(CUDA)]


class Environment:
    """One virtual environment."""

    def __init__(self, python: str, path: Path) -> None:
        self.path = path
        if not (path / "bin" / "python").exists():
            subprocess.run([python, "-m", "venv", str(path)], check=True)

    def python(self, *args: str, check: bool = True, quiet: bool = False) -> subprocess.CompletedProcess[str]:
        """Run its Python in the repository."""
        command = [str(self.path / "bin" / "python"), *args]
        return subprocess.run(command, cwd=ROOT, check=check, text=True, capture_output=quiet)

    def install(self, *what: str) -> None:
        """Install within the constraints of CI, torch as it is."""
        self.python(
            "-m", "pip", "install", "--quiet", "--prefer-binary", "--constraint", str(self.constraints()), *what
        )

    def constraints(self) -> Path:
        """CI's constraints without those on torch, which this environment has already or goes without."""
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        path = self.path / "constraints.txt"
        path.write_text("\n".join(line for line in lines if not line.startswith("torch")) + "\n")
        return path

    def torch(self, version: str, index: str) -> str:
        """Install torch alone; returns why not, or nothing."""
        source = ["--index-url", index] if index else []
        install = ["-m", "pip", "install", "--only-binary=:all:", *source, f"torch=={version}"]
        seen = self.python(*install, "--quiet", "--no-deps", "--dry-run", "--report", "-", check=False, quiet=True)
        if seen.returncode != 0:
            return "no wheel"
        wheels = json.loads(seen.stdout)["install"]  # none: it is installed already
        needs = [name for wheel in wheels for name in cuda_packages(wheel["metadata"].get("requires_dist", []))]
        if needs:
            return f"its wheel wants {len(needs)} CUDA packages"
        self.python(*install, "--quiet")
        return ""

    def tests(self, paths: tuple[str, ...], workers: int) -> str:
        """Run tests; what to say of them."""
        self.python("-m", "pip", "install", "--quiet", "--no-deps", "--editable", "tests/plugin")
        done = self.python("-m", "pytest", "-n", str(workers), "--dist", "loadfile", *paths, check=False)
        return "passed" if done.returncode == 0 else "FAILED"


def rows(pythons: list[str], torches: list[str], index: str, workers: int) -> list[tuple[str, str, str]]:
    """Python, torch and what came of the pair."""
    table: list[tuple[str, str, str]] = []
    for version in pythons:
        python = interpreter(version)
        if python is None:
            table.append((version, "any", "no interpreter"))
            continue
        tested = False
        for torch in torches:
            environment = Environment(python, ROOT / "build" / "versions" / f"python{version}-torch{torch}")
            reason = environment.torch(torch, index)
            if not reason:
                environment.install("--editable", ".[dev]")
                reason, tested = environment.tests((), workers), True
            table.append((version, torch, reason))
        if not tested:
            environment = Environment(python, ROOT / "build" / "versions" / f"python{version}")
            environment.install("--editable", ".[ilp,viz,testing]", *TOOLS)
            table.append((version, "none", environment.tests(TORCHLESS, workers)))
    return table


def main() -> int:
    """Test every pair and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", default=",".join(PYTHONS), help="versions, with commas")
    parser.add_argument("--torch", default=",".join(TORCHES), help="versions, with commas")
    parser.add_argument("--index", default="", help="index that torch comes from; none: what pip is configured with")
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    table = rows(chosen.python.split(","), chosen.torch.split(","), chosen.index, chosen.workers)
    for python, torch, said in table:
        print(f"python {python}  torch {torch:8} {said}")
    results = [said for _, _, said in table]
    return 0 if "FAILED" not in results and "passed" in results else 1


if __name__ == "__main__":
    sys.exit(main())
