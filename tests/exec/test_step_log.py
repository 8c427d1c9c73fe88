"""Logs of real steps: what they say of storages, aliases, mutation and releases, and that DTR can run them."""

import pytest
import torch

from remat.algorithms.dynamic import (
    Alias,
    Call,
    Constant,
    Memory,
    Mutate,
    Release,
    Status,
    load_program,
    program_peak,
    read_program,
    simulate,
    write_instructions,
)
from remat.errors import BadArgument
from remat.exec.step_log import log_step
from remat.zoo.dynamic import STEPS, training_step


def of_kind(log, kind):
    return [instruction for instruction in log if isinstance(instruction, kind)]


def test_a_step_says_what_it_makes_views_writes_and_frees():
    weight = torch.randn(4, 4)

    def step():
        product = weight @ weight
        view = product.t()
        product.add_(1.0)
        total = view.sum()
        assert total.item() != 0
        return total

    log = log_step(step, cost="bytes")
    (constant,) = of_kind(log, Constant)
    assert Memory(constant.name, 64) in log
    calls = of_kind(log, Call)
    assert [call.name for call in calls][:2] == ["aten.mm.default", "aten.t.default"]
    product = calls[0].results[0]
    assert calls[0].args == (constant.name, constant.name)
    assert Alias(calls[1].results[0], 0) in log
    (write,) = of_kind(log, Mutate)
    assert (write.args, write.mutated) == ((product,), (0,))
    after = log[log.index(write) :]
    assert Release(calls[1].results[0]) in after  # the old view is gone with the old value
    again = next(call for call in after if isinstance(call, Call))
    assert (again.name, again.args) == ("view", (product,))
    read = next(call for call in after if isinstance(call, Call) and call.name == "aten.sum.default")
    assert read.args == again.results
    assert Release(product) in after
    assert Release(read.results[0]) not in log  # what the step returns is there at its end


def test_what_is_freed_in_the_backward_is_released_there():
    weight = torch.randn(8, 8, requires_grad=True)

    def step():
        (weight @ weight).tanh().square().sum().backward()

    log = log_step(step, cost="bytes")
    program = read_program(write_instructions(log))
    released = {instruction.name for instruction in of_kind(log, Release)}
    made = {name for call in of_kind(log, Call) for name in call.results}
    assert len(made - released) <= 4  # the gradient and views of it
    assert program_peak(program) < sum(size for _, size in [(m.name, m.size) for m in of_kind(log, Memory)])


@pytest.mark.parametrize("name", STEPS)
def test_dtr_runs_the_steps_of_eight_models(name):
    loss, step = [], training_step(name)
    log = log_step(lambda: loss.append(step()), cost="bytes")
    assert torch.isfinite(loss[0])
    program = read_program(write_instructions(log))
    peak = program_peak(program)
    whole = simulate(program, peak)
    assert (whole.status, whole.remats) == (Status.OK, 0)
    less = [
        simulate(program, peak * percent // 100) for percent in (99, 97, 95, 90)
    ]  # gradients alone fill some of them
    assert all(done.peak <= done.budget for done in less)
    assert any(done.status is Status.OK and done.remats > 0 for done in less)


def test_the_same_step_gives_the_same_log_and_the_same_loss():
    def logged():
        loss = []
        step = training_step("lstm")
        log = log_step(lambda: loss.append(step()), cost="bytes")
        return log, loss[0].item()

    first, second = logged(), logged()
    assert first == second
    assert first[1] == training_step("lstm")().item()


def test_costs_and_files(tmp_path):
    target = tmp_path / "step.log"
    log = log_step(lambda: torch.ones(4).sum(), target)
    log_step(lambda: torch.ones(4).sum(), tmp_path / "step.log.gz")
    assert load_program(tmp_path / "step.log.gz").calls == load_program(target).calls == 2
    assert target.read_text().splitlines() == list(write_instructions(log))
    assert all(call.time >= 1 for call in of_kind(log, Call))
    assert {call.time for call in of_kind(log_step(lambda: torch.ones(4) + 1, cost=lambda *_: 7), Call)} == {7}
    with pytest.raises(BadArgument, match="X-ARG"):
        log_step(lambda: None, cost="guess")


def test_a_log_that_cannot_be_written_leaves_the_old_one(tmp_path, full_disk):
    target = tmp_path / "step.log"
    target.write_text("what was there")
    with full_disk(), pytest.raises(OSError, match="too large"):
        log_step(training_step("lstm"), target, cost="bytes")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["what was there"]


def test_the_batch_of_a_step_is_scaled():
    def peak(**scale):
        return program_peak(
            read_program(write_instructions(log_step(training_step("adversarial", **scale), cost="bytes")))
        )

    assert peak() < peak(scale=3) < 3 * peak()
    with pytest.raises(BadArgument, match=r"Z-ARG.*scale"):
        training_step("adversarial", scale=0)
