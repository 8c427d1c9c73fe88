"""Odd modules made of other machinery: closures, checkpoints, sparse and lazy parts, scripts, old hooks."""

import threading

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import remat.exec
from tests.exec.odd.base import Block, Blocks, Body, seeded
from tests.exec.odd.judging import EITHER, EXACT, REFUSED, ROWS, WIDTH, odd, rows

# -- closures --------------------------------------------------------------------------------------------------------------


@odd("closure-over-a-tensor", EITHER)
def closure_tensor():
    scale = torch.linspace(0.5, 1.5, WIDTH)

    class ClosureTensor(Body):
        def forward(self, x):
            return self.loss(self.hidden(x) * scale)

    return ClosureTensor()


GLOBAL_SCALE = torch.linspace(0.5, 1.5, WIDTH)


@odd("global-tensor", EITHER)
class GlobalTensor(Body):
    def forward(self, x):
        return self.loss(self.hidden(x) * GLOBAL_SCALE)


class Classifier(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(WIDTH, 64),
            nn.GELU(),
            nn.Linear(64, 64),
            nn.GELU(),
            nn.Linear(64, 64),
            nn.GELU(),
            nn.Linear(64, 5),
        )


def weighted_loss():
    weights = torch.linspace(0.5, 1.5, 5)

    def loss(module, x):
        return functional.cross_entropy(module(x), x[:, :5].argmax(1), weight=weights)

    return loss


@odd("class-weights-in-the-closure-of-the-loss", EXACT, inside=weighted_loss)
def classifier():
    return Classifier()


def counting_loss():
    calls = []

    def loss(module, x):
        calls.append(len(x))
        return module(x).square().mean() * len(calls)

    return loss


@odd("counter-in-the-closure-of-the-loss", EITHER, inside=counting_loss)
def counted_classifier():
    return Classifier()


# -- checkpoints inside ----------------------------------------------------------------------------------------------------


class Dense(nn.Module):
    """Densely connected: each layer reads all before it, and checkpoints its concatenation."""

    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH * (i + 1), WIDTH) for i in range(4))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, 1)
        self.reentrant = reentrant

    def forward(self, x):
        x = x + self.layers[0].bias
        parts = [x]
        for layer in self.layers:

            def dense(*parts, layer=layer):
                return self.dropout(functional.gelu(layer(torch.cat(parts, 1))))

            parts.append(checkpoint(dense, *parts, use_reentrant=self.reentrant))
        return self.head(parts[-1]).square().mean()


@odd("densely-connected-with-checkpoints", EXACT)
def dense():
    return Dense(reentrant=False)


@odd("reentrant-checkpoint-inside", EITHER)
def reentrant():
    return Dense(reentrant=True)


@odd("checkpoint-that-draws-in-python", EITHER)
class CheckpointedCounter(Blocks):
    """The recomputation inside calls the counting function again."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def count(self, block, x):
        self.calls += 1
        return block(x)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(self.count, block, x, use_reentrant=False)
        return self.head(x).square().mean()


@odd("checkpoint-around-a-batch-norm", REFUSED)
class CheckpointedNorm(Body):
    """Without a plan the statistics are updated in the forward, and again in the backward."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.loss(self.hidden(checkpoint(lambda x: self.norm(self.layers[0](x)), x, use_reentrant=False)))


class Redrawing(Body):
    """A checkpoint that does not put the generator back when it runs in the backward."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def checkpointed(self, x):
        return nn.functional.dropout(torch.tanh(self.layers[0](x)), self.p)

    def forward(self, x):
        return self.loss(self.hidden(checkpoint(self.checkpointed, x, use_reentrant=False, preserve_rng_state=False)))


@odd("checkpoint-that-draws-anew-in-the-backward", REFUSED)
def redrawing():
    return Redrawing(p=0.5)


@odd("checkpoint-that-would-draw-anew-and-draws-nothing", EXACT)
def drawing_nothing():
    return Redrawing(p=0.0)


# -- backwards that write ---------------------------------------------------------------------------------------------------


class Counting(Body):
    """A buffer that sums gradients."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(WIDTH))


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seen):
        ctx.seen = seen
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        ctx.seen.add_(gradient.sum(0))
        return gradient * 3, None


for tracer in ("auto", "joint"):

    @odd(f"backward-of-a-function-writes-a-buffer-{tracer}", REFUSED, options={"tracer": tracer})
    class WritingFunction(Counting):
        def forward(self, x):
            return self.loss(Tripled.apply(self.hidden(x), self.seen))


@odd("hook-of-a-tensor-writes-a-buffer", REFUSED)
class WritingHook(Counting):
    def forward(self, x):
        def note(gradient):
            self.seen.add_(gradient.sum(0))

        x = self.hidden(x)
        x.register_hook(note)
        return self.loss(x)


# -- parts that are not usual ----------------------------------------------------------------------------------------------


def with_tokens(step):
    return (torch.randint(20, (ROWS,), generator=seeded(step)),)


@odd("sparse-embedding", EITHER, inputs=with_tokens)
class SparseEmbedding(Body):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, WIDTH, sparse=True)

    def forward(self, tokens):
        return self.loss(self.hidden(self.tokens(tokens)))


@odd("lazy-linear", EITHER)
class Lazy(Body):
    def __init__(self):
        super().__init__()
        self.extra = nn.LazyLinear(WIDTH)

    def forward(self, x):
        return self.loss(self.extra(self.hidden(x)))


@odd("lazy-batch-norm", EITHER)
class LazyNorm(Body):
    def __init__(self):
        super().__init__()
        self.extra = nn.LazyBatchNorm1d()

    def forward(self, x):
        return self.loss(self.extra(self.hidden(x)))


@odd("data-parallel", EITHER, line=False)
def data_parallel():
    return nn.DataParallel(Blocks())


def with_padding(step):
    x = torch.randn(16, 12, WIDTH, generator=seeded(step))
    padding = torch.zeros(16, 12, dtype=torch.bool)
    padding[:, 8:] = step % 2 == 0
    return {"x": x, "padding": padding}


@odd("transformer-encoder-with-padding", EXACT, inputs=with_padding)
class PaddedEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding).square().mean()


class Named(torch.Tensor):
    """A subclass with nothing of its own."""


@odd("parameter-of-a-tensor-subclass", EITHER, line=False)
class SubclassParameter(Body):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH).as_subclass(Named))

    def forward(self, x):
        return self.loss((self.hidden(x) * self.scale).as_subclass(torch.Tensor))


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@odd("script-module-inside", EITHER)
class ScriptInside(Body):
    def __init__(self):
        super().__init__()
        self.script = torch.jit.script(Scripted())

    def forward(self, x):
        return self.loss(self.script(self.hidden(x)))


GELU = """
def gelu(x):
    return x * torch.sigmoid(1.702 * x)
"""


# TorchScript derives it by formulas of its own, which round otherwise.
@odd("scripted-function", REFUSED)
def scripted_function():
    gelu = torch.jit.CompilationUnit(GELU).gelu

    class CallsScript(Body):
        def forward(self, x):
            return self.loss(gelu(self.hidden(x)))

    return CallsScript()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * torch.sin(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * torch.cos(x) * grad


@odd("autograd-function-inside", EITHER)
class OwnFunction(Body):
    def forward(self, x):
        return self.loss(Doubled.apply(self.hidden(x)))


@odd("gradient-penalty-inside", EITHER)
class GradientPenalty(Body):
    def forward(self, x):
        x = x.detach().requires_grad_()
        loss = self.loss(self.hidden(x))
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + grad.square().sum()


@odd("hook-on-a-tensor-inside", EITHER)
class TensorHook(Body):
    def forward(self, x):
        x = self.hidden(x)
        x.register_hook(lambda grad: grad * 0.5)
        return self.loss(x)


@odd("gradient-of-an-activation-retained", REFUSED)
class RetainsGrad(Body):
    def forward(self, x):
        self.kept = self.hidden(x)
        self.kept.retain_grad()
        return self.loss(self.kept)


@odd("old-spectral-norm", EITHER)
class OldSpectral(Body):
    """A pre-hook that sets a plain attribute and writes a buffer before each forward."""

    def __init__(self):
        super().__init__()
        nn.utils.spectral_norm(self.layers[1])


@odd("spectral-norm", EXACT)
class Spectral(Body):
    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.spectral_norm(self.layers[1])


@odd("vmap-inside", EITHER)
class Vmapped(Body):
    def forward(self, x):
        return torch.func.vmap(lambda row: self.hidden(row).square().sum(), randomness="different")(x).mean()


@odd("functional-call-inside", EITHER)
class FunctionalCall(Blocks):
    def forward(self, x):
        weights = {name: 0.5 * weight for name, weight in self.blocks[0].named_parameters()}
        x = torch.func.functional_call(self.blocks[0], weights, (x,))
        return super().forward(x)


@odd("lock-held-in-the-forward", EITHER)
class Locked(Body):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x):
        with self.lock:
            return self.loss(self.hidden(x))


@odd("autocast-inside", EXACT)
class AutocastInside(Body):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.hidden(x)
        return self.loss(x.float())


@odd("no-grad-inside", EXACT)
class NoGradInside(Body):
    def forward(self, x):
        with torch.no_grad():
            target = self.hidden(x)
        return functional.mse_loss(self.hidden(x), target)


@odd("lstm-inside", EXACT, options={"budget": "100%"})
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        out, _ = self.lstm(x.view(32, 8, WIDTH))
        return self.head(out).square().mean()


@odd("block-wrapped-inside", EITHER)
def wrapped_inside():
    module = Blocks()
    module.blocks[1] = remat.exec.wrap(Block(), rows(0), "100%", loss_reserve="64KiB", on_uncapturable="raise")
    return module
