"""What the docs say is executed: every `python` block of every page, the links, the ids of the rules."""

import ast
import doctest
import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.operators import declare_torchvision_operators

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
NEEDS = re.compile(r"^<!-- needs: (.*) -->$", re.M)
"""Packages without which the code of a page cannot run."""
PROCESSES = re.compile(r"^<!-- processes: (.*) -->$", re.M)
"""How many processes the code of a page is for, if it is for several."""
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if FENCE.search(page.read_text())], ids=name_of)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """The blocks of a page run in order, in one namespace and an empty folder; what they assert must hold."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "docs"}
    text = page.read_text()
    for package in " ".join(NEEDS.findall(text)).split():
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        declare_torchvision_operators()
    if processes := PROCESSES.search(text):
        run_in_processes("\n".join(FENCE.findall(text)), processes.group(1))
        return
    for block in FENCE.finditer(text):
        line = text[: block.start()].count("\n") + 2
        code = compile("\n" * (line - 1) + block.group(1), str(page), "exec")
        exec(code, namespace)


TRANSCRIPT = re.compile(r'^```(?:console|python title="(?P<file>[\w.]+)")\n(?P<text>.*?)^```$', re.M | re.S)
SET_UP = ("git clone REPOSITORY remat", "cd remat", "make venv", ". .venv/bin/activate")
"""What has been done where a test runs: the environment of `make venv` is the one it runs in."""
TRANSCRIPTS = [page for page in PAGES if re.search(r"^<!-- transcript -->$", page.read_text(), re.M)]


def commands_of(text):
    """Each command of a transcript, with the lines that answered it."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *lines = part.rstrip("\n").split("\n")
        yield command, lines


def pattern_of(lines):
    """What an answer has to match: times are any times, `…` is any rest of a line, and alone on a line any lines."""
    pattern = ""
    for line in lines:
        if line == "…":
            pattern += r"(?:.*\n)*?"
            continue
        parts = re.split(r"(\d[\d.]* (?:ns|us|ms|s)\b|…)", line)
        pattern += "".join(re.escape(part) if i % 2 == 0 else ".*" for i, part in enumerate(parts)) + r"\n"
    return re.compile(pattern)


@pytest.mark.parametrize("page", TRANSCRIPTS, ids=name_of)
def test_a_transcript_comes_back_as_it_stands(page, tmp_path, monkeypatch, capsys):
    """Its files are written and its commands run in their order, in one folder; what they print is compared."""
    from remat.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    ran = []
    for block in TRANSCRIPT.finditer(page.read_text()):
        if block["file"]:
            Path(block["file"]).write_text(block["text"])
            monkeypatch.delitem(sys.modules, Path(block["file"]).stem, raising=False)
            continue
        for command, lines in commands_of(block["text"]):
            if command in SET_UP:
                continue
            program, *words = shlex.split(command)
            if program == "python":
                runpy.run_path(words[0], run_name="__main__")
            else:
                assert (program, main(words)) == ("remat", 0), command
            answer = capsys.readouterr().out
            assert pattern_of(lines).fullmatch(answer), f"$ {command}\n{answer}"
            ran.append(command)
    assert len(ran) > 3


def test_what_sets_a_transcript_up_is_what_the_makefile_does():
    makefile = (ROOT / "Makefile").read_text()
    assert "venv: $(STAMP)" in makefile and "VENV := .venv\n" in makefile
    assert 'remat = "remat.cli:entry"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("lines", "answer", "same"),
    [
        (["took 3 ms", "end"], "took 12.5 s\nend\n", True),
        (["8 nodes"], "9 nodes\n", False),
        (["a", "…", "b"], "a\nx\ny\nb\n", True),
        (["a", "…", "b"], "a\nx\ny\n", False),
        (["peak … of it)"], "peak 3 MiB (2% of it)\n", True),
        (["a"], "a\nb\n", False),
    ],
)
def test_an_answer_is_compared_but_for_times_and_what_is_left_out(lines, answer, same):
    assert bool(pattern_of(lines).fullmatch(answer)) == same


def run_in_processes(code, count):
    """Run the code of a page as its reader would; it leaves without tearing gloo down, whose threads now and then never end."""
    Path("train.py").write_text(f"{code}\nimport os\n\nos._exit(0)\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    targets = [link for link in LINK.findall(page.read_text()) if "://" not in link and not link.startswith("mailto:")]
    missing = [link for link in targets if not (page.parent / link).exists()]
    assert missing == []


def test_every_rule_has_its_line_in_the_reference():
    from remat.ir import GRAPH_RULES, SCHEDULE_RULES

    page = (ROOT / "docs" / "reference" / "rules.md").read_text()
    missing = [rule for rule in (*GRAPH_RULES, *SCHEDULE_RULES) if rule not in page]
    assert missing == []


RULE = re.compile(r"[A-Z]-[A-Z][A-Z0-9-]*")


def rules_in_the_source():
    """Ids of rules that stand in the source, each with the classes that are raised with it by name."""
    found = {}
    for path in (ROOT / "remat").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and RULE.fullmatch(node.value):
                found.setdefault(node.value, set())
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            rule = call.exc.args[0] if call.exc.args else None
            if isinstance(rule, ast.Constant) and rule.value in found and isinstance(call.exc.func, ast.Name):
                found[rule.value].add(call.exc.func.id)
    return found


def test_every_rule_of_the_source_has_its_row_and_every_row_its_rule():
    page = (ROOT / "docs" / "reference" / "rule-ids.md").read_text()
    rows = {
        rule: (set(re.findall(r"`(\w+)`", errors)), means, way)
        for rule, errors, means, way in re.findall(
            r"^\| `([A-Z]-[^`]*)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", page, re.M
        )
    }
    source = rules_in_the_source()
    assert sorted(rows) == sorted(source)
    assert sorted(re.findall(r"^\| `(\S-\S*)`", page, re.M)) == sorted(rows), "a row of another form, or twice"
    for rule, raised in source.items():
        errors, means, way = rows[rule]
        helpers = {name for name in raised if name.startswith("_")}  # functions that make an error
        assert raised - helpers <= errors and means.strip() and way.strip(), (rule, raised)


@pytest.mark.parametrize("module", ["remat.ir.build", "remat.units"])
def test_examples_in_docstrings(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_every_public_name_of_the_algorithms_has_its_row():
    from remat import algorithms
    from remat.algorithms._plugins.registry import registered

    page = (ROOT / "docs" / "reference" / "algorithms.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)?", page, re.M))
    systems = {name for name, where in registered("solvers").items() if ".named:" in where}
    assert set(rows) - {path.stem for path in (ROOT / "remat" / "algorithms").glob("_*")} == {
        *algorithms.__all__,
        *systems,
    }
    for name in algorithms.__all__:
        module = algorithms._WHERE[name].partition(":")[0]
        assert rows[name] == module.removeprefix("remat.algorithms.").replace(".", "/") + ".py"


def test_every_room_of_the_algorithms_is_named_in_the_reference():
    page = (ROOT / "docs" / "reference" / "algorithms.md").read_text()
    rooms = [path.parent.name for path in (ROOT / "remat" / "algorithms").glob("_*/__init__.py")]
    assert [room for room in rooms if f"| `{room}` |" not in page] == []


def test_every_command_has_its_row_and_every_row_its_command():
    from remat.cli import COMMANDS

    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    rows = re.findall(r"^\| `remat ([\w-]+)", page, re.M)
    assert rows == [name.replace("_", "-") for name in COMMANDS]
