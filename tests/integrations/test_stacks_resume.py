"""What surrounds training in a stack: plans in checkpoints, who acts where two could, and what is refused at once."""

import warnings

import pytest
import torch
from torch import nn

import remat.exec
from remat.algorithms import Solver
from remat.errors import BadArgument
from remat.exec import RematWarning
from remat.exec._module.calls import Wrapped
from tests.models.operators import declare_torchvision_operators
from tests.stacks import models

SECONDS = 1.0


@pytest.fixture
def no_solver(monkeypatch):
    """A switch: from when it is called on, a solver that is asked fails the test."""

    def solve(self, *_, **__):
        raise AssertionError(f"{self!r} was asked")

    return lambda: monkeypatch.setattr(Solver, "solve", solve)


def need(*packages):
    for package in packages:
        pytest.importorskip(package)
    declare_torchvision_operators()


# -- Hugging Face ------------------------------------------------------------------------------------------------------


def trainer(folder, **more):
    from transformers import Trainer, TrainingArguments

    from remat.integrations import RematCallback

    remat_ = more.pop("remat", {})
    model = more.pop("model", None) or models.gpt2()
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(models.WORDS, (16, 16))]
    settings = {
        "max_steps": 2, "save_steps": 1, "per_device_train_batch_size": 4, "use_cpu": True, "report_to": [], "disable_tqdm": True,
    }  # fmt: skip
    return Trainer(
        model,
        TrainingArguments(str(folder), **(settings | more)),
        train_dataset=rows,
        callbacks=[RematCallback("80%", seconds=SECONDS, **remat_)],
    )


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_that_resumes_finds_its_plan(tmp_path, no_solver):
    need("accelerate", "transformers")
    trainer(tmp_path).train()
    assert (tmp_path / "checkpoint-1" / "remat_plan.json.gz").is_file()
    no_solver()
    again = trainer(tmp_path, max_steps=4)
    again.train(resume_from_checkpoint=True)
    report = remat.exec.report(again.model)
    assert "checkpoint-2" in report.origin and report.reruns > 0


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_elsewhere_is_named_by_the_trainer_with_the_mixin(tmp_path, no_solver):
    need("accelerate", "transformers")
    from remat.integrations import RematTrainer

    first = trainer(tmp_path / "a")
    first.train()
    (tmp_path / "a" / "checkpoint-2").rename(tmp_path / "kept")
    no_solver()
    model = models.gpt2()
    bare = trainer(tmp_path / "b", max_steps=3)
    again = RematTrainer(model, bare.args, train_dataset=bare.train_dataset, remat="80%")
    again.train(resume_from_checkpoint=str(tmp_path / "kept"))
    assert "kept" in remat.exec.report(model).origin


@pytest.mark.filterwarnings("ignore")
def test_plans_are_not_saved_where_that_is_switched_off(tmp_path):
    need("accelerate", "transformers")
    trainer(tmp_path, remat={"save_plans": False}).train()
    assert not list(tmp_path.glob("*/remat_plan*"))


def test_with_gradient_checkpointing_too_the_plan_acts_and_a_warning_says_so(tmp_path):
    need("accelerate", "transformers")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = trainer(tmp_path, gradient_checkpointing=True)
        run.train()
    said = [str(one.message) for one in caught if issubclass(one.category, RematWarning)]
    assert len(said) == 1 and "gradient_checkpointing=True" in said[0] and "the plan for 80% acts" in said[0]
    assert not any(getattr(module, "gradient_checkpointing", False) for module in run.model.modules())
    assert remat.exec.report(run.model).reruns > 0


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_without_a_budget_is_as_it_was(tmp_path):
    need("accelerate", "transformers")
    from remat.integrations import RematTrainer

    model, bare = models.gpt2(), trainer(tmp_path)
    run = RematTrainer(model, bare.args, train_dataset=bare.train_dataset)
    run.train()
    assert run.remat_callback is None and not isinstance(model, Wrapped)


def test_arguments_are_read_from_a_command_line():
    need("transformers")
    from transformers import HfArgumentParser

    from remat.integrations import RematArguments

    (arguments,) = HfArgumentParser(RematArguments).parse_args_into_dataclasses(["--budget", "6GiB", "--seconds", "3"])
    assert arguments == RematArguments(budget="6GiB", seconds=3.0)


# -- Lightning ---------------------------------------------------------------------------------------------------------


def fit(folder, module, callback, **more):
    import lightning.pytorch as pl

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    run = pl.Trainer(max_steps=3, default_root_dir=str(folder), callbacks=[callback], **(quiet | more))
    run.fit(
        module, torch.utils.data.DataLoader(models.pictures(), batch_size=64), ckpt_path=more.pop("ckpt_path", None)
    )
    return run


def lightning_module(**children):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = models.Classifier()
            for name, child in children.items():
                setattr(self, name, child)

        def training_step(self, batch, index):
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_resumes_finds_its_plan(tmp_path, no_solver):
    need("lightning")
    import lightning.pytorch as pl

    from remat.integrations import RematLightningCallback

    run = fit(tmp_path, lightning_module(), RematLightningCallback("80%", seconds=SECONDS))
    run.save_checkpoint(tmp_path / "last.ckpt")
    no_solver()
    module, quiet = lightning_module(), {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    again = pl.Trainer(max_steps=4, callbacks=[RematLightningCallback("80%")], default_root_dir=str(tmp_path), **quiet)
    loader = torch.utils.data.DataLoader(models.pictures(), batch_size=64)
    again.fit(module, loader, ckpt_path=str(tmp_path / "last.ckpt"))
    assert remat.exec.report(module.net).origin and remat.exec.report(module.net).reruns > 0


@pytest.mark.filterwarnings("ignore")
def test_a_budget_for_what_the_step_does_not_call_is_refused_after_the_first_step(tmp_path):
    need("lightning")
    from remat.integrations import RematLightningCallback

    with pytest.raises(BadArgument, match="X-UNUSED"):
        fit(tmp_path, lightning_module(), RematLightningCallback("80%", module=""), enable_checkpointing=False)


def test_which_module_gets_the_budget():
    need("lightning")
    from remat.integrations.lightning import module_at

    module = lightning_module(loss=nn.CrossEntropyLoss())
    assert module_at(module, None) is module.net and module_at(module, "net.body") is module.net.body
    assert module_at(module, "") is module
    for root, path in ((lightning_module(other=nn.Linear(2, 2)), None), (module, "nothing"), (nn.Linear(2, 2), None)):
        with pytest.raises(BadArgument, match="X-MODULE-PATH"):
            module_at(root, path)


# -- Accelerate --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_a_state_that_is_loaded_brings_its_plan(tmp_path, no_solver):
    need("accelerate", "transformers")
    from accelerate import Accelerator

    from remat.integrations import with_budget

    def prepared():
        accelerator = Accelerator(cpu=True)
        model = accelerator.prepare(models.gpt2())
        return accelerator, with_budget(accelerator, model, "80%", seconds=SECONDS)

    ids = torch.randint(models.WORDS, (4, 16))
    accelerator, model = prepared()
    model(input_ids=ids, labels=ids).loss.backward()
    accelerator.save_state(str(tmp_path / "state"))
    no_solver()
    accelerator, model = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    model(input_ids=ids, labels=ids).loss.backward()
    assert remat.exec.report(model).origin
