"""Processes that train one module together agree on its plans; what one refuses, all refuse; nothing waits for ever.

The checks run one after another in one pair of processes over gloo; each says what must hold on both.
"""

import contextlib
import copy
import pickle
import random
import threading
import time
import warnings
from unittest import mock

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import remat.exec
from remat.budget import Share
from remat.errors import BadArgument, GroupError, Infeasible, RematError
from remat.exec._cost.cost import OpCost
from remat.exec._module import board as boards
from remat.exec._module import hearing
from remat.exec._module import ranks as agreements
from remat.exec._module.board import Board
from remat.exec._module.ranks import Ranks, Statement, terms_of
from remat.exec._plan import costing, planning
from remat.exec._torch.groups import Members, members_of
from tests.exec.apart import apart
from tests.exec.support import LIGHT, SMALL

EASY = {"cost": "estimate", "solver": LIGHT, "rehearse": False}
BUDGET = 3_000
"""Bytes that a step of `Net` on 16 rows fits into with recomputation, and one on 400 rows in no way."""


class Net(nn.Module):
    """A loss of rows of 8 numbers; one that `draws` cannot be captured."""

    def __init__(self, unused=False, draws=False):
        super().__init__()
        self.draws = draws
        torch.manual_seed(0)
        layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh())]
        self.layers = nn.Sequential(*layers)
        if unused:
            self.unused = nn.Linear(8, 8)

    def forward(self, x):
        x = x * random.random() if self.draws else x
        return self.layers(x).square().mean()


def rows(count, seed=0):
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def gathered(value):
    """What both ranks say, in their order."""
    values = [None, None]
    torch.distributed.all_gather_object(values, value)
    return values


def steps(module, batches, context=contextlib.nullcontext):
    """Gradients after each backward; `context` around the first forward and backward of each."""
    taken = []
    for x in batches:
        module.zero_grad()
        with context():
            module(x).backward()
        module(x).backward()
        taken.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    return taken


def equal(first, second):
    return all(torch.equal(x, y) for xs, ys in zip(first, second, strict=True) for x, y in zip(xs, ys, strict=True))


def caught(step):
    """What both ranks raise."""
    try:
        step()
    except RematError as error:
        return gathered((type(error), error.rule, str(error)))
    return gathered((None, "", "nothing was raised"))


# -- checks in a pair of processes -----------------------------------------------------------------------------------------


def check_a_share_is_of_the_step_that_holds_most(rank):
    module, sample = SMALL["mlp"].instantiate()
    sample = tuple(t[: len(t) // (rank + 1)] for t in sample)
    wrapped = remat.exec.wrap(module, sample, "80%", **EASY)
    parallel = DistributedDataParallel(wrapped)
    parallel(*sample).backward()
    report = remat.exec.report(wrapped)
    (budget, peak), (other, smaller) = gathered((report.budget, report.store_all_peak))
    assert budget == other == int(0.8 * peak) and smaller < peak


def check_costs_are_the_largest_and_one_rank_plans(rank):
    module, sample = SMALL["mlp"].instantiate()
    real, planner = costing.measured, mock.Mock(side_effect=planning.solve)

    def measure(program, cache=None, *, brief=False):
        fresh = {} if cache is None else cache
        before = set(fresh)
        costs = real(program, fresh, brief=brief)
        for at, name in enumerate(sorted(set(fresh) - before)):  # each rank finds other operations slow
            fresh[name] = evolve(fresh[name], time=1000 + 10**6 * (at % 2 == rank))
        return {name: fresh.get(name, cost) for name, cost in costs.items()}

    with mock.patch.object(costing, "measured", measure), mock.patch.object(planning, "solve", planner):
        wrapped = remat.exec.wrap(module, sample, "70%", **EASY | {"cost": "measure"})
    report = remat.exec.report(wrapped)
    first, second = gathered((report.graph, report.schedule, report.lower))
    assert first == second
    assert {option.time for node in report.graph.computes for option in node.options} >= {1001000}
    assert gathered(planner.call_count) == [1, 0]
    assert ["another process" in origin for origin in gathered(report.origin)] == [False, True]


def check_different_lengths_at_every_step(rank):
    lengths = random.Random(rank)
    batches = [rows(lengths.choice((16, 12, 9, 5)), seed=step) for step in range(100)]  # 200 steps: two for each
    wrapped = remat.exec.wrap(Net(), budget=BUDGET, **EASY)
    grads = [steps(DistributedDataParallel(module), batches) for module in (Net(), wrapped)]
    assert equal(*grads)
    assert all(plan.budget == BUDGET for plan in wrapped.remat.plans)


def check_a_plan_is_shared_with_who_meets_the_step_later(rank):
    wrapped = remat.exec.wrap(Net(), rows(16), BUDGET, **EASY)
    for turn in (0, 1):
        if rank == turn:
            wrapped(rows(11)).backward()
        torch.distributed.barrier()
    assert ["another process" in origin for origin in gathered(remat.exec.report(wrapped).origin)] == [False, True]


def check_plans_of_a_file_run_without_a_solver(rank):
    file = remat.exec.plans_of(remat.exec.wrap(Net(), rows(16), BUDGET, group=None, **EASY))
    with mock.patch.object(planning, "solve", side_effect=AssertionError("solved")):
        wrapped = remat.exec.wrap(Net(), rows(16), plan=file, **EASY)
    report = remat.exec.report(wrapped)
    assert report.schedule == file.plans[0].schedule and gathered(report.budget) == [BUDGET, BUDGET]


def check_every_option_of_ddp(rank):
    for options in (
        {}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True},
    ):  # fmt: skip
        for synced in (True, False)[: 1 if "static_graph" in options else 2]:  # a static graph begins with no `no_sync`
            grads = []
            for module in (Net(unused=True), remat.exec.wrap(Net(unused=True), budget=BUDGET, **EASY)):
                if "find_unused_parameters" not in options:
                    module.unused.requires_grad_(False)
                parallel = DistributedDataParallel(module, **options)
                context = contextlib.nullcontext if synced else parallel.no_sync
                grads.append(steps(parallel, [rows(16, rank), rows(16, rank + 2)], context))
            assert equal(*grads), (options, synced)


def check_the_step_that_rebuilds_buckets_is_within_the_budget(rank):
    """DDP's second step replaces its buckets; a measurement of that step alone does not see the old ones go.

    Nor does one that sees their construction, where a thread of gloo frees them: the least of some is what counts.
    """
    module, sample = SMALL["mlp"].instantiate()
    wrapped = remat.exec.wrap(module, sample, "80%", group=None, **EASY | {"cost": "measure"})
    alone, _ = torch.distributed.new_subgroups(group_size=1)
    buckets = sum(p.numel() * p.element_size() for p in module.parameters())

    def train():
        parallel = DistributedDataParallel(wrapped, process_group=alone)
        for _ in range(4):
            parallel.zero_grad(set_to_none=True)
            parallel(*sample).backward()
        return parallel

    peak = min(remat.exec.measure_step(train).peak for _ in range(6))
    assert peak <= buckets + remat.exec.report(wrapped).budget


def check_a_first_step_without_a_plan_is_refused_by_all(rank):
    what = caught(lambda: remat.exec.wrap(Net(), rows(400 if rank else 16), BUDGET, **EASY))
    assert [kind for kind, *_ in what] == [Infeasible, Infeasible]
    assert "rank 1 of 2" in what[0][2] and "rank 1 of 2" not in what[1][2]


def check_after_a_refusal_all_may_try_again(rank):
    wrapped = remat.exec.wrap(Net(), budget=BUDGET, **EASY)
    parallel = DistributedDataParallel(wrapped)
    assert [kind for kind, *_ in caught(lambda: parallel(rows(16 if rank else 400)))] == [Infeasible, Infeasible]
    parallel(rows(16)).backward()
    assert gathered(remat.exec.report(wrapped).budget) == [BUDGET, BUDGET]


def check_a_later_step_without_a_plan_is_refused_by_all(rank):
    wrapped = remat.exec.wrap(Net(), budget=BUDGET, **EASY)
    parallel = DistributedDataParallel(wrapped)
    parallel(rows(16)).backward()
    loss = parallel(rows(16)) if rank == 0 else None
    board = wrapped.__dict__["_remat"].ranks._board
    while rank == 0 and board.begun() < 3:  # else this step is over before the other rank plans
        time.sleep(0.001)
    what = caught(loss.backward if rank == 0 else lambda: parallel(rows(400)))
    assert [kind for kind, *_ in what] == [Infeasible, Infeasible]
    assert "rank 1 of 2" in what[0][2]
    assert [kind for kind, *_ in caught(lambda: wrapped(rows(16)))] == [Infeasible, Infeasible]


def check_the_smallest_budget_with_a_plan_is_agreed(rank):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = remat.exec.wrap(Net(), rows(16), 1_000, on_infeasible="best", **EASY)
    report = remat.exec.report(wrapped)
    assert gathered((report.budget, report.schedule)) == [(report.budget, report.schedule)] * 2
    assert report.asked == 1_000 < report.budget
    wrapped(rows(16)).backward()


def check_what_cannot_be_captured_on_one_rank_is_refused_by_all(rank):
    wrapped = remat.exec.wrap(Net(draws=rank == 1), budget=BUDGET, on_uncapturable="raise", **EASY)
    what = caught(lambda: wrapped(rows(16)))
    assert [rule for _, rule, _ in what] == ["X-RANK", "X-RANDOM"]
    assert "rank 1 of 2" in what[0][2] and "random" in what[0][2]


def kinds_of_steps(rank, on_uncapturable):
    """What each rank runs when a step cannot be captured on the second one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = remat.exec.wrap(Net(draws=rank == 1), budget=BUDGET, on_uncapturable=on_uncapturable, **EASY)
        parallel = DistributedDataParallel(wrapped)
        parallel(rows(16)).backward()
    return gathered(type(wrapped.__dict__["_remat"].last).__name__)


def check_a_rank_may_fall_back_while_the_others_plan(rank):
    assert kinds_of_steps(rank, "bare") == ["Ready", "Bare"]


def check_a_rank_may_run_without_a_graph_while_the_others_plan(rank):
    assert kinds_of_steps(rank, "dtr") == ["Ready", "Dynamic"]


def check_different_modules_are_refused(rank):
    what = caught(lambda: remat.exec.wrap(Net(), rows(16), (BUDGET, "50%")[rank], **EASY))
    assert [rule for _, rule, _ in what] == ["X-GROUP", "X-GROUP"]
    assert all("rank 1 has a Net of 8 parameters with budget 50.0000%" in text for *_, text in what)


def check_without_a_group_each_plans_alone(rank):
    if rank == 0:
        remat.exec.wrap(Net(), rows(16), BUDGET, group=None, **EASY)(rows(16)).backward()
    pair = torch.distributed.new_group([0, 1])
    wrapped = remat.exec.wrap(Net(), rows(16 - rank), "90%", group=pair, **EASY)
    first, second = gathered(remat.exec.report(wrapped).budget)
    assert first == second


def check_copies_plan_alone_within_what_was_agreed(rank):
    wrapped = remat.exec.wrap(Net(), rows(16 - rank), "90%", **EASY)
    if rank == 0:
        double = copy.deepcopy(wrapped)
        double(rows(7)).backward()
        assert remat.exec.report(double).budget == remat.exec.report(wrapped).budget
    again = pickle.loads(pickle.dumps(wrapped))
    again(rows(13 - rank)).backward()
    first, second = gathered(remat.exec.report(again).budget)
    assert first == second


class Residual(nn.Module):
    """A network of blocks, each with activations of its own to recompute."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        block = lambda: nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Tanh())))  # noqa: E731
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).square().mean()


def sharded_grads(model, rank):
    """Shards of the gradients of the second of two steps."""
    for seed in (rank, rank + 2):
        model.zero_grad()
        model(rows(32, seed)).backward()
    return [p.grad.to_local().clone() for p in model.parameters()]


def check_blocks_that_are_sharded_one_by_one(rank):
    from torch.distributed.fsdp import fully_shard

    how = EASY | {"loss_reserve": 0}
    grads = []
    for order in ("bare", "budgets first", "shards first"):
        for reshard in (True, False)[: 1 + (order == "budgets first")]:
            model = Residual()
            for block in model.blocks:
                if order == "budgets first":
                    remat.exec.wrap_in_place(block, 6_000, **how)
                fully_shard(block, reshard_after_forward=reshard)
                if order == "shards first":
                    remat.exec.wrap_in_place(block, 6_000, **how)
            grads.append(sharded_grads(fully_shard(model), rank))
            if order != "bare":
                reports = [block.remat.report() for block in model.blocks]
                assert all(report.reruns > 0 and report.ran == "plan" for report in reports)
    assert all(equal([grads[0]], [other]) for other in grads[1:])


def check_a_budget_divided_among_blocks_that_are_sharded_then(rank):
    from torch.distributed.fsdp import fully_shard

    bare, model = Residual(), Residual()
    how = {"cost": "estimate", "solver": LIGHT}
    division = remat.exec.apply_budget(model, rows(32 - rank), "90%", blocks=model.blocks, **how)
    assert gathered(division) == [division] * 2
    for each in (bare, model):
        for block in each.blocks:
            fully_shard(block)
        fully_shard(each)
    assert equal([sharded_grads(bare, rank)], [sharded_grads(model, rank)])
    reports = [block.remat.report() for block in model.blocks]
    assert all(report.ran == "plan" and report.origin for report in reports)  # the plans of the division


def check_a_module_that_is_sharded_at_the_root(rank):
    from torch.distributed.fsdp import fully_shard

    bare, model = fully_shard(Residual()), fully_shard(Residual())
    wrapped = remat.exec.wrap(model, rows(32), "80%", **EASY)
    assert all(type(p).__name__ == "DTensor" for p in wrapped.parameters())
    assert equal([sharded_grads(bare, rank)], [sharded_grads(wrapped, rank)])
    assert remat.exec.report(wrapped).ran == "plan" and remat.exec.report(wrapped).reruns > 0
    wrapped.set_requires_gradient_sync(False)


def check_blocks_sharded_inside_a_wrapped_module_are_refused(rank):
    from torch.distributed.fsdp import fully_shard

    model = Residual()
    fully_shard(model.blocks[1])
    what = caught(lambda: remat.exec.wrap(model, rows(32), "80%", on_uncapturable="raise", **EASY))
    assert {rule for _, rule, _ in what} <= {"X-MODULE", "X-RANK"}
    assert all("blocks.1 is sharded on its own" in text for *_, text in what)


def flat_grads(model, rank):
    """Losses and shards of the gradients of two steps under FSDP1."""
    taken = []
    for seed in (rank, rank + 2):
        model.zero_grad()
        loss = model(rows(32, seed))
        loss.backward()
        taken.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    return taken


def flat(module, **how):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(module, device_id=torch.device("cpu"), **how)


def check_fsdp1_around_wrapped_modules(rank):
    whole = remat.exec.wrap(Residual(), budget="80%", **EASY)
    assert equal(flat_grads(flat(Residual()), rank), flat_grads(flat(whole), rank))
    bare, model = Residual(), Residual()
    for at in range(len(model.blocks)):
        bare.blocks[at] = flat(bare.blocks[at])
        remat.exec.wrap_in_place(model.blocks[at], 6_000, loss_reserve=0, **EASY)
        model.blocks[at] = flat(model.blocks[at])
    assert equal(flat_grads(flat(bare), rank), flat_grads(flat(model), rank))
    planned = [whole, *(block.module for block in model.blocks)]
    assert all(remat.exec.report(module).ran == "plan" and remat.exec.report(module).reruns > 0 for module in planned)


def check_fsdp1_is_refused_where_it_cannot_be_planned(rank):
    inside = Residual()
    inside.blocks[1] = flat(inside.blocks[1])
    for module, path in ((flat(Residual()), "the module itself"), (inside, "blocks.1")):
        what = caught(lambda module=module: remat.exec.wrap(module, rows(32), BUDGET, **EASY))
        assert {rule for _, rule, _ in what} <= {"X-MODULE", "X-RANK"}
        assert all(f"{path} is a FullyShardedDataParallel (FSDP1)" in text for *_, text in what)
    wrapped = remat.exec.wrap(Residual(), budget="80%", on_uncapturable="raise", **EASY)
    what = caught(lambda: flat(wrapped, use_orig_params=True)(rows(32)))
    assert {rule for _, rule, _ in what} <= {"X-STATE", "X-RANK"} and all(
        "the backward changes" in text for *_, text in what
    )


def check_tensor_parallelism_is_refused(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    plan = {"blocks.0.0": ColwiseParallel(), "blocks.0.2": RowwiseParallel()}
    after = remat.exec.wrap(parallelize_module(Residual(), mesh, plan), budget=12_000, **EASY)
    before = parallelize_module(remat.exec.wrap(Residual(), budget=12_000, **EASY), mesh, plan)
    for wrapped in (after, before):
        what = caught(lambda wrapped=wrapped: wrapped(rows(32)))
        assert {rule for _, rule, _ in what} <= {"X-TENSOR", "X-RANK"}
        assert all("a tensor is a DTensor" in text and "without tensor parallelism" in text for *_, text in what)
    model = parallelize_module(Residual(), mesh, plan)
    remat.exec.wrap_in_place(model.blocks[1], 6_000, loss_reserve=0, group=None, **EASY)
    model(rows(32)).backward()  # the other modules of the model can be wrapped
    assert model.blocks[1].remat.report().ran == "plan" and model.blocks[1].remat.report().reruns > 0


def ends_all_when_one_refuses_while_another_is_in_a_collective(rank):
    """Rank 1 meets the infeasible step when rank 0 waits in DDP's sum: rank 1 raises and exits, rank 0 says why it was left."""
    wrapped = remat.exec.wrap(Net(), budget=BUDGET, **EASY)
    parallel = DistributedDataParallel(wrapped)
    store, gates = torch.distributed.distributed_c10d._get_default_store(), []

    def summed(
        _, bucket
    ):  # all gradients have left the step when the last bucket is ready, so that the step looks no more
        for gate in gates if bucket.is_last() else ():
            store.set(gate, "")
        return allreduce_hook(None, bucket)

    parallel.register_comm_hook(None, summed)
    for _ in range(2):  # in its second step DDP makes its buckets anew, together
        parallel(rows(16)).backward()
    if rank == 1:
        store.wait(["behind the gate"])
        with pytest.raises(Infeasible, match="no plan for"):
            parallel(rows(400))
        return
    said = []
    gates.append("behind the gate")
    with mock.patch.object(hearing.logger, "error", lambda form, *args: said.append(form % args)):
        with pytest.raises(RuntimeError, match=r"closed by peer|reset by peer"):  # of gloo, once the other has exited
            parallel(rows(16)).backward()
        for thread in hearing._threads.values():
            thread.end()
    assert len(said) == 1 and "rank 1 of 2 cannot go on" in said[0] and "no plan for" in said[0]


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


@pytest.fixture(scope="module")
def together():
    return apart(CHECKS, ranks=2, patience=300.0, last=ends_all_when_one_refuses_while_another_is_in_a_collective)


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_in_two_processes(together, name):
    assert together[name] == "ok\nok"


def test_a_refusal_ends_all_with_the_reason(together):
    assert together[ends_all_when_one_refuses_while_another_is_in_a_collective.__name__] == "ok\nok"


# -- the board and the terms -----------------------------------------------------------------------------------------------


def members(rank=0, size=2, timeout=0.05, store=None):
    return Members(rank=rank, size=size, name="g", store=store or torch.distributed.HashStore(), timeout=timeout)


def test_who_does_not_come_is_named_when_the_time_is_over():
    with pytest.raises(GroupError, match=r"X-WAIT: rank 0 waited 0.05 s for ranks 1, 2, .*group=None") as refusal:
        Board(members(size=3), 0).wait({"a": 1, "b": 2})
    assert refusal.value.ranks == (1, 2)


def test_long_texts_arrive_whole():
    here = members()
    text = "".join(random.Random(0).choices("abcdefgh", k=50_000))
    with mock.patch.object(boards, "PIECE", 1000):
        Board(here, 0).put("a", text)
        assert Board(here, 0).peek("a") == text
    assert Board(here, 1).peek("a") is None


def test_a_refusal_is_heard_by_who_waits():
    store = torch.distributed.HashStore()
    here, there = (Board(members(rank, timeout=20, store=store), 0) for rank in range(2))
    error = Infeasible("none.", budget=3, smallest=5, floor=4, fix="give 5.")
    thread = threading.Thread(target=there.refuse, args=(error,))
    thread.start()
    with pytest.raises(Infeasible, match=r"rank 1 of 2 cannot go on.*B-INFEASIBLE: none. Fix: give 5.") as refusal:
        here.wait({"a": 1})
    thread.join()
    assert (refusal.value.budget, refusal.value.smallest, refusal.value.floor) == (3, 5, 4)


@pytest.mark.parametrize(
    "error, rule", [(GroupError("X-GROUP", "a", ranks=(0,)), "X-GROUP"), (KeyError("a"), "X-RANK")]
)
def test_other_refusals_keep_their_words(error, rule):
    store = torch.distributed.HashStore()
    here, there = (Board(members(rank, store=store), 0) for rank in range(2))
    with mock.patch.object(boards, "LINGER", 0.0):
        there.refuse(error)
    with pytest.raises(GroupError, match=f"{rule}: rank 1 .*a") as refusal:
        here.raise_refusal()
    assert refusal.value.ranks == (1,) and here.heard is refusal.value


def agreed(board):
    return Ranks("world", agreed=True, members=board.members, board=board)


def test_a_backward_waits_while_another_process_plans_and_no_longer_than_it_is_patient():
    store = torch.distributed.HashStore()
    here, there = (Board(members(rank, timeout=20, store=store), 0) for rank in range(2))
    with mock.patch.object(agreements, "is_running", lambda: True):
        ranks = agreed(here)
        there.planning_begins()
        timer = threading.Timer(0.05, there.planning_ends)
        timer.start()
        ranks.gate()
        assert here.ended() == 1
        there.planning_begins()
        with mock.patch.object(agreements, "PATIENCE", 0.01):
            ranks.gate()
        assert here.ended() == 1


def test_without_its_store_a_process_goes_on_alone_and_says_so():
    store = mock.Mock(wraps=torch.distributed.HashStore())
    board = Board(members(), 0)
    board._store = store
    store.check.side_effect = RuntimeError("connection reset")
    ranks = agreed(board)
    with mock.patch.object(agreements, "is_running", lambda: True):
        with pytest.warns(remat.exec.RematWarning, match="connection reset.*plans alone"):
            ranks.check()
        ranks.check()
        ranks.gate()
        assert not ranks.shared
    assert store.check.call_count == 1


def test_a_refusal_that_was_a_wait_is_no_lost_store():
    store = torch.distributed.HashStore()
    here, there = (Board(members(rank, store=store), 0) for rank in range(2))
    with mock.patch.object(boards, "LINGER", 0.0):
        there.refuse(GroupError("X-WAIT", "waited.", ranks=(0,)))
    with (
        mock.patch.object(agreements, "is_running", lambda: True),
        pytest.raises(GroupError, match="X-WAIT: rank 1 of 2"),
    ):
        agreed(here).check()


@pytest.mark.parametrize("size, backend, alone", [(1, "gloo", True), (8, "fake", True), (2, "gloo", False)])
def test_who_has_no_peers_is_alone(size, backend, alone):
    store, distributed = torch.distributed.HashStore(), torch.distributed
    with (
        mock.patch.object(distributed, "is_initialized", lambda: True),
        mock.patch.object(distributed, "get_world_size", lambda group: size),
        mock.patch.object(distributed, "get_rank", lambda group: 0),
        mock.patch.object(distributed, "get_backend", lambda group: backend),
        mock.patch.object(distributed.distributed_c10d, "_get_default_store", lambda: store),
    ):
        assert (members_of(mock.Mock(group_name="g")) is None) == alone
        assert members_of(None) is None


def test_terms_take_the_largest_of_every_figure_and_the_first_of_equal_steps():
    costs = [OpCost(time=3, workspace=9, outputs=(4, None)), OpCost(time=5, workspace=1, outputs=(8, None))]
    statements = [
        Statement(about="a", fingerprint=step, whole=whole, costs={"mm": cost, step: cost})
        for step, whole, cost in zip(("x", "x", "y"), (100, 100, 300), (*costs, costs[0]), strict=True)
    ]
    terms = terms_of([*statements, Statement(about="a")], Share(1 / 2))
    assert terms.budget == 150 and terms.planners == {"x": 0, "y": 2}
    assert terms.costs["mm"] == OpCost(time=5, workspace=9, outputs=(8, None))
    assert terms_of([Statement(about="a")], 7).budget is None


@pytest.mark.parametrize("group", ["all", 3, -100])
def test_what_is_no_group_is_refused(group):
    with pytest.raises(BadArgument, match="X-ARG: wrap: group"):
        remat.exec.wrap(Net(), budget=BUDGET, group=group)
