"""Shared by the suites of execution: runs of training steps, comparisons to the last bit, and steps at many budgets."""

import copy
from functools import cached_property

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import remat.exec
from remat.algorithms import Problem, StoreAll, store_all_peak
from remat.algorithms._curves.budget_sweep import quick_lowest_budget
from remat.algorithms._search.floor import Floor
from remat.algorithms._search.passes import MultiStart
from remat.algorithms._search.pipeline import Polish
from remat.exec._run.runtime import Call, run_step
from remat.ir import Phase, Schedule
from remat.zoo import cases

SMALL = {case.name: case for case in cases("small")}
MEDIUM = {case.name: case for case in cases("medium")}
LIGHT = Polish((Floor(), MultiStart(starts=2)))
"""A planner of a few milliseconds: here plans are run, not judged."""
TIED = 1e-15
"""How far off, relative to the largest entry, a tied gradient may be: its terms may be added in another order."""


def loss_of(out):
    return out[0] if isinstance(out, tuple) else out


def train(module, sample, iterations=3, seed=0, call=None):
    """Steps with gradients set to None before each; what each leaves: outputs, gradients, buffers, random state."""
    call = call or module
    torch.manual_seed(seed)
    trace = []
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.01)
    for _ in range(iterations):
        for tensor in (*module.parameters(), *sample):
            tensor.grad = None
        out = call(*sample)
        loss_of(out).backward()
        trace.append(
            {
                "out": [t.detach().clone() for t in (out if isinstance(out, tuple) else (out,))],
                "grad": {name: clone(p.grad) for name, p in module.named_parameters()},
                "input": {str(i): clone(t.grad) for i, t in enumerate(sample)},
                "buffer": {name: b.detach().clone() for name, b in module.named_buffers()},
                "random": {"state": torch.get_rng_state()},
            }
        )
        optimizer.step()
    return trace


class FailAt(TorchDispatchMode):
    """Raises an error at the operation of this number, counted from 1."""

    def __init__(self, at, error):
        super().__init__()
        self.left, self.error = at, error

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return func(*args, **(kwargs or {}))


def clone(tensor):
    return None if tensor is None else tensor.detach().clone()


def differences(bare, wrapped, tied=()):
    """What is not the same, in words, one line each; empty: equal to the last bit (tied gradients: to `TIED`)."""
    found = []
    for at, (one, two) in enumerate(zip(bare, wrapped, strict=True)):
        for i, (x, y) in enumerate(zip(one["out"], two["out"], strict=True)):
            if not torch.equal(x, y):
                found.append(f"step {at}: output {i}")
        for kind in ("grad", "input", "buffer", "random"):
            assert one[kind].keys() == two[kind].keys()
            for name, x in one[kind].items():
                y = two[kind][name]
                if (x is None) != (y is None):
                    found.append(f"step {at}: {kind} {name} is there once")
                elif x is not None and not torch.equal(x, y):
                    off = float((x - y).abs().max() / x.abs().max()) if x.is_floating_point() else 1.0
                    if name not in tied or off > TIED:
                        found.append(f"step {at}: {kind} {name} off by {off:.3g}")
    return found


def assert_same(case, budget, iterations=3, **how):
    """A wrapped model of the case trains as the bare one, in float64; returns the wrapped model."""
    bare, sample = case.instantiate(torch.float64)
    other, same_sample = case.instantiate(torch.float64)
    options = {"cost": "estimate", "solver": LIGHT, "rehearse": False, "on_uncapturable": "raise"} | how
    wrapped = remat.exec.wrap(other, same_sample, budget, **options)
    assert differences(train(bare, sample, iterations), train(wrapped, same_sample, iterations), case.tied) == []
    return wrapped


def evicting(graph):
    """The run sequence that keeps nothing for the backward: each backward node finds all forward values made anew."""
    computes = graph.computes
    stays = {name for node in computes if node.run_once for name in node.writes}
    stays |= {datum.name for datum in graph.data if datum.keep or datum.outside}
    maker = {name: i for i, node in enumerate(computes) if node.phase is Phase.FORWARD for name in node.writes}
    runs = []
    for i, node in enumerate(computes):
        if node.phase is Phase.BACKWARD:
            chain, stack = set(), [name for name in node.reads]
            while stack:
                name = stack.pop()
                if name in maker and name not in stays and maker[name] not in chain:
                    chain.add(maker[name])
                    stack += computes[maker[name]].reads
            runs += sorted(chain)
        runs.append(i)
    return Schedule.from_runs(graph, runs)


class Rig:
    """A module captured and measured once, to run at many budgets."""

    def __init__(self, module, sample, cost="measure", **how):
        self.module, self.sample = module, sample
        self.captured = remat.exec.capture(self.module, self.sample, **how)
        program = self.captured.program
        costs = remat.exec.measure(program) if cost == "measure" else remat.exec.estimate(program)
        self.program = remat.exec.resized(self.captured.program, costs)
        self.graph = remat.exec.build_graph(self.program, costs)
        self.peak = store_all_peak(self.graph)

    @cached_property
    def smallest(self):
        return quick_lowest_budget(self.graph, LIGHT).point.budget

    def plan(self, budget):
        solver = StoreAll() if budget >= self.peak else LIGHT
        outcome = solver.solve(Problem(graph=self.graph, budget=budget))
        assert outcome.schedule is not None, f"no plan for {budget} B: {outcome.trail}"
        return outcome

    def clear(self):
        for tensor in (*self.module.parameters(), *self.sample):
            tensor.grad = None

    def bare_step(self):
        loss = loss_of(self.module(*self.sample))
        loss.backward()
        return loss

    def lowered(self, schedule):
        return remat.exec.lower(self.program, schedule)

    def forward(self, schedule):
        """The module with its training step run by a schedule, as a function of the sample."""
        call = Call(
            lowered=self.lowered(schedule),
            requires_grad=self.captured.requires_grad,
            differentiable=self.captured.differentiable,
        )
        params, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())

        def forward(*sample):
            primals = (
                *(params[path] for _, path in self.program.params),
                *(buffers[path] for _, path in self.program.buffers),
                *(sample[at] for _, at in self.program.inputs),
            )
            return run_step(call, primals)

        return forward

    def step_source(self, schedule):
        """The generated functions of a schedule."""
        return self.lowered(schedule).source

    def step(self, schedule):
        """A whole step of a schedule, through autograd."""
        forward = self.forward(schedule)

        def step():
            out = forward(*self.sample)
            out[self.captured.differentiable[0]].backward()
            return out

        return step

    def measured(self, step):
        """Memory of a warmed step with no gradients before it."""
        for _ in range(2):
            self.clear()
            step()
        self.clear()
        memory = remat.exec.measure_step(step)
        self.clear()
        return memory


def twins(module):
    """Two modules with the same weights."""
    return module, copy.deepcopy(module)
