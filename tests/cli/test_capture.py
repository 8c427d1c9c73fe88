import sys

import pytest

from remat.cli import main
from remat.cli.factories import find, read_setting
from remat.errors import RematError
from remat.exec.weightless import graph_without_weights
from remat.ir import load
from remat.zoo import large

LITTLE = ["--set", "layers=2", "--set", "width=64", "--set", "batch=2", "--set", "time=16", "--set", "vocabulary=100"]


def test_the_graph_that_is_written_is_the_one_that_is_captured(tmp_path, capsys):
    target = tmp_path / "gpt.json.gz"
    assert main(["capture", "remat.zoo.large:gpt", *LITTLE, "--device-model", "v100", "-o", str(target)]) == 0
    expected = graph_without_weights(lambda: large.gpt(2, width=64, batch=2, time=16, vocabulary=100))
    assert load(target) == expected
    said = capsys.readouterr().out
    assert f"time       {expected.time} ns" in said
    assert "costed as v100" in said
    assert "weights" in said


def test_a_factory_in_the_current_directory_is_found(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_models.py").write_text(
        "import torch\n"
        "class Made:\n"
        "    @staticmethod\n"
        "    def small(rows=2, *, head='sum'):\n"
        "        assert head == 'mean'\n"
        "        return torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0)), torch.randn(rows, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    assert main(["capture", "my_models:Made.small", "--set", "rows=3", "--set", "head=mean", "-o", "small.json"]) == 0
    assert load("small.json").name == "Sequential"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["remat.zoo.large"], "C-FACTORY"),
        (["remat.zoo.largest:gpt"], "there is no module 'remat.zoo.largest'"),
        (["remat.zoo.large:gpt5"], "C-FACTORY"),
        (["remat.zoo.large:__doc__"], "not a function"),
        (["remat.zoo.large:gpt", "--set", "400"], "C-SETTING"),
        (["remat.zoo.large:gpt", "--device-model", "abacus"], "v100"),
        (["remat.zoo.large:gpt", "--set", "layers='many'"], "X-FACTORY"),
    ],
)
def test_a_wrong_call_is_one_clear_message_and_writes_nothing(tmp_path, capsys, arguments, says):
    target = tmp_path / "none.json"
    assert main(["capture", *arguments, "-o", str(target)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert says in captured.err
    assert not target.exists()


def test_settings_are_literals_or_else_text():
    assert read_setting("layers=400") == ("layers", 400)
    assert read_setting("blocks=(3, 4)") == ("blocks", (3, 4))
    assert read_setting("name=a=b") == ("name", "a=b")
    with pytest.raises(RematError, match="C-SETTING"):
        read_setting("4=four")


def test_a_name_is_found_through_classes_too():
    assert find("remat.zoo.large:gpt24") is large.gpt24
    assert find("remat.zoo.gpt2:GPT2.forward").__name__ == "forward"
