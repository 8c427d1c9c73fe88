"""The rehearsal: one step of a fresh plan before the first real one, to see the peak that was promised.

It runs the two generated functions on the sample under a recording (CPU) or the peak statistics (CUDA), outside autograd;
gradients are thrown away, and buffers, written inputs and random generators are restored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from attrs import frozen

from remat.exec._cost.audit import measure_step
from remat.exec._program.kernels import no_autocast
from remat.exec._program.refusals import refusing
from remat.exec._run.lowering import Lowered, Tensors
from remat.exec._torch import rng, torch_private
from remat.exec._torch.aside import unprofiled
from remat.exec._torch.exchange import EXCHANGE
from remat.units import Bytes, Ns


@frozen(kw_only=True)
class Rehearsal:
    """What a rehearsal measured.

    Attributes:
        peak: most bytes held above the level before the step [bytes].
        reserved: most bytes the caching allocator held from the driver (CUDA), else 0 [bytes].
        time: of forward and backward [ns].
    """

    peak: Bytes
    reserved: Bytes
    time: Ns


def rehearse(lowered: Lowered, primals: Tensors, excess: Bytes = 0) -> Rehearsal:
    """Run a plan twice, once for time and once for memory.

    Args:
        lowered: the plan.
        primals: parameters, buffers and inputs; as before when this returns.
        excess: what gradients of outputs take beyond the tangents of the trace while the backward runs [bytes].

    Raises:
        Uncapturable: X-STAGE, where an operation does not run as it was traced.
    """

    def step() -> object:
        outputs, read_outputs, activations = lowered.forward(primals)
        tangents = tuple(
            torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device).fill_(1)
            for spec in lowered.tangents.specs
        )
        loose = tuple(primals[at] for at in lowered.loose_primals)
        saved = (*(primals[at] for at in lowered.backward_primals), *read_outputs)
        _excess = torch.empty(excess, dtype=torch.uint8, device=lowered.device)
        return outputs, lowered.backward(loose, saved, tangents, activations)

    def measured() -> Rehearsal:
        with as_before(lowered, primals), torch.no_grad(), no_autocast(lowered.device):
            _wait(lowered.device)
            start = time.perf_counter_ns()
            step()
            _wait(lowered.device)
            took = time.perf_counter_ns() - start
            memory = measure_step(step, device=lowered.device)
        return Rehearsal(peak=memory.peak, reserved=memory.reserved, time=took)

    with refusing("the rehearsal"), EXCHANGE.alone:  # it writes buffers
        return unprofiled(measured)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def as_before(lowered: Lowered, primals: Tensors) -> Iterator[None]:
    devices = {torch.device("cpu"), lowered.device}
    states = {device: rng.save(device) for device in devices}
    written = [(primals[at], primals[at].detach().clone()) for at in lowered.written_primals]
    try:
        with torch_private.unseen_writes(tuple(tensor for tensor, _ in written)):
            try:
                yield
            finally:
                with torch.no_grad():
                    for tensor, value in written:
                        tensor.copy_(value)
    finally:
        for device, state in states.items():
            rng.restore(device, state)
