"""What cannot be captured, costed, lowered or rehearsed is one clear refusal: the reason, the module and the way out."""

import gc
import logging
import os
import stat
import warnings

import pytest
import torch
import torch.fx.traceback as fx_traceback
from torch import nn

import remat.exec
from remat.errors import Uncapturable
from remat.exec import RematWarning
from remat.exec._program.refusals import refusing
from remat.exec._run.lowering import lower
from remat.exec._run.rehearsal import rehearse
from remat.exec._trace.walk import _names
from remat.ir import dump
from tests.exec.support import LIGHT, Rig

EASY = {"cost": "estimate", "solver": LIGHT, "on_uncapturable": "raise"}


def test_a_sparse_bag_of_embeddings_is_refused_by_name():
    bag = nn.EmbeddingBag(10, 4, mode="sum", sparse=True)
    rows, weights = torch.zeros(2, 3, dtype=torch.long), torch.rand(2, 3, requires_grad=True)
    with pytest.raises(Uncapturable, match=r"X-TENSOR.*EmbeddingBag.* has sparse gradients.*sparse=False"):
        remat.exec.capture(bag, (rows,), {"per_sample_weights": weights})


def test_a_sparse_embedding_is_refused_by_name():
    module = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))
    with pytest.raises(Uncapturable, match=r"X-TENSOR.* in 0 returns a torch.sparse_coo tensor.*sparse=False"):
        remat.exec.wrap(module, torch.randint(10, (5,)), "100%", **EASY)


@pytest.mark.parametrize("lazy", [nn.LazyLinear(4), nn.Sequential(nn.LazyBatchNorm1d())])
def test_a_lazy_module_is_asked_to_be_called_once(lazy):
    x = torch.randn(3, 4)
    with pytest.raises(Uncapturable, match=r"X-LAZY.*have no shapes yet.*call the module once"):
        remat.exec.wrap(lazy, x, "100%", **EASY)
    with torch.no_grad():
        lazy(x)
    remat.exec.wrap(lazy, x, "100%", **EASY)(x).sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("budget", ["60%", None])
def test_a_scripted_module_is_refused_with_the_way_out(budget):
    linear, x = nn.Linear(4, 4), torch.randn(3, 4)
    for module in (torch.jit.script(linear), torch.jit.trace(linear, x), nn.Sequential(torch.jit.script(linear))):
        with pytest.raises(Uncapturable, match=r"X-MODULE: at the module itself \(.*the eager module"):
            remat.exec.wrap(module, x, budget, **EASY)


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        with torch.profiler.record_function("marked"):
            return self.linear(x).sum()


@pytest.mark.parametrize("module", [Marked(), nn.DataParallel(Marked())])
def test_marks_for_a_profiler_are_no_part_of_the_step(module):
    x = torch.randn(3, 4)
    wrapped = remat.exec.wrap(module, x, "100%", **EASY)
    assert torch.equal(wrapped(x), module(x))


class Scaled(nn.Module):
    """Reads its parameters as an attribute with the name of a global."""

    def __init__(self, scales):
        super().__init__()
        self.scales = nn.ParameterList(scales)

    def forward(self, x):
        for scale in self.scales:
            x = torch.tanh(x * scale)
        return x.square().sum()


EVERYTHING = [nn.Parameter(torch.randn(4)) for _ in range(2)]
scales = EVERYTHING
"""A global with the name of an attribute."""


@pytest.mark.parametrize("gradients", [False, True])
def test_an_attribute_with_the_name_of_a_global_is_no_reason_to_refuse(gradients):
    bare, x = Scaled(EVERYTHING), torch.randn(2, 4)
    bare.zero_grad()
    bare(x).backward()
    expected = [parameter.grad for parameter in bare.parameters()]
    for parameter in bare.parameters():
        parameter.grad = torch.zeros_like(parameter) if gradients else None
    remat.exec.wrap(bare, x, "100%", **EASY)(x).backward()
    assert all(map(torch.equal, expected, [parameter.grad for parameter in bare.parameters()]))


def test_attributes_are_no_globals_and_globals_of_inner_code_are_found():
    def outer(x):
        class Inner:
            value = EVERYTHING

        return [EASY for _ in x.scales], Inner

    assert set(_names(outer.__code__)) >= {"EVERYTHING", "EASY"}
    assert "scales" not in _names(outer.__code__)


def test_a_step_that_does_not_run_is_refused_with_its_line_and_module():
    rig = Rig(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.randn(3, 4),))
    lowered = lower(rig.program, rig.plan(rig.peak).schedule)
    params = dict(rig.module.named_parameters())
    wrong = (*(params[path] for _, path in rig.program.params), torch.randn(3, 5))
    with pytest.raises(
        Uncapturable, match=r"X-STAGE: the rehearsal stopped at `addmm = .*` \(of 0\) with RuntimeError"
    ):
        rehearse(lowered, wrong)


def test_a_batch_of_a_wrong_width_raises_what_torch_says_and_logs_no_tracebacks():
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)
    try:
        module = remat.exec.wrap(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.ones(64, 8), "1MiB", solver=LIGHT)
        with warnings.catch_warnings(), pytest.raises(RuntimeError, match="cannot be multiplied"):
            warnings.simplefilter("error")
            module(torch.ones(64, 9))
    finally:
        logger.removeHandler(handler)
    assert records == []


@torch.library.custom_op("remat_refusals::track", mutates_args=("largest",))
def track(x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    largest.copy_(torch.maximum(largest, x.abs().max()))
    return x / largest


@track.register_fake
def _(x, largest):
    return torch.empty_like(x)


class Tracked(nn.Module):
    """An operation of the program's that writes to a buffer, and to a tensor of the step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        with torch.no_grad():
            scaled = track(x, self.largest) + track(x, self.largest * 0.5)
        return (self.second(x) * scaled).square().mean()


def test_an_operation_of_the_program_that_writes_is_named_and_runs_under_dtr():
    bare, x = Tracked(), torch.randn(64, 16)
    with pytest.raises(Uncapturable, match=r"X-WRITE.*remat_refusals::track writes to its arguments"):
        remat.exec.wrap(Tracked(), x, budget="80%", on_uncapturable="raise")
    with pytest.warns(RematWarning, match="runs under DTR"):
        wrapped = remat.exec.wrap(Tracked(), x, budget=40_000)
    for _ in range(4):
        bare(x).backward()
        wrapped(x).backward()
    for mine, theirs in zip(wrapped.parameters(), bare.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    assert torch.equal(wrapped.largest, bare.largest)


@pytest.mark.parametrize("error", [KeyError("val"), NotImplementedError("no"), AttributeError("none"), ValueError("v")])
def test_any_error_of_a_stage_becomes_one_refusal(error):
    with (
        pytest.raises(Uncapturable, match=rf"X-STAGE: costing stopped with {type(error).__name__}") as refused,
        refusing("costing"),
    ):
        raise error
    assert refused.value.__cause__ is error


@pytest.mark.parametrize("error", [Uncapturable("X-OP", "what"), MemoryError(), KeyboardInterrupt()])
def test_refusals_and_what_is_not_about_the_step_pass(error):
    with pytest.raises(type(error)) as passed, refusing("costing"):
        raise error
    assert passed.value is error


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_plans_are_written_with_the_umask_of_the_user(tmp_path, mask):
    rig = Rig(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.randn(3, 4),), cost="estimate")
    before = os.umask(mask)
    try:
        dump(rig.graph, tmp_path / "graph.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "graph.json").stat().st_mode) == 0o666 & ~mask
    assert [path.name for path in tmp_path.iterdir()] == ["graph.json"]


@pytest.mark.filterwarnings("error")
def test_an_interruption_leaves_no_notes_of_modules_behind():
    class Interrupted(nn.Module):
        def forward(self, x):
            if fx_traceback.current_meta.get("custom"):
                raise KeyboardInterrupt
            return x

    outer = nn.Sequential(nn.Linear(2, 2), Interrupted())
    with pytest.raises(KeyboardInterrupt):
        remat.exec.wrap(outer, torch.ones(2, 2), "100%", solver=LIGHT)
    gc.collect()  # what is finalized now says nothing
    assert not fx_traceback.current_meta.get("custom")


class Noisy(nn.Module):
    """Adds noise that it draws from a generator."""

    def __init__(self, generator):
        super().__init__()
        self.linear, self.generator = nn.Linear(4, 4), generator

    def forward(self, x, generator=None):
        noise = torch.rand(x.shape, generator=generator or self.generator)
        return torch.tanh(self.linear(x + noise) + torch.zeros_like(x).normal_(generator=self.generator)).sum()


def test_another_generator_than_torchs_is_refused_with_the_line():
    with pytest.raises(
        Uncapturable, match=r"X-RANDOM: .*generator=generator or.* draws from a torch.Generator of its own"
    ):
        remat.exec.wrap(Noisy(torch.Generator()), torch.randn(3, 4), "100%", **EASY)
    with pytest.raises(Uncapturable, match=r"X-INPUT: .* is a Generator. Fix: draw before the call"):
        remat.exec.wrap(Noisy(None), (torch.randn(3, 4), torch.Generator()), "100%", **EASY)


def test_torchs_own_generator_may_be_named():
    module, x = Noisy(torch.default_generator), torch.randn(3, 4)
    wrapped = remat.exec.wrap(module, x, "100%", **EASY)
    losses = []
    for model in (module, wrapped):
        torch.manual_seed(1)
        losses += [model(x), model(x)]
    assert torch.equal(*losses[::2]) and torch.equal(*losses[1::2])


def test_a_packed_sequence_is_named_where_a_kernel_reads_its_batch_sizes():
    packed = nn.utils.rnn.pack_sequence([torch.randn(5, 4), torch.randn(3, 4)])
    with pytest.raises(Uncapturable, match=r"X-TRACE: at the module itself \(LSTM\).*batch sizes of a PackedSequence"):
        remat.exec.capture(nn.LSTM(4, 4), (packed,))
