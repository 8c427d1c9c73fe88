"""Notebooks run, are stored as they were run, and become pages whose pictures have words."""

import base64
import json

import matplotlib
import pytest

from tests.site import notebooks

IDS = [path.stem for path in notebooks.stored()]


def codes(path):
    return [cell for cell in notebooks.cells_of(path) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", notebooks.stored(), ids=IDS)
def test_the_code_of_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    namespace = {"__name__": "notebook"}
    for number, cell in enumerate(codes(path)):
        exec(compile(notebooks.source(cell), f"{path.name}, code {number}", "exec"), namespace)


@pytest.mark.parametrize("path", notebooks.stored(), ids=IDS)
def test_a_notebook_is_stored_as_it_was_run(path):
    assert [cell["execution_count"] for cell in codes(path)] == list(range(1, len(codes(path)) + 1))
    outputs = [output for cell in codes(path) for output in cell["outputs"]]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]
    text, pictures = notebooks.page_of(path)
    assert text.startswith("# ") and pictures
    assert all(picture.startswith(b"\x89PNG") and f"]({name})" in text for name, picture in pictures.items())


def cell(kind, source, **more):
    return {"cell_type": kind, "source": [source], **more}


PICTURE = {"output_type": "display_data", "data": {"image/png": base64.b64encode(b"\x89PNG").decode()}}
LINE = {"output_type": "stream", "text": ["a\n", "b\n"]}


def page(tmp_path, *cells):
    path = tmp_path / "some.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return notebooks.page_of(path)


def test_a_page_has_code_text_and_pictures(tmp_path):
    text, pictures = page(
        tmp_path,
        cell("markdown", "# T\n\n![what is seen]"),
        cell("code", "x", execution_count=1, outputs=[LINE, PICTURE]),
    )
    assert text.startswith("# T\n\n```python\nx\n```\n\n```text\na\nb\n```\n\n![what is seen](some-1.png)")
    assert pictures == {"some-1.png": b"\x89PNG"}
    assert "(some.ipynb)" in text


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([cell("markdown", "# T"), cell("code", "x", execution_count=1, outputs=[PICTURE])], "without words"),
        ([cell("markdown", "# T"), cell("code", "x", execution_count=None, outputs=[])], "make notebooks"),
    ],
)
def test_what_is_no_page_is_refused(tmp_path, cells, message):
    with pytest.raises(ValueError, match=message):
        page(tmp_path, *cells)
