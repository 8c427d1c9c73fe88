"""`make notebooks`: runs the notebooks of docs/notebooks anew, each in a kernel of its own, and stores them with what they print.

The site shows them as they are stored (`hooks.py`); the suite runs their code without a kernel (`test_notebooks.py`).
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "notebooks"
SECONDS = 300
"""Longest a cell may run."""
TEXTS = re.compile(r"^!\[(.*)\]$", re.M)
"""In the cell before a picture: a line of its own, `![what the next picture shows]`."""


def stored() -> list[Path]:
    """All notebooks."""
    return sorted(FOLDER.glob("*.ipynb"))


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of a stored notebook."""
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def source(cell: dict[str, Any]) -> str:
    """The text of a cell."""
    return "".join(cell["source"])


def page_of(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page of Markdown, and its pictures by file name.

    Raises:
        ValueError: a picture without words, or a cell that was not run.
    """
    parts, pictures, words = [], dict[str, bytes](), ""
    for number, cell in enumerate(cells_of(path)):
        if cell["cell_type"] == "markdown":
            words = next(iter(TEXTS.findall(source(cell))), "")
            parts.append(TEXTS.sub("", source(cell)).rstrip())
            continue
        if cell["execution_count"] is None:
            raise ValueError(f"{path.name}, cell {number}: not run; `make notebooks` runs it.")
        parts.append(f"```python\n{source(cell)}\n```")
        for output in cell["outputs"]:
            if "image/png" in output.get("data", {}):
                if not words:
                    raise ValueError(f"{path.name}, cell {number}: a picture without words before it.")
                name = f"{path.stem}-{number}.png"
                pictures[name] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![{words}]({name})")
            else:
                text = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
                parts.append(f"```text\n{text.rstrip()}\n```")
    file = f"[This page as a notebook]({path.name}), as it was run."
    return "\n\n".join([*parts, file, ""]), pictures


def run_anew(path: Path) -> None:
    """Run all cells in a new kernel and store the notebook with their outputs, without times of execution."""
    import nbformat  # an extra of this command alone
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=SECONDS, record_timing=False, resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        for output in cell.get("outputs", []):
            output.pop("execution_count", None) if output.output_type != "execute_result" else None
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def main() -> None:
    """Run all."""
    for path in stored():
        run_anew(path)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
