"""Steps of new sizes, filled in from captures at others: equal to a capture of their own, or captured; within the bytes."""

import pytest
import torch
from attrs import evolve
from torch._dispatch.python import enable_python_dispatcher

import remat.exec
from remat.errors import Uncapturable
from remat.exec._capture.capturing import capture
from remat.exec._cost.measuring import BRIEF, measure
from remat.exec._module.calls import attributes
from remat.exec._module.new_sizes import _step
from remat.exec._plan import families
from remat.exec._plan.build import build_graph, recosted
from remat.exec._program.digest import program_digest
from remat.exec._program.kernels import drawn_mask
from remat.exec._sizes import laws
from remat.exec._sizes.captures import MOST_SAMPLES
from remat.exec._sizes.costs import costs_at, interpolated, known_workspace
from remat.exec._sizes.filling import Filler
from remat.exec._sizes.functions import Functions, NoFunction
from remat.exec._sizes.merging import Patterns, Unlike
from remat.exec._sizes.stencil import REFUSALS
from remat.exec._torch.outlined import Form, Metas
from remat.exec._trace.python_state import Snapshot
from remat.zoo import GPT2
from tests.exec import size_models
from tests.exec.size_models import images, padded, sequences
from tests.exec.support import LIGHT

SIZES = (48, 40, 33, 21)
CALLS = {"Strided": images, "Masked": padded}


@pytest.fixture(autouse=True)
def light(monkeypatch):
    """The default planner takes milliseconds: here programs are filled in, not plans judged."""
    monkeypatch.setattr("remat.exec._plan.settings.Settings.planner", lambda settings: settings.solver or LIGHT)
    monkeypatch.setattr("remat.exec._plan.solving._cheap", lambda: LIGHT)
    monkeypatch.setattr(families, "MEMBER_WORK", 1e5)
    monkeypatch.setattr(families, "MEMBER_STARTS", 2)


def made(name):
    torch.manual_seed(0)
    return getattr(size_models, name)()


def wrapped(model, call, budget="64MiB", **more):
    return remat.exec.wrap(model, call, budget, **{"cost": "estimate", "progress": False} | more)


def results(model, call, seed):
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    loss = model(*call)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters()), *model.buffers(), torch.get_rng_state()]


def state_of(model):
    return attributes(model)["_remat"]


def program_of(model):
    return state_of(model).last.planned.captured.program


def filled_sizes(name, sizes=SIZES):
    """The sizes that were filled in; every step is exact, and every program that of a capture."""
    call = CALLS.get(name, sequences)
    bare, model = made(name), wrapped(made(name), call(sizes[0]))
    taken = []
    for size in sizes:
        assert all(map(torch.equal, results(bare, call(size), size), results(model, call(size), size))), size
        if program_of(model).structure:
            taken.append(size)
            assert program_digest(program_of(model)) == program_digest(capture(made(name), call(size)).program), size
    return taken, remat.exec.report(model)


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("Positions", (33, 21)),
        ("Ranged", (33, 21)),
        ("Dropped", (33, 21)),
        ("Attention", (33, 21)),
        ("Masked", (33, 21)),
        ("InPlace", (21,)),  # a sum of two needs three captures
        ("Half", (21,)),  # 33 is odd where all before were even
        ("Branch", (21,)),  # 48 is on the other side
        ("Strided", ()),
        ("Scaled", ()),
        ("Remembers", ()),
    ],
)
def test_what_is_filled_in_is_what_a_capture_gives_and_all_else_is_captured(name, sizes):
    taken, report = filled_sizes(name)
    assert set(sizes) <= set(taken)
    assert sizes or not taken or name == "Strided"
    assert bool(report.unfilled) == (SIZES[-1] not in taken)


@pytest.mark.parametrize("name", ["Branch", "OtherNumber", "Loop", "Dead", "Padded"])
def test_a_size_at_which_python_takes_another_path_is_captured(name):
    sizes = (32, 24, 28, 20, 47, 21)  # the last but one is beyond every branch
    taken, _ = filled_sizes(name, sizes)
    assert name == "Padded" or 47 not in taken


def test_a_size_at_which_the_forward_seeds_and_puts_back_is_refused():
    bare, model = made("Seeded"), wrapped(made("Seeded"), sequences(32), on_uncapturable="raise")
    for size in (32, 24, 28, 20):
        assert all(map(torch.equal, results(bare, sequences(size), 1), results(model, sequences(size), 1)))
    assert program_of(model).structure
    with pytest.raises(Uncapturable, match=r"X-RANDOM: .*`torch.manual_seed\(42\)`.* sets torch's generator"):
        model(*sequences(47))


def test_attributes_that_only_another_size_reads_are_watched():
    bare, model = made("Twice"), wrapped(made("Twice"), sequences(60))
    for size in (60, 50, 55, 30):
        assert all(map(torch.equal, results(bare, sequences(size), 1), results(model, sequences(size), 1)))
    bare.short = model.short = 3.0
    assert all(map(torch.equal, results(bare, sequences(30), 1), results(model, sequences(30), 1)))


def test_a_mask_that_is_full_is_another_branch_at_every_size():
    bare, model = made("Masked"), wrapped(made("Masked"), padded(48))
    for size in (48, 40, 36):
        x, mask = padded(size)
        for call in ((x, mask), (x, torch.ones_like(mask)), (x, mask)):
            assert all(map(torch.equal, results(bare, call, 1), results(model, call, 1)))
            assert remat.exec.report(model).ran == "plan"


@pytest.fixture(scope="module")
def gpt2():
    """A stencil of GPT-2, a call of another size, and the state of the module."""
    torch.manual_seed(0)
    module = GPT2(layers=1, width=16, heads=2, vocabulary=32, context=64)
    model = wrapped(module, tokens(30), cost="measure")
    for size in (26, 22, 28):
        model(*tokens(size)).backward()
    state = state_of(model)
    assert program_of(model).structure
    call = state.arguments(model, tokens(19), {})
    return state.sizes.last.stencils[0], _step(state, call), Snapshot(model, ())


def tokens(length, batch=2):
    drawn = torch.randint(32, (batch, length), generator=torch.Generator().manual_seed(length))
    return drawn, drawn


def test_no_integer_is_believed(gpt2):
    stencil, step, before = gpt2
    stencil.at(step, before)
    for at, function in enumerate(stencil.columns):
        for more in (1, -1):
            terms = (*function.terms, (more, ()))
            columns = (*stencil.columns[:at], evolve(function, terms=terms), *stencil.columns[at + 1 :])
            with pytest.raises(REFUSALS):
                evolve(stencil, columns=columns).at(step, before)


def test_bytes_of_a_filled_program_are_those_that_are_measured(gpt2):
    stencil, step, before = gpt2
    program = stencil.at(step, before).program
    costs, _ = costs_at(stencil, program, {}, estimated=False)
    measured = measure(program, sampling=BRIEF)
    assert {name: cost.workspace for name, cost in costs.items()} == {
        name: cost.workspace for name, cost in measured.items()
    }
    sizes = {op.name: [program.storage_of(value).size for value in op.outputs if value] for op in program.nodes}
    for name, cost in measured.items():
        given = [size for size in cost.outputs if size is not None]
        assert list(costs[name].outputs or given) == list(cost.outputs or given)
        assert costs[name].outputs or not given or given == sizes[name]


def test_workspaces_have_laws_only_where_they_held_at_every_size(gpt2):
    stencil, step, before = gpt2
    program = stencil.at(step, before).program
    told = {op.name: known_workspace(stencil, program, op) for op in program.nodes}
    masks = [op for op in program.nodes if op.target is drawn_mask]
    numbers = [op for op in program.nodes if str(op.target) == "aten.div.Tensor"]
    assert masks and all(told[op.name] for op in masks)
    assert all(0 < told[op.name] <= 16 for op in numbers)
    assert any(bytes_ is None for bytes_ in told.values())
    for op in (*masks, *numbers):
        graph = stencil.samples[0].graph
        more = [
            tuple(evolve(option, workspace=option.workspace + (node.name == op.name)) for option in node.options)
            for node in graph.computes
        ]
        other = graph.with_costs([d.size for d in graph.data], more, [node.signature for node in graph.computes])
        samples = (evolve(stencil.samples[0], graph=other), *stencil.samples[1:])
        assert known_workspace(evolve(stencil, samples=samples), program, op) is None


def test_the_graph_of_another_size_is_the_one_that_would_be_built(gpt2):
    stencil, step, before = gpt2
    program = stencil.at(step, before).program
    costs, signatures = costs_at(stencil, program, {}, estimated=False)
    reserves = {"loss_reserve": 7, "loss_retained": 3}
    graph = recosted(stencil.samples[-1].graph, program, costs, signatures, **reserves)
    assert graph == build_graph(program, costs, **reserves)
    assert graph != stencil.samples[-1].graph


def test_a_kernel_that_returns_another_form_is_noticed(gpt2):
    stencil, step, before = gpt2
    program = stencil.at(step, before).program
    op = next(op for op in program.nodes if str(op.target) == "aten._log_softmax.default")
    value = program.values[op.outputs[0]]
    wrong = evolve(value, spec=evolve(value.spec, stride=(1, value.spec.shape[0])))
    with pytest.raises(Uncapturable) as raised:
        costs_at(stencil, evolve(program, values={**program.values, value.name: wrong}), {}, estimated=False)
    assert raised.value.rule == "X-MEASURE"


LAWFUL = {
    "aten.add.Tensor": lambda x, y: (x, y),
    "aten.mul.Tensor": lambda x, y: (x[:, :1].contiguous(), y[0]),
    "aten.mul.Scalar": lambda x, y: (x.transpose(1, 2), 2.0),
    "aten.gelu_backward.default": lambda x, y: (x, y),
    "aten.masked_fill.Scalar": lambda x, y: (x, y.bool(), 0.0),
    "aten.clone.default": lambda x, y: (x,),
    "aten.mm.default": lambda x, y: (x[0], y[0].t()),
    "aten.addmm.default": lambda x, y: (x[0, 0, :3], x[0], y[0, :3].t()),
    "aten.bmm.default": lambda x, y: (x, y.transpose(1, 2)),
    "aten._softmax.default": lambda x, y: (x, -1, False),
    "aten._safe_softmax.default": lambda x, y: (x, -1),
    "aten._log_softmax.default": lambda x, y: (x, 1, False),
    "aten._softmax_backward_data.default": lambda x, y: (x, y, -1, x.dtype),
    "aten._log_softmax_backward_data.default": lambda x, y: (x, y, -1, x.dtype),
    "aten.native_layer_norm.default": lambda x, y: (x, [x.shape[2]], None, None, 1e-5),
    "aten.native_layer_norm_backward.default": lambda x, y: (
        x, y, [x.shape[2]], y[:, :, :1].contiguous(), y[:, :, :1].contiguous(), x[0, 0], x[0, 0], [True, False, True]
    ),
    "aten.nll_loss_forward.default": lambda x, y: (x[0], y[0, :, 0].long(), None, 1, -100),
    "aten.nll_loss_backward.default": lambda x, y: (
        x.sum(), x[0], y[0, :, 0].long(), None, 1, -100, x.sum()
    ),
    "aten.sum.dim_IntList": lambda x, y: (x, [0, -1], True),
    "aten.mean.dim": lambda x, y: (x, [1]),
    "aten.embedding.default": lambda x, y: (x[0], y[:, :, 0].long().contiguous()),
    "aten.embedding_dense_backward.default": lambda x, y: (x, y[:, :, 0].long(), 9, -1, False),
    "aten._to_copy.default": lambda x, y: (x,),
    "aten.zeros.default": lambda x, y: ([x.shape[1], 3],),
    "aten.new_ones.default": lambda x, y: (x, [3, x.shape[1]]),
    "aten.arange.default": lambda x, y: (x.shape[1],),
    "aten.arange.start": lambda x, y: (2, x.shape[1]),
    "aten.convolution.default": lambda x, y: (
        x, torch.rand(6, x.shape[1], 2), None, [2], [1], [1], False, [0], 1
    ),
    "aten.convolution_backward.default": lambda x, y: (
        y, x, torch.rand(x.shape[1], x.shape[1], 3), None, [1], [1], [1], False, [0], 1, [True, True, False]
    ),
    "aten._native_batch_norm_legit.default": lambda x, y: (
        x, y[0, :, 0].clone(), None, y[0, :, 0].clone(), y[0, :, 1].clone(), True, 0.1, 1e-5
    ),
    "aten.native_batch_norm_backward.default": lambda x, y: (
        y, x, x[0, :, 0].clone(), None, None, x[0, :, 0].clone(), x[0, :, 0].clone(), True, 1e-5, [True, True, True]
    ),
    "aten.detach.default": lambda x, y: (x[:, 1:],),
    "aten.permute.default": lambda x, y: (x[1:], [2, 0, -2]),
    "aten.transpose.int": lambda x, y: (x[:, 1:], 0, -1),
    "aten.t.default": lambda x, y: (x[1],),
    "aten.unsqueeze.default": lambda x, y: (x[1:].transpose(0, 2), -2),
    "aten.squeeze.dim": lambda x, y: (x[:, 1:2], 1),
    "aten.expand.default": lambda x, y: (x[:, 1:2], [4, -1, x.shape[1], x.shape[2]]),
    "aten.view.default": lambda x, y: (x[1:], [-1, x.shape[2]]),
    "aten._unsafe_view.default": lambda x, y: (x, [x.shape[0] * x.shape[1], x.shape[2]]),
    "aten.slice.Tensor": lambda x, y: (x, -1, 1, 2**63 - 1, 2),
    "aten.select.int": lambda x, y: (x, 1, -2),
}  # fmt: skip
"""Arguments of a call of each law, from two tensors (batch, length, width)."""
IN_PLACE = {
    "aten.div_.Scalar": lambda x, y: (x, 2.0),
    "aten.bernoulli_.float": lambda x, y: (x, 0.5),
    "aten.add_.Tensor": lambda x, y: (x, y[:1]),
    "aten.masked_fill_.Scalar": lambda x, y: (x, y[0].bool(), 0.0),
}
"""Likewise, of calls that return their first argument."""


def operation(name):
    packet, overload = name.removeprefix("aten.").split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def form_tree(arguments):
    return tuple(Form.of(value) if isinstance(value, torch.Tensor) else value for value in arguments)


@pytest.mark.parametrize("name", LAWFUL)
def test_laws_tell_what_kernels_return(name):
    target = operation(name)
    for shape in ((2, 5, 7), (3, 4, 8), (2, 6, 3)):
        arguments = LAWFUL[name](torch.rand(shape), torch.rand(shape))
        returned = target(*arguments)
        results = tuple(
            Form.of(part) if isinstance(part, torch.Tensor) else None
            for part in (returned if isinstance(returned, tuple) else (returned,))
        )
        laid = laws.laid_out(target, form_tree(arguments), {})
        assert laid is not None and laws.agrees(laid, results, "x")
        (first, stride, offset), *rest = laid
        if first:
            assert not laws.agrees((((first[0] + 1, *first[1:]), stride, offset), *rest), results, "x")
            assert not laws.agrees(((first, (stride[0] + 1, *stride[1:]), offset), *rest), results, "x")
        assert not laws.agrees(((first, stride, offset + 1), *rest), results, "x")


@pytest.mark.parametrize("name", IN_PLACE)
def test_laws_tell_what_is_returned_itself(name):
    arguments = IN_PLACE[name](torch.rand(2, 5, 7), torch.rand(2, 5, 7))
    laid = laws.laid_out(operation(name), form_tree(arguments), {})
    assert laid is not None
    assert laws.agrees(laid, ("x",), "x")
    assert not laws.agrees(laid, ("y",), "x")
    assert not laws.agrees(laid, (Form.of(arguments[0]),), "x")


def test_laws_are_silent_about_other_strides_and_operations():
    x = torch.rand(2, 5, 7)
    aten = torch.ops.aten
    for target, arguments in (
        (aten.add.Tensor, (x, x.transpose(0, 1).contiguous().transpose(0, 1))),
        (aten.add.Tensor, (x[:, :, :1], x)),
        (aten.add.Tensor, (x, x[:, :3])),
        (aten.add_.Tensor, (x[:1], x)),
        (aten.transpose_.default, (x, 0, 1)),
        (aten.resize_as_.default, (x, x[0])),
        (aten._softmax.default, (x.transpose(1, 2), -1, False)),
        (aten.mm.default, (x[0], x[0])),
        (aten.sum.dim_IntList, (x.transpose(0, 1), [0])),
        (aten.sum.dim_IntList, (x, [])),
        (aten.view.default, (x.transpose(0, 1), [10, 7])),
        (aten.view.default, (x, [9, -1])),
        (aten.expand.default, (x, [2, 5, 8])),
        (aten.select.int, (x, 0, 2)),
        (aten.arange.default, (2.5,)),
        (aten.cumsum.default, (x, 0)),
        (aten.convolution.default, (x, x, None, [1], [0], [1], True, [0], 1)),
        (aten.convolution.default, (x, torch.rand(2, 5, 9), None, [1], [0], [1], False, [0], 1)),
        (aten.convolution.default, (x.transpose(1, 2), torch.rand(2, 7, 1), None, [1], [0], [1], False, [0], 1)),
        (aten.convolution_backward.default, (x, x, x.transpose(0, 1), None, [1], [0], [1], False, [0], 1, [True] * 3)),
        (aten._native_batch_norm_legit.default, (x, None, None, x[0, :, 0], x[0, :, 0], False, 0.1, 1e-5)),
        (aten.native_batch_norm_backward.default, (x.transpose(1, 2), x.transpose(1, 2))),
    ):
        assert laws.laid_out(target, form_tree(arguments), {}) is None
    assert laws.laid_out(aten.clone.default, form_tree((x,)), {"memory_format": torch.channels_last}) is None
    assert laws.laid_out(aten.zeros.default, ([3, 2],), {"layout": torch.sparse_coo}) is None


def test_shape_functions_are_asked_without_the_dispatcher_of_python():
    seen = []
    with enable_python_dispatcher():
        with Metas():
            seen.append(torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher))
        seen.append(torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher))
    assert seen == [False, True]


def test_ten_lengths_of_gpt2_are_exact_and_within_the_budget():
    def fresh():
        torch.manual_seed(0)
        return GPT2(layers=1, width=16, heads=2, vocabulary=32, context=64)

    bare, model, count = fresh(), wrapped(fresh(), tokens(64, 4), "60%", cost="measure", rehearse=False), 0
    budget = remat.exec.report(model).budget
    for length in (64, 61, 55, 58, 49, 52, 63, 60, 57, 62):
        call = tokens(length, 4)
        assert all(map(torch.equal, results(bare, call, length), results(model, call, length)))
        model.zero_grad(set_to_none=True)
        assert remat.exec.measure_step(lambda call=call: model(*call).backward()).peak <= budget
        count += bool(program_of(model).structure)
    assert count >= 7
    for call in (tokens(57, 3), tokens(1, 4), tokens(57, 1)):  # a last, smaller batch
        assert all(map(torch.equal, results(bare, call, 7), results(model, call, 7)))
    assert len(state_of(model).sizes.last.samples) <= MOST_SAMPLES


# -- functions and patterns ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda n, m: 12 * n * m, lambda n, m: n * n * m, lambda n, m: n - 1, lambda n, m: 3 * n * m - 5 * m,
        lambda n, m: (n + 1) // 2, lambda n, m: 7 * ((n - 3) // 2 + 1), lambda n, m: -(-n // 16) * 16,
    ],
)  # fmt: skip
def test_functions_are_found_and_exact_elsewhere(function):
    samples = ((48, 6), (37, 6), (50, 5), (21, 4), (30, 9))
    functions = Functions(samples)
    found = functions.of(tuple(function(*sizes) for sizes in samples))
    for sizes in ((2, 2), (33, 7), (100, 3), (64, 64)):
        assert found.at(functions.values(sizes)) == function(*sizes)


def test_what_no_function_gives_has_none():
    functions = Functions(((48,), (37,), (50,), (21,)))
    with pytest.raises(NoFunction):
        functions.of((5, 17, 4, 90))
    half = Functions(((48,), (36,), (50,), (20,))).of((24, 18, 25, 10))
    with pytest.raises(NoFunction):
        half.at([33])
    with pytest.raises(NoFunction):
        Functions(((48, 4), (36, 4))).values((40, 5))  # the second never varied
    with pytest.raises(NoFunction):
        Functions(((48,), (36,))).values((1,))
    with pytest.raises(NoFunction):
        Functions(((48,), (1,)))


def test_patterns_hold_integers_alone():
    patterns = Patterns()
    pattern = patterns.merge([{"a": (1, [2, "x"]), "b": 2.0}, {"a": (1, [5, "x"]), "b": 5.0}])
    assert Filler.of(pattern).at([7]) == {"a": (1, [7, "x"]), "b": 7.0}
    for first, second in ((1, True), ("x", "y"), (0.5, 0.25), ((1,), (1, 2)), (0.0, -0.0), ([1], (1,))):
        with pytest.raises(Unlike):
            patterns.merge([first, second])


def test_times_between_measured_sizes_are_monotone_and_meet_them():
    points = [(100, 50), (200, 40), (400, 120), (400, 90)]
    assert [interpolated(points, at) for at in (100, 200, 300, 400, 800, 50)] == [40, 40, 65, 90, 180, 20]
    times = [interpolated(points, at) for at in range(1, 900)]
    assert times == sorted(times) and min(times) >= 1
