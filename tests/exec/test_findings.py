"""What was found from outside on real models, line by line: silent wrongs (A), crashes (B), bare without need (C), budgets (D).

`FINDINGS` names for each line the tests that hold it. What other issues mend is in `test_findings_elsewhere.py`; section E, what
works, in `test_findings_kept.py`.
"""

import ast
import inspect
import re
import time
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat.exec
from remat.errors import BadArgument, Uncapturable
from remat.exec.weightless import capture_without_weights
from remat.zoo import GPT2
from tests.exec.odd.base import Body
from tests.exec.odd.judging import EITHER, EXACT, ODDS, ROWS, WIDTH, Odd, judge, rows
from tests.exec.support import LIGHT

EASY = {"cost": "estimate", "solver": LIGHT, "rehearse": False, "on_uncapturable": "raise"}


def odds(*names):
    return tuple(f"test_odd_modules.py::test_odd_module_is_exact_or_refused[{name}]" for name in names)


def elsewhere(*names):
    return tuple(f"test_findings_elsewhere.py::{name}" for name in names)


def audits(*names):
    return tuple(f"test_audits.py::{name}" for name in names)


def here(*names):
    return tuple(f"test_findings.py::{name}" for name in names)


FINDINGS = {
    # A. Silent wrong training
    "A: random, numpy.random and time frozen": odds(
        "python-random-decides-a-branch", "numpy-random-is-a-factor", "numpy-makes-a-mask", "layer-drop-by-python",
        "random-generator-of-its-own", "clock-is-a-factor",
    ),
    "A: weights tied at wrap, untied after": odds("weights-untied", "weights-untied-before-the-first-call", "weights-tied"),
    "A: counters and state frozen": odds(
        "counter-in-a-dict", "counter-in-a-helper-object", "counter-in-a-closure", "list-of-sizes-appended",
        "counter-in-a-global-dict", "counter-on-the-class",
    ),
    "A: functional tensors left in lists": odds("list-of-tensors-appended", "tensor-in-a-global-cache"),
    "A: hook tables not put back": (
        *odds("hook-registered-in-the-first-forward", "hooks-that-capture-outputs"),
        *here("test_hugging_face_as_called", "test_llama_returns_its_hidden_states"),
    ),
    "A: changed after wrap, ignored": odds(
        "dropout-probability-changed", "batch-norm-momentum-changed", "float-attribute-changed",
        "layer-swapped-for-one-of-its-class", "layer-swapped-for-one-with-other-settings", "forward-of-a-submodule-set",
        "hook-on-a-submodule-added",
    ),
    "A: forward set on the instance bypasses the plan": (
        *odds("forward-of-the-module-set", "forward-of-the-module-wrapped-once-more"),
        *here("test_the_report_says_that_the_last_call_ran_bare"),
    ),
    "A: bf16 dropout gradients differ": here("test_bf16_dropout_is_exact", "test_gpt2_under_autocast_is_exact"),
    "A: eval with gradients runs bare": odds("eval-with-gradients", "eval-after-the-wrap"),
    # B. Crashes and internal errors
    "B: the interpreter ends with a segmentation fault": audits("test_a_script_with_its_loss_outside_ends_well"),
    "B: two wrapped modules and one optimizer step": audits("test_two_modules_with_losses_outside_and_one_optimizer_step"),
    "B: planning inside the user's profile ends it": audits(
        "test_planning_within_a_profile_leaves_it_alone_and_measures",
        "test_a_profile_that_starts_while_an_audit_is_on_sees_what_it_should",
    ),
    "B: torch.compile around and inside": elsewhere(
        "test_a_compiled_module_is_planned", "test_a_wrapped_module_compiles", "test_trainer_compiles"
    ),
    "B: norms under bf16 autocast, float32 LSTM": (
        "test_types.py::test_it_trains_as_eager_does_and_its_peak_holds", *odds("lstm-inside", "autocast-inside")
    ),
    "B: an interrupt inside a kernel": (
        "test_planning.py::test_an_interruption_keeps_the_best_plan",
        "../algorithms/test_compilation.py::test_an_interruption_inside_a_kernel_keeps_the_best_plan",
    ),
    "B: package folder and home read-only": (
        "../algorithms/test_compilation.py::test_kernels_work_where_neither_the_package_nor_the_home_can_be_written",
    ),
    "B: with loss=, eval() calls the loss": here("test_eval_calls_the_module_where_the_loss_is_given"),
    "B: any other error of a stage": (
        "test_refusals.py::test_any_error_of_a_stage_becomes_one_refusal",
        "test_refusals.py::test_a_step_that_does_not_run_is_refused_with_its_line_and_module",
    ),
    "B: sparse embedding, DataParallel, lazy modules": odds("sparse-embedding", "data-parallel", "lazy-linear"),
    "B: PatchTST's view": here("test_hugging_face_as_called"),
    "B: unrolled GRU plans for more than a minute": elsewhere("test_an_unrolled_gru_waits_little_for_bounds_of_several_instants"),
    # C. Runs bare without need
    "C: attention masks": (
        *odds("mask-all-decides", "transformer-encoder-with-padding"), *here("test_hugging_face_as_called"),
    ),
    "C: caches as outputs": (*odds("custom-object-with-tensors"), *here("test_hugging_face_as_called")),
    "C: hooks installed by the forward": odds("hooks-that-capture-outputs"),
    "C: dataclass outputs": odds("dataclass-with-the-loss-inside", "dataclass-with-the-loss-outside"),
    "C: BatchNorm(momentum=None)": odds("batch-norm-with-cumulative-average"),
    "C: class weights in the closure of loss=": odds("class-weights-in-the-closure-of-the-loss"),
    "C: constructors that read a value, without weights": here(
        "test_a_constructor_that_reads_a_value_is_captured_without_weights", "test_timm_is_captured_without_weights"
    ),
    "C: RAFT's scratch attribute": (
        *odds("scratch-tensor-written-before-it-is-read"), *here("test_raft_is_exact_or_refused"),
    ),
    "C: DTensor parameters": (
        "test_ranks.py::check_a_module_that_is_sharded_at_the_root",
        "test_ranks.py::check_blocks_that_are_sharded_one_by_one",
    ),
    "C: messages name neither module nor line": here("test_a_refusal_names_the_path_the_line_and_the_way_out"),
    "C: Llama with masks of ones": here("test_llama_with_a_mask_of_ones_is_exact"),
    # D. Budgets, deadlines, time
    "D: the first wrap on a fresh machine": (
        "../algorithms/test_compilation.py::test_after_helpers_have_filled_an_empty_cache_no_kernel_of_a_plan_compiles",
    ),
    "D: seconds=1 finds nothing": (
        "test_planning.py::test_a_feasible_budget_has_a_plan_however_short_the_time",
        "../algorithms/test_deadlines.py::test_no_piece_of_work_begins_after_the_end",
    ),
    "D: Infeasible for a toy takes 7 to 10 s": (
        "test_planning.py::test_the_search_for_the_smallest_budget_keeps_to_the_deadline",
        "test_planning.py::test_few_budgets_are_asked_for",
    ),
    "D: a block of a larger net is charged the rest": audits(
        "test_a_block_of_a_larger_net_answers_for_its_own_memory_alone"
    ),
    "D: a plan for each new length": elsewhere("test_a_new_length_costs_a_blink"),
    "D: planning time of MLPs": ("test_planning.py::test_the_report_shows_the_seconds_of_every_stage",),
    "D: a plan for each value and spelling of an argument": here(
        "test_a_number_that_changes_nothing_is_not_planned_again", "test_one_call_spelled_three_ways_has_one_plan"
    ),
    "D: ranks plan differently": (
        "test_ranks.py::check_a_share_is_of_the_step_that_holds_most",
        "test_ranks.py::check_costs_are_the_largest_and_one_rank_plans",
        "test_ranks.py::check_a_later_step_without_a_plan_is_refused_by_all",
    ),
    "D: the step that rebuilds buckets is over the budget": (
        "test_ranks.py::check_the_step_that_rebuilds_buckets_is_within_the_budget",
    ),
}  # fmt: skip
"""A line of the findings and where it is tested; in this folder."""


@cache
def functions(file):
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("line", FINDINGS)
def test_each_finding_has_its_tests(line):
    assert FINDINGS[line]
    for test in FINDINGS[line]:
        file, _, name = test.partition("::")
        function, _, parameter = name.partition("[")
        assert function in functions(Path(__file__).parent / file), test
        assert not parameter or parameter.rstrip("]") in ODDS, test


# -- A ---------------------------------------------------------------------------------------------------------------------


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 64)

    def forward(self, x):
        return functional.dropout(self.linear(x), 0.1, True).float().square().mean()


def test_bf16_dropout_is_exact():
    case = Odd(
        name="bf16-dropout", build=lambda: Dropped().bfloat16(), expect=EXACT, options={"budget": "100%"},
        inputs=lambda step: tuple(t.bfloat16() for t in rows(step)),
    )  # fmt: skip
    assert judge(case) == EXACT


class UnderAutocast(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(*args)


def tokens(step, batch=4, length=32):
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randint(64, (2, batch, length), generator=generator))


def test_gpt2_under_autocast_is_exact():
    case = Odd(
        name="gpt2-autocast", expect=EXACT, inputs=tokens,
        build=lambda: UnderAutocast(GPT2(layers=2, width=32, heads=2, vocabulary=64, context=32)),
    )  # fmt: skip
    assert judge(case) == EXACT


class Hard(Body):
    def forward(self, x, hard=False):
        return super().forward(x) * (1 + time.time() % 1 if hard else 1)


def test_the_report_says_that_the_last_call_ran_bare():
    wrapped = remat.exec.wrap(Hard(), rows(0), "80%", **(EASY | {"on_uncapturable": "bare"}))
    wrapped(*rows(0)).backward()
    assert remat.exec.report(wrapped).source
    with pytest.warns(remat.exec.RematWarning):
        wrapped(*rows(0), hard=True).backward()
    try:
        words = str(remat.exec.report(wrapped))
    except BadArgument as error:
        words = str(error)
    assert "falls back to the unwrapped" in words
    wrapped(*rows(0)).backward()
    assert "falls back" not in str(remat.exec.report(wrapped))


# -- B ---------------------------------------------------------------------------------------------------------------------


def test_eval_calls_the_module_where_the_loss_is_given():
    def loss(module, x, target):
        return functional.mse_loss(module(x), target)

    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    x = torch.randn(8, 16)
    wrapped = remat.exec.wrap(module, (x, x), "64KiB", loss=loss, **EASY)
    for context in (torch.no_grad(), torch.enable_grad(), torch.inference_mode()):
        with context:
            assert torch.equal(wrapped.eval()(x), module(x))
    wrapped.train()(x, x).backward()
    assert module[0].weight.grad is not None


# -- C: Hugging Face and others as they are called -------------------------------------------------------------------------


def catalogued(name, expect, package="transformers", **more):
    """A case from the catalogue of real models, called as its users call it, plus what is given."""
    pytest.importorskip(package)
    from tests.models.catalogue import model_named

    entry = model_named(name)
    return Odd(
        name=name, build=lambda: entry.build().module, expect=expect, inputs=lambda step: entry.build(seed=step).named() | more,
        loss=lambda _, out: entry.loss(out), options={"budget": "80%"},
    )  # fmt: skip


def assert_judged(case):
    verdict = judge(case)
    assert case.expect in (verdict, EITHER), f"{case.name} is {verdict}"


CALLED = {
    "hf-gpt2": EXACT, "hf-bert": EXACT, "hf-t5": EXACT, "hf-llama": EXACT, "hf-clip": EXACT, "hf-whisper": EITHER,
    "hf-segformer": EITHER, "hf-hubert": EITHER, "hf-detr": EITHER, "hf-patchtst": EITHER,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLED)
def test_hugging_face_as_called(name):
    """With masks, default caches, and labels; afterwards the bare module trains as before."""
    assert_judged(catalogued(name, CALLED[name]))


def test_llama_returns_its_hidden_states():
    assert_judged(catalogued("hf-llama", EITHER, output_hidden_states=True))


def test_llama_with_a_mask_of_ones_is_exact():
    pytest.importorskip("transformers")
    from tests.models.catalogue import model_named

    ids = model_named("hf-llama-unpadded").build().named()["input_ids"]
    assert_judged(catalogued("hf-llama-unpadded", EXACT, attention_mask=torch.ones_like(ids)))


def test_raft_is_exact_or_refused():
    assert_judged(catalogued("torchvision-raft", EITHER, "torchvision"))


class DropPaths(nn.Module):
    """As timm constructs its nets: rates by `linspace(...).item()`."""

    def __init__(self, depth=3):
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.3, depth)]
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in self.rates)

    def forward(self, x):
        for rate, layer in zip(self.rates, self.layers, strict=True):
            x = x + functional.dropout(layer(x), rate, self.training)
        return x.square().mean()


def test_a_constructor_that_reads_a_value_is_captured_without_weights():
    graph = capture_without_weights(lambda: (DropPaths(), rows(0))).graph()
    assert len(graph) > len(DropPaths().layers)


def test_timm_is_captured_without_weights():
    timm = pytest.importorskip("timm")
    made = capture_without_weights(lambda: (timm.create_model("vit_tiny_patch16_224"), torch.randn(2, 3, 224, 224)))
    assert len(made.graph()) > 100


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x) * (time.time() % 1)


def test_a_refusal_names_the_path_the_line_and_the_way_out():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.GELU(), Inner()))
    with pytest.raises(Uncapturable) as refused:
        remat.exec.wrap(module, rows(0), "100%", **EASY)
    lines, first = inspect.getsourcelines(Inner.forward)
    text = str(refused.value)
    assert re.search(r"(?<![\w.])1\.1(?![\w.])", text), f"the path of the inner module: {text}"
    assert re.search(rf"test_findings\.py\W{{1,3}}(line )?{first + len(lines) - 1}\b", text), text
    assert refused.value.fix


# -- D: keys of arguments --------------------------------------------------------------------------------------------------


class Arguments(Body):
    def forward(self, x, y=None, number=0, temperature=1.0, name="plain"):
        if number > 1000:
            x = x * 2
        x = self.hidden(x)
        return self.loss(x if y is None else x + y)


@pytest.mark.parametrize("argument", [{"number": 7}, {"temperature": 0.3}, {"name": "other"}], ids=str)
def test_a_number_that_changes_nothing_is_not_planned_again(argument):
    wrapped = remat.exec.wrap(Arguments(), rows(0), "80%", **EASY)
    for _ in range(2):
        wrapped(*rows(0), **argument).backward()
    wrapped(*rows(0), **{"number": 8} | argument).backward()
    assert remat.exec.report(wrapped).plans == 1


def test_a_number_that_changes_something_is_seen():
    assert_judged(
        Odd(
            name="arguments", build=Arguments, expect=EXACT,
            inputs=lambda step: {"x": rows(0)[0], "number": (0, 1, 2000, 2)[step]},
        )
    )  # fmt: skip


def test_one_call_spelled_three_ways_has_one_plan():
    x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    wrapped = remat.exec.wrap(Arguments(), (x, y), "80%", **EASY)
    for loss in (wrapped(x, y), wrapped(x, y=y), wrapped(y=y, x=x), wrapped(x, y, 0, temperature=1.0)):
        loss.backward()
    assert remat.exec.report(wrapped).plans == 1


@pytest.mark.parametrize(
    "name", ["step", "module", "model", "args", "kwargs", "state", "sample", "tensors", "planned", "loss"]
)
def test_an_argument_may_have_any_name(name):
    source = f"def forward(self, x, *, {name}): return self.loss(self.hidden(x) + {name})"
    names = {}
    exec(source, names)
    named = type("Named", (Body,), {"forward": names["forward"]})
    y = torch.randn(ROWS, WIDTH)
    assert_judged(Odd(name=name, build=named, expect=EXACT, inputs=lambda step: {"x": rows(step)[0], name: y}))
