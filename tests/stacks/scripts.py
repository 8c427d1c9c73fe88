"""The scripts: each stack as its users write it, with the one line that gives it a budget."""

from __future__ import annotations

import warnings

import torch
from torch.nn import functional

import remat.exec
from tests.stacks import models
from tests.stacks.stack import Run, Stack

SECONDS = 2.0
SFT_BUDGET = "98%"
"""TRL's loss works in a buffer of many thousand words of vocabulary, whatever the model has: nearly all of a small step."""
HF = ("transformers", "accelerate")


# -- plain torch -------------------------------------------------------------------------------------------------------


def torch_loop(run: Run) -> None:
    """A loop of one's own, its loss inside the model's call by `loss=`."""
    model, data = models.Classifier(), models.pictures()

    def loss(module, x, y):
        return functional.cross_entropy(module(x), y)

    if run.budget is not None:
        model = run.planned = remat.exec.wrap(model, budget=run.budget, loss=loss, seconds=SECONDS)
    run.model = model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for at, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=64)):
        optimizer.zero_grad(set_to_none=True)

        def step(x=x, y=y):
            with torch.autocast("cpu", torch.bfloat16, enabled=run.bf16):
                error = model(x, y) if run.budget is not None else loss(model, x, y)
            error.backward()
            return error

        if at == 2 and run.budget is not None:
            run.start()
        run.losses.append(step().item())
        run.stop()
        optimizer.step()


# -- Hugging Face ------------------------------------------------------------------------------------------------------


def _arguments(run: Run, kind=None, **more):
    from transformers import TrainingArguments

    settings = {
        "output_dir": str(run.folder), "max_steps": 3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "use_cpu": True, "bf16": run.bf16, "report_to": [], "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True,
    }  # fmt: skip
    return (kind or TrainingArguments)(**(settings | more))


def _rows():
    tokenizer = models.tokenizer()
    batch = tokenizer(models.texts(), padding="max_length", max_length=models.LENGTH)
    return tokenizer, [
        {"input_ids": ids, "attention_mask": mask}
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


def _trained(run: Run, trainer, at: int = 2) -> None:
    run.measure(trainer, "training_step", at)
    trainer.train()
    run.model, run.losses = trainer.model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    run.planned = trainer.model if run.budget is not None else None


def _trainer(run: Run, model=None, at: int = 2, **more) -> None:
    from transformers import DataCollatorForLanguageModeling, set_seed

    from remat.integrations import RematArguments, RematTrainer

    set_seed(0)
    tokenizer, rows = _rows()
    trainer = RematTrainer(
        model or models.gpt2(),
        _arguments(run, **more),
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        remat=None if run.budget is None else RematArguments(run.budget, seconds=SECONDS),
    )
    _trained(run, trainer, at)


def trainer(run: Run) -> None:
    """`Trainer` with a tokenizer, padding and gradient accumulation."""
    _trainer(run)


def trainer_in_processes(run: Run) -> None:
    """The same in two processes, over gloo: the step after DDP has replaced its buckets is measured."""
    _trainer(run, at=4, ddp_backend="gloo")


def trainer_checkpointing(run: Run) -> None:
    """The same with `gradient_checkpointing=True`, where the plan acts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _trainer(run, gradient_checkpointing=run.budget is not None)


def trainer_peft(run: Run) -> None:
    """`Trainer` on a LoRA model of peft."""
    _trainer(run, _lora(models.gpt2()))


def trainer_compiled(run: Run) -> None:
    """`Trainer` with `torch_compile=True`: around the plan, the compiler finds one opaque region."""
    _trainer(run, torch_compile=run.budget is not None, torch_compile_backend="eager")


def _lora(model):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True))


# -- TRL ---------------------------------------------------------------------------------------------------------------


def _sft(run: Run, **more) -> None:
    from datasets import Dataset
    from transformers import set_seed
    from trl import SFTConfig, SFTTrainer

    from remat.integrations import RematCallback

    set_seed(0)
    callbacks = [] if run.budget is None else [RematCallback(run.budget, seconds=SECONDS)]
    texts = [{"text": text} for text in models.texts() if len(text.split()) == models.LENGTH] * 4
    trainer = SFTTrainer(
        models.gpt2(),
        args=_arguments(run, SFTConfig, max_length=models.LENGTH, dataset_num_proc=None, gradient_checkpointing=False),
        train_dataset=Dataset.from_list(texts),
        processing_class=models.tokenizer(),
        callbacks=callbacks,
        **more,
    )
    _trained(run, trainer)


def sft(run: Run) -> None:
    """TRL's `SFTTrainer`, with the callback."""
    _sft(run)


def sft_peft(run: Run) -> None:
    """TRL's `SFTTrainer` with a LoRA configuration."""
    from peft import LoraConfig

    _sft(run, peft_config=LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True))


# -- Accelerate --------------------------------------------------------------------------------------------------------


def _accelerate(run: Run, wrap_first: bool) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from transformers import set_seed

    from remat.integrations import with_budget

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if run.bf16 else "no", gradient_accumulation_steps=2)
    set_seed(0)
    model = models.gpt2()
    ids = torch.tensor([row["input_ids"] for row in _rows()[1]])
    loader = torch.utils.data.DataLoader(ids, batch_size=4)
    if run.budget is not None and wrap_first:
        model = remat.exec.wrap(model, budget=run.budget, seconds=SECONDS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if run.budget is not None and not wrap_first:
        with_budget(accelerator, model, run.budget, seconds=SECONDS)
    for at, batch in enumerate(loader):
        with accelerator.accumulate(model):
            if at == 2:
                run.start()
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            run.stop()
            run.losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    run.model = run.planned = accelerator.unwrap_model(model)


def accelerate_wrapped(run: Run) -> None:
    """Accelerate: wrap, then prepare."""
    _accelerate(run, wrap_first=True)


def accelerate_prepared(run: Run) -> None:
    """Accelerate: prepare, then a budget."""
    _accelerate(run, wrap_first=False)


# -- peft --------------------------------------------------------------------------------------------------------------


def _peft_loop(run: Run, lora_first: bool) -> None:
    ids = torch.tensor([row["input_ids"] for row in _rows()[1]])
    model = models.gpt2()

    def budgeted(module):
        run.planned = remat.exec.wrap(module, budget=run.budget, seconds=SECONDS) if run.budget is not None else module
        return run.planned

    model = budgeted(_lora(model)) if lora_first else _lora(budgeted(model))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for at, batch in enumerate(ids.split(8)):
        optimizer.zero_grad(set_to_none=True)
        if at == 2:
            run.start()
        with torch.autocast("cpu", torch.bfloat16, enabled=run.bf16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        run.stop()
        run.losses.append(loss.item())
        optimizer.step()
    run.model = model


def peft_wrapped(run: Run) -> None:
    """peft: the budget around the LoRA model."""
    _peft_loop(run, lora_first=True)


def peft_inside(run: Run) -> None:
    """peft: LoRA around the model that has the budget."""
    _peft_loop(run, lora_first=False)


# -- Lightning ---------------------------------------------------------------------------------------------------------


def lightning_fit(run: Run) -> None:
    """Lightning, the loss in `training_step`."""
    import lightning.pytorch as pl

    from remat.integrations import RematLightningCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = models.Classifier()

        def training_step(self, batch, index):
            x, y = batch
            loss = functional.cross_entropy(self.net(x), y)
            run.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Measure(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if index == 2:
                run.start()

        def on_before_optimizer_step(self, trainer, module, optimizer):
            run.stop()

    callbacks = [Measure()] + ([] if run.budget is None else [RematLightningCallback(run.budget, seconds=SECONDS)])
    pl.seed_everything(0, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_steps=4, accelerator="cpu", precision="bf16-mixed" if run.bf16 else "32-true", callbacks=callbacks,
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=str(run.folder),
        )  # fmt: skip
        module = Module()
        trainer.fit(module, torch.utils.data.DataLoader(models.pictures(), batch_size=64))
    run.model, run.planned = module, module.net


STACKS = (
    Stack(name="torch loop, loss=", script=torch_loop),
    Stack(name="Trainer", script=trainer, packages=HF),
    Stack(name="Trainer, two processes", script=trainer_in_processes, packages=HF, ranks=2),
    Stack(name="Trainer, gradient_checkpointing", script=trainer_checkpointing, packages=HF),
    Stack(name="Trainer, torch_compile", script=trainer_compiled, packages=HF),
    Stack(name="Trainer, peft", script=trainer_peft, packages=(*HF, "peft")),
    Stack(name="TRL SFTTrainer", script=sft, packages=(*HF, "trl", "datasets"), budget=SFT_BUDGET),
    Stack(name="TRL SFTTrainer, peft", script=sft_peft, packages=(*HF, "trl", "datasets", "peft"), budget=SFT_BUDGET),
    Stack(name="Accelerate, wrap then prepare", script=accelerate_wrapped, packages=HF),
    Stack(name="Accelerate, with_budget", script=accelerate_prepared, packages=HF),
    Stack(name="peft, budget around", script=peft_wrapped, packages=("transformers", "peft")),
    Stack(name="peft, budget inside", script=peft_inside, packages=("transformers", "peft")),
    Stack(name="Lightning", script=lightning_fit, packages=("lightning",)),
)
