"""The catalogue: every model by name. What needs an extra is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
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


# -- the wide zoo: the same packages, larger, for planning alone ---------------------------------------------------------------

WIDE = {
    "torch": ("wide_derivatives", "wide_sequences", "wide_fields", "wide_relations"),
    "transformers": ("wide_transformers",),
    "diffusers": ("wide_diffusers",),
    "timm": ("wide_pictures",),
}
"""The modules that hold each package's entries of the wide zoo."""
HALVES = ("develop", "report")


def half_of(name: str) -> str:
    """The half of the wide zoo that an architecture belongs to, by the hash of its name: `develop` may guide changes, `report`
    is only reported.
    """
    return HALVES[sha256(name.encode()).digest()[0] % 2]


def wide_models(packages: Iterable[str] | None = None) -> tuple[Model, ...]:
    """The entries of the wide zoo, of some packages; None: of those that are installed. They are captured without weights.

    Raises:
        ModuleNotFoundError: a package that is named is not installed; `make models-venv` installs them.
    """
    declare_torchvision_operators()
    chosen = [package for package in WIDE if package not in missing()] if packages is None else packages
    tables = [import_module(f"tests.models.{table}") for package in chosen for table in WIDE[package]]
    return tuple(model for table in tables for model in table.MODELS)
