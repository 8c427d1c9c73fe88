"""One version number, and what `make test-versions` makes of wheels."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import remat
from tests.versions import PYTHONS, TORCHLESS, cuda_packages, interpreter

ROOT = Path(__file__).parent.parent


def test_the_version_is_stated_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert ROOT / project["tool"]["hatch"]["version"]["path"] == ROOT / "remat" / "__init__.py"
    assert version("remat") == remat.__version__
    assert f"version: {remat.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_wheels_that_want_cuda_are_told_from_those_that_do_not():
    common = ["filelock", "sympy>=1.13.3", 'optree>=0.13; extra == "optree"', 'triton; extra == "compile"']
    built = ['nvidia-cudnn-cu13==9.19; platform_system == "Linux"', "triton==3.6.0", "cuda-toolkit[cublas]==13.0.2"]
    assert cuda_packages(common) == []
    assert len(cuda_packages(common + built)) == 3


def test_what_needs_no_torch_is_there_and_this_python_is_found():
    assert all((ROOT / path).exists() for path in TORCHLESS)
    assert interpreter(PYTHONS[0]) is not None and interpreter("2.0") is None
