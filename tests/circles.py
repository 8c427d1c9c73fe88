"""Circles of imports: `python -m tests.circles [package …]` prints each, between rooms and between files, and fails on any.

Imports inside functions and those for type checkers count: both say that one file cannot be read without the other.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("remat.algorithms", "remat.exec", "remat.ir", "remat.testing")


def module_of(path: Path) -> str:
    """The dotted name of a file; a package's `__init__.py` has the package's name."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, modules: set[str]) -> Iterator[str]:
    """The modules among `modules` that a file imports; `from package import name` is the package when `name` is no module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in modules or node.module in modules:
                    yield name if name in modules else node.module


def file_imports(package: str) -> dict[str, set[str]]:
    """What each file of a package imports of the package."""
    files = {module_of(path): path for path in sorted((REPOSITORY / package.replace(".", "/")).rglob("*.py"))}
    return {name: set(imported(path, set(files))) - {name} for name, path in files.items()}


def room_of(module: str, package: str) -> str:
    """The sub-package that a module belongs to; the module itself where it lies in the package directly."""
    rooms = module.removeprefix(package + ".").split(".")
    return rooms[0] if module != package else "__init__"


def room_imports(package: str) -> dict[str, set[str]]:
    """What the files of each room import of other rooms."""
    imports: dict[str, set[str]] = {}
    for module, others in file_imports(package).items():
        room = room_of(module, package)
        imports.setdefault(room, set()).update({room_of(other, package) for other in others} - {room})
    return imports


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of nodes that reach each other, of two or more nodes each."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for other in imports.get(waiting.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return seen

    reach = {node: reached(node) for node in imports}
    closed = {node: frozenset(other for other in reach[node] if node in reach.get(other, ())) for node in imports}
    return sorted(sorted(nodes) for nodes in set(closed.values()) if len(nodes) > 1)


def main(packages: list[str]) -> int:
    """Print the circles of each package, or that it has none; 1 when there is one."""
    count = 0
    for package in packages:
        for what, imports in (("rooms", room_imports(package)), ("files", file_imports(package))):
            closed = circles(imports)
            count += len(closed)
            print(
                f"{package}: {len(imports)} {what}, {len(closed) or 'no'} {'circle' if len(closed) == 1 else 'circles'}"
            )
            for nodes in closed:
                print(f"  {', '.join(nodes)}")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PACKAGES)))
