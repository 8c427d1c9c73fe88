"""What was found to work from outside (section E of the findings), kept so: each line with its test, in this folder."""

import copy
import gc
import io
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat.exec
from tests.exec.apart import apart
from tests.exec.odd.base import Blocks, Body
from tests.exec.odd.judging import EXACT, WIDTH, Odd, judge, rows
from tests.exec.support import LIGHT, SMALL
from tests.exec.test_findings import assert_judged, functions, odds
from tests.models.operators import declare_torchvision_operators

EASY = {"cost": "estimate", "solver": LIGHT, "rehearse": False, "on_uncapturable": "raise"}


def wrap_tests(*names):
    return tuple(f"test_wrap.py::{name}" for name in names)


def pitfalls(*names):
    return tuple(f"test_pitfalls.py::{name}" for name in names)


def here(*names):
    return tuple(f"test_findings_kept.py::{name}" for name in names)


KEPT = {
    "accumulation": wrap_tests("test_gradients_accumulate"),
    "two forwards and one backward": (
        "test_peer_traps.py::test_several_forwards_before_one_backward_each_hold_their_own",
    ),
    "zero_grad both ways": here("test_gradients_may_be_zeroed_both_ways"),
    "foreach and fused AdamW, LBFGS closures": here("test_optimizers_step_the_same"),
    "clipping": here("test_clipped_gradients_are_the_same"),
    "EMA by deepcopy and by AveragedModel": (*wrap_tests("test_copies_train_on_their_own"), *here("test_averages_follow")),
    "state_dict both ways": (
        *wrap_tests("test_state_parameters_and_class_are_the_modules_own"), *here("test_a_state_is_loaded_both_ways"),
    ),
    "pickle, torch.save": wrap_tests("test_a_pickled_module_plans_anew_and_trains_the_same"),
    "frozen layers": (
        *odds("layer-frozen"), *pitfalls("test_replaced_parameters_modes_and_requires_grad_are_seen"),
    ),
    "threads": here("test_threads_train_at_once"),
    "exceptions in forward and backward": here("test_an_exception_leaves_the_next_step_right"),
    "autograd.grad, hooks of tensors, post-accumulate hooks": wrap_tests("test_gradients_of_a_subset_and_hooks_on_parameters"),
    "hooks of the module": wrap_tests("test_hooks_of_the_module_run_every_time_and_those_inside_are_warned_of"),
    "parametrizations": odds("spectral-norm", "weight-norm-added"),
    "save_on_cpu": here("test_saved_tensors_may_be_kept_elsewhere"),
    "non-reentrant checkpoint inside": odds("densely-connected-with-checkpoints"),
    "DDP with every option": (
        *wrap_tests("test_distributed_data_parallel_gets_the_same_gradients"), *here("test_in_a_group_of_processes"),
    ),
    "FSDP2 at the root, distributed checkpoint": here("test_in_a_group_of_processes"),
    "Accelerate, Lightning, peft": here("test_accelerate_trains", "test_lightning_trains", "test_peft_adapts_before_and_after"),
    "diffusers, timm with Mixup and EMA": here("test_diffusers_train", "test_timm_with_mixup_and_an_average"),
    "multi-task dicts": odds("several-losses-in-a-dict"),
    "detection targets": here("test_targets_in_lists_of_dicts"),
    "1000 steps without growth": here("test_a_thousand_steps_do_not_grow"),
    "SIGINT in steps": here("test_an_interrupt_leaves_the_next_step_right"),
}  # fmt: skip


@pytest.mark.parametrize("line", KEPT)
def test_each_line_has_its_tests(line):
    for test in KEPT[line]:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions(Path(__file__).parent / file), test


def pair(name="mlp", budget="70%"):
    """Bare and wrapped of one case with their samples, in float32, equal to the last bit."""
    bare, sample = SMALL[name].instantiate()
    module, _ = SMALL[name].instantiate()
    return bare, remat.exec.wrap(module, sample, budget, **EASY), sample


def assert_equal(bare, wrapped):
    for (name, x), y in zip(bare.state_dict().items(), wrapped.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def both(bare, wrapped, train):
    """Train both from the same seed; their states are equal."""
    for module in (bare, wrapped):
        torch.manual_seed(3)
        train(module)
    assert_equal(bare, wrapped)


# -- plain loops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_may_be_zeroed_both_ways(to_none):
    bare, wrapped, sample = pair()

    def train(module):
        sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            sgd.zero_grad(set_to_none=to_none)
            module(*sample).backward()
            sgd.step()

    both(bare, wrapped, train)


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.LBFGS, {"max_iter": 4, "lr": 0.1}),
    ],
    ids=["foreach", "fused", "lbfgs"],
)
def test_optimizers_step_the_same(optimizer, settings):
    bare, wrapped, sample = pair()

    def train(module):
        steps = optimizer(module.parameters(), **settings)

        def closure():
            steps.zero_grad()
            loss = module(*sample)
            loss.backward()
            return loss

        for _ in range(3):
            steps.step(closure)

    both(bare, wrapped, train)


def test_clipped_gradients_are_the_same():
    bare, wrapped, sample = pair("gpt2")

    def train(module):
        sgd = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            sgd.zero_grad()
            module(*sample).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            nn.utils.clip_grad_value_(module.parameters(), 0.01)
            sgd.step()

    both(bare, wrapped, train)


def test_averages_follow():
    bare, wrapped, sample = pair("resnet")
    averages = [torch.optim.swa_utils.AveragedModel(module, use_buffers=True) for module in (bare, wrapped)]

    def train(module):
        average = averages[module is wrapped]
        sgd = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            sgd.zero_grad()
            module(*sample).backward()
            sgd.step()
            average.update_parameters(module)

    both(bare, wrapped, train)
    assert_equal(*averages)
    with torch.no_grad():
        assert torch.equal(averages[0].eval()(sample[0]), averages[1].eval()(sample[0]))


def test_a_state_is_loaded_both_ways():
    bare, wrapped, sample = pair()
    other, _ = SMALL["mlp"].instantiate()
    buffer = io.BytesIO()
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
    wrapped.load_state_dict(other.state_dict())
    bare.load_state_dict(other.state_dict())
    both(bare, wrapped, lambda module: module(*sample).backward())
    torch.save(wrapped.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer))
    assert_equal(other, wrapped)


def test_threads_train_at_once():
    pairs = []
    for _ in range(3):
        modules = [Body(dropout=0.0)]  # threads share one generator, in no order
        modules.append(copy.deepcopy(modules[0]))
        pairs.append((modules[0], remat.exec.wrap(modules[1], rows(0), "80%", **EASY)))

    def train(module):
        for _ in range(5):
            module(*rows(0)).backward()

    threads = [threading.Thread(target=train, args=(wrapped,)) for _, wrapped in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for bare, wrapped in pairs:
        train(bare)
        assert all(torch.equal(x.grad, y.grad) for x, y in zip(bare.parameters(), wrapped.parameters(), strict=True))


class Stop(Exception):
    """Raised by a hook."""


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_leaves_the_next_step_right(where):
    bare, wrapped, sample = pair()

    def stop(*_):
        raise Stop

    for module in (bare, wrapped):
        if where == "forward":
            handle = module.register_forward_hook(stop)
        else:
            handle = module.head.weight.register_hook(stop)
        with pytest.raises(Stop):
            module(*sample).backward()
        handle.remove()
        module.zero_grad()
    both(bare, wrapped, lambda module: module(*sample).backward())
    assert all(torch.equal(x.grad, y.grad) for x, y in zip(bare.parameters(), wrapped.parameters(), strict=True))


def test_saved_tensors_may_be_kept_elsewhere():
    bare, wrapped, sample = pair()

    def train(module):
        with torch.autograd.graph.save_on_cpu():
            loss = module(*sample)
        loss.backward()

    both(bare, wrapped, train)
    assert all(torch.equal(x.grad, y.grad) for x, y in zip(bare.parameters(), wrapped.parameters(), strict=True))


class Detector(Blocks):
    """Losses against boxes of each picture, given as a list of dicts."""

    def forward(self, x, targets):
        for block in self.blocks:
            x = block(x)
        parts = zip(x.chunk(len(targets)), targets, strict=True)
        return sum(functional.mse_loss(part[: len(target["boxes"])], target["boxes"]) for part, target in parts)


def with_targets(step):
    generator = torch.Generator().manual_seed(step)
    targets = [{"boxes": torch.randn(n, WIDTH, generator=generator), "name": "picture"} for n in (3, 5, 2, 4)]
    return {"x": rows(step)[0], "targets": targets}


def test_targets_in_lists_of_dicts():
    assert judge(Odd(name="targets", build=Detector, expect=EXACT, inputs=with_targets)) == EXACT


def test_a_thousand_steps_do_not_grow():
    module = Body(layers=2)
    wrapped = remat.exec.wrap(module, rows(0), "90%", **EASY)
    sgd = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    x = rows(0)

    def train(steps):
        for _ in range(steps):
            sgd.zero_grad()
            wrapped(*x).backward()
            sgd.step()
        gc.collect()
        return len(gc.get_objects()), sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())

    before, after = train(20), train(1000)
    assert after[1] <= before[1]  # what earlier tests have left may go
    assert after[0] - before[0] < 100  # a thing a step would be a thousand


def test_an_interrupt_leaves_the_next_step_right():
    bare, wrapped, sample = pair()
    caught = 0
    for _ in range(30):
        timer = threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            for _ in range(200):
                wrapped(*sample).backward()
        except KeyboardInterrupt:
            caught += 1
        finally:
            timer.join()
    assert caught
    wrapped.zero_grad()
    both(bare, wrapped, lambda module: module(*sample).backward())
    assert all(torch.equal(x.grad, y.grad) for x, y in zip(bare.parameters(), wrapped.parameters(), strict=True))


# -- groups of processes ---------------------------------------------------------------------------------------------------


def parallel_grads(module, sample, **options):
    parallel = nn.parallel.DistributedDataParallel(module, **options)
    torch.manual_seed(0)
    for _ in range(3):
        parallel.zero_grad()
        parallel(*sample).backward()
    return [p.grad.clone() for p in module.parameters()]


def check_options(rank):
    for options in (
        {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True},
        {"broadcast_buffers": False}, {"bucket_cap_mb": 0.001},
    ):  # fmt: skip
        bare, wrapped, sample = pair(budget="100%")
        grads = [parallel_grads(module, sample, **options) for module in (bare, wrapped)]
        assert all(torch.equal(x, y) for x, y in zip(*grads, strict=True)), options


def check_fsdp_at_the_root(rank):
    from torch.distributed.fsdp import fully_shard

    bare, wrapped, sample = pair(budget="100%")
    grads = []
    for module in (bare, wrapped):
        fully_shard(module)
        torch.manual_seed(0)
        for _ in range(2):
            module(*sample).backward()
        grads.append([p.grad.to_local().clone() for p in module.parameters()])
    assert all(torch.equal(x, y) for x, y in zip(*grads, strict=True))


def check_distributed_checkpoint(rank):
    import tempfile

    import torch.distributed.checkpoint as dcp

    bare, wrapped, sample = pair()
    wrapped(*sample).backward()
    torch.optim.SGD(wrapped.parameters(), lr=0.1).step()
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"model": wrapped.state_dict()}, checkpoint_id=folder)
        state = {"model": bare.state_dict()}
        dcp.load(state, checkpoint_id=folder)
    assert_equal(bare, wrapped)


CHECKS = [check_options, check_fsdp_at_the_root, check_distributed_checkpoint]


@pytest.fixture(scope="module")
def grouped():
    return apart(CHECKS)


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_in_a_group_of_processes(grouped, name):
    assert grouped[name] == "ok"


# -- packages --------------------------------------------------------------------------------------------------------------


def test_accelerate_trains():
    accelerate = pytest.importorskip("accelerate")
    bare, wrapped, sample = pair()

    def train(module):
        accelerator = accelerate.Accelerator(cpu=True)
        module, sgd = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
        for _ in range(3):
            sgd.zero_grad()
            accelerator.backward(module(*sample))
            sgd.step()

    both(bare, wrapped, train)


def test_lightning_trains():
    declare_torchvision_operators()  # it imports torchvision where that is there
    lightning = pytest.importorskip("lightning")
    bare, wrapped, sample = pair()

    class Training(lightning.LightningModule):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def training_step(self, batch, _):
            return self.module(*batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(module):
        trainer = lightning.Trainer(
            max_steps=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        rows = torch.utils.data.TensorDataset(*sample)
        trainer.fit(Training(module), torch.utils.data.DataLoader(rows, batch_size=len(sample[0])))

    both(bare, wrapped, train)


@pytest.mark.parametrize("order", ["before", "after"])
def test_peft_adapts_before_and_after(order):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["body.0", "body.3", "head"], r=2)

    def adapted(module):
        torch.manual_seed(1)
        return peft.inject_adapter_in_model(settings, module)

    bare, sample = SMALL["mlp"].instantiate()
    module, _ = SMALL["mlp"].instantiate()
    bare = adapted(bare)
    if order == "before":
        wrapped = remat.exec.wrap(adapted(module), sample, "100%", **EASY)
    else:
        wrapped = adapted(remat.exec.wrap(module, sample, "100%", **EASY))
    both(bare, wrapped, lambda module: module(*sample).backward())
    for (name, x), y in zip(bare.named_parameters(), wrapped.parameters(), strict=True):
        assert (x.grad is None and y.grad is None) or torch.equal(x.grad, y.grad), name


def test_diffusers_train():
    pytest.importorskip("diffusers")
    from tests.exec.test_findings import catalogued

    assert_judged(catalogued("diffusers-unet2d", EXACT, "diffusers"))


def test_timm_with_mixup_and_an_average():
    pytest.importorskip("timm")
    from timm.data import Mixup
    from timm.utils import ModelEmaV3

    from tests.models.catalogue import model_named

    built = [model_named("timm-mixer").build() for _ in range(2)]
    (x,) = built[0].args
    bare = built[0].module
    classes = bare(x).shape[1]
    wrapped = remat.exec.wrap(built[1].module, (x,), "90%", loss_reserve="1MiB", **EASY)
    averages = [ModelEmaV3(copy.deepcopy(module), decay=0.9) for module in (bare, wrapped)]

    def train(module):
        import numpy as np

        np.random.seed(0)
        mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=classes)
        sgd = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            sgd.zero_grad()
            mixed, targets = mixup(x.clone(), torch.arange(len(x)) % classes)
            functional.cross_entropy(module(mixed), targets).backward()
            sgd.step()
            averages[module is wrapped].update(module)

    both(bare, wrapped, train)
    assert_equal(*(average.module for average in averages))
