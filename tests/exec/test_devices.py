import pytest
import torch
from torch import nn
from torch.nn import functional

from remat.errors import RematError
from remat.exec._cost.devices import DEVICES, Device, device_model
from remat.exec._program.program import Role
from remat.exec.weightless import Weightless, capture_without_weights
from remat.units import MiB

V100 = device_model("v100")
PLAIN = Device(name="plain", flops_per_second=10**12, bytes_per_second=10**9, launch=7, granule=1)


class Step(nn.Module):
    """Calls a function of its arguments with its one parameter; the sum of what comes out is the loss."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, *args):
        return self.function(self.weight, *args).sum()


def captured(function, weight_shape, *makers) -> Weightless:
    return capture_without_weights(lambda: (Step(function, *weight_shape), tuple(make() for make in makers)))


def costs_of(weightless: Weightless, target: str, device: Device):
    program = weightless.captured.program
    found = [op for op in program.nodes if str(op.target) == target]
    assert found, sorted({str(op.target) for op in program.nodes})
    return [device.cost(program, op) for op in found]


def test_a_product_of_matrices_costs_its_arithmetic_or_its_traffic_whichever_is_longer():
    step = captured(lambda w, x: x @ w, (512, 256), lambda: torch.randn(1024, 512))
    forward = costs_of(step, "aten.mm.default", V100)[0]
    arithmetic, traffic = 2 * 1024 * 512 * 256 / 14e3, 4 * (1024 * 512 + 512 * 256 + 1024 * 256) / 900
    assert arithmetic > traffic
    assert forward.time == 5000 + int(arithmetic)
    slow_memory = costs_of(step, "aten.mm.default", PLAIN)[0]
    assert slow_memory.time == 7 + 4 * (1024 * 512 + 512 * 256 + 1024 * 256)
    assert forward.workspace == 0


def test_what_is_broadcast_is_read_at_the_size_it_has():
    step = captured(lambda w, x: x + w, (64,), lambda: torch.randn(100, 64))
    (added,) = costs_of(step, "aten.add.Tensor", PLAIN)
    assert added.time == 7 + 4 * (2 * 100 * 64 + 64)


def test_a_look_up_reads_no_more_than_it_writes():
    step = captured(lambda w, i: functional.embedding(i, w), (50_000, 32), lambda: torch.randint(0, 50_000, (10,)))
    (looked_up,) = costs_of(step, "aten.embedding.default", PLAIN)
    assert looked_up.time == 7 + 8 * 10 + 2 * 4 * 10 * 32


@pytest.mark.parametrize(
    ("channels", "picture", "expected"), [(4, 16, 4 * 8 * 18 * 18 // 2), (64, 512, 128 * MiB)], ids=["half", "capped"]
)
def test_a_convolution_works_in_half_of_its_largest_operand_up_to_a_limit(channels, picture, expected):
    step = captured(
        lambda w, x: functional.conv2d(x, w, padding=2), (8, channels, 3, 3), lambda: torch.randn(1, channels, picture, picture)
        if picture == 16 else torch.randn(8, channels, picture, picture),
    )  # fmt: skip
    (forward,) = costs_of(step, "aten.convolution.default", V100)
    assert forward.workspace == expected


def test_grouped_convolutions_count_the_arithmetic_of_their_groups_only():
    def backward(groups):
        step = captured(
            lambda w, x: functional.conv2d(x, w, groups=groups),
            (64, 64 // groups, 3, 3),
            lambda: torch.randn(2, 64, 32, 32),
        )
        fast_memory = Device(name="fast", flops_per_second=10**9, bytes_per_second=10**18, launch=0)
        return [
            costs_of(step, f"aten.{name}.default", fast_memory)[0].time
            for name in ("convolution", "convolution_backward")
        ]

    whole, grouped = backward(1), backward(8)
    assert whole[0] == 2 * 2 * 64 * 30 * 30 * 64 * 9
    assert [8 * part for part in grouped] == whole


def test_a_fourier_transform_works_in_one_output():
    step = captured(lambda w, x: torch.fft.rfft(x * w).abs(), (64,), lambda: torch.randn(10, 64))
    (forward,) = costs_of(step, "aten._fft_r2c.default", V100)
    assert forward.workspace == 8 * 10 * 33


def test_the_backward_of_a_layer_norm_works_in_a_sixteenth():
    step = captured(lambda w, x: functional.layer_norm(x * w, (64,)), (64,), lambda: torch.randn(100, 64))
    (backward,) = costs_of(step, "aten.native_layer_norm_backward.default", V100)
    assert backward.workspace == 4 * 100 * 64 // 16


def test_sizes_are_multiples_of_the_granule_and_generator_states_cost_nothing():
    step = captured(lambda w, x: functional.dropout(x * w, 0.5), (3,), lambda: torch.randn(5, 3))
    program = V100.resized(step.captured.program)
    (state,) = (op for op in program.nodes if op.role is Role.RNG)
    assert V100.cost(program, state).time == 0
    assert program.storage_of(state.name).size == 0
    sizes = {one.size for one in program.storages.values() if one.name != f"{state.name}.out"}
    assert sizes == {512}
    assert step.captured.program.storage_of(state.name).size > 0


def test_a_buffer_is_written_once_and_read_not_at_all():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(1000))
            self.register_buffer("seen", torch.zeros(1000))

        def forward(self, x):
            self.seen.add_(x)
            return (self.weight * x).sum()

    step = capture_without_weights(lambda: (Counting(), torch.randn(1000)))
    program = step.captured.program
    (update,) = (op for op in program.nodes if op.role is Role.UPDATE)
    assert PLAIN.cost(program, update).time == 7 + 2 * 4 * 1000


def test_an_unknown_device_is_refused_with_the_known_ones():
    with pytest.raises(RematError, match=r"no device model 'k20'") as caught:
        device_model("k20")
    assert caught.value.rule == "X-DEVICE-MODEL"
    assert all(name in caught.value.fix for name in DEVICES)


def test_a_device_of_ones_own_is_taken_as_it_is():
    assert device_model(PLAIN) is PLAIN
    with pytest.raises(RematError, match="bytes_per_second"):
        Device(name="none", flops_per_second=1, bytes_per_second=0)
