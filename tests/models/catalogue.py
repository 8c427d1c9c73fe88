"""The catalogue: every model by name. What needs an extra is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

from tests.models.model import Model
from tests.models.operators import declare_torchvision_operators

TABLES = {
    "torch": ("alone",),
    "transformers": ("transformers_text", "transformers_senses"),
    "diffusers": ("diffusers_models",),
    "timm": ("timm_models",),
    "torchvision": ("torchvision_models",),
}
"""The modules that hold each package's entries."""
PREFIXES = {"hf": "transformers"} | {package: package for package in TABLES if package != "transformers"}


def missing() -> tuple[str, ...]:
    """The packages of the extra `models` that are not installed."""
    return tuple(package for package in TABLES if find_spec(package) is None)


def models(packages: Iterable[str] = tuple(TABLES)) -> tuple[Model, ...]:
    """The entries of some packages, in the catalogue's order.

    Raises:
        ModuleNotFoundError: one of them is not installed; `make models-venv` installs them.
    """
    declare_torchvision_operators()
    tables = [import_module(f"tests.models.{table}") for package in packages for table in TABLES[package]]
    return tuple(model for table in tables for model in table.MODELS)


def model_named(name: str) -> Model:
    """One entry; only its own package is imported.

    Raises:
        KeyError: no entry has this name.
    """
    package = PREFIXES[name.partition("-")[0]]
    return {model.name: model for model in models((package,))}[name]
