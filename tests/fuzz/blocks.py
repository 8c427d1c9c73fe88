"""What random modules are made of: each block writes a few lines that turn values of the stream into a new one."""

ACTIVATIONS = (
    "functional.gelu({})", "functional.relu({})", "functional.silu({})", "torch.tanh({})", "torch.sigmoid({})",
    "functional.elu({})", "functional.softplus({})", "functional.leaky_relu({}, 0.1)", "torch.sin({})", "({}.abs() + 1).sqrt()",
    "functional.mish({})", "torch.exp(-{}.square())", "functional.hardswish({})", "torch.log1p({}.abs())",
)  # fmt: skip


def linear(w):
    return w.value(f"{w.linear()}({w.any()})")


def mlp(w):
    inner = w.width * w.pick(2, 3, 4)
    up, down = w.linear(inner), w.layer("linear", f"nn.Linear({inner}, {w.width})")
    x = w.any()
    return w.value(f"{x} + {down}({w.pick(*ACTIVATIONS[:4]).format(f'{up}({x})')})")


def activation(w):
    return w.value(w.pick(*ACTIVATIONS).format(w.any()))


def residual(w):
    return w.value(f"{w.any()} {w.pick('+', '-', '*')} {w.any()}")


def dropout(w):
    p = w.pick(0.1, 0.3, 0.5)
    if w.chance(0.5):
        return w.value(f"{w.layer('dropout', f'nn.Dropout({p})')}({w.any()})")
    return w.value(f"functional.dropout({w.any()}, {p}, self.training)")


def noise(w):
    x = w.any()
    return w.value(
        w.pick(
            f"{x} + 0.1 * torch.randn_like({x})",
            f"{x} * (torch.rand_like({x}) > 0.2)",
            f"{x} * torch.bernoulli(torch.full_like({x}, 0.8))",
            f"{x} * torch.empty_like({x}[:, :1]).bernoulli_(0.9)",
        )
    )


# -- norms -----------------------------------------------------------------------------------------------------------------


def layer_norm(w):
    text = w.pick(
        f"nn.LayerNorm({w.width})", f"nn.RMSNorm({w.width})", f"nn.LayerNorm({w.width}, elementwise_affine=False)"
    )
    return w.value(f"{w.layer('norm', text)}({w.any()})")


def batch_norm(w):
    settings = w.pick("", "", ", momentum=0.3", ", affine=False", ", track_running_stats=False", ", momentum=None")
    norm, x = w.layer("norm", f"nn.BatchNorm1d({w.width}{settings})"), w.any()
    if w.chance(0.5):
        return w.value(f"{norm}({x}.flatten(0, 1)).view({x}.shape)")
    return w.value(f"{norm}({x}.transpose(1, 2)).transpose(1, 2)")


def group_norm(w):
    groups = w.pick(*(n for n in (1, 2, 3, 4) if w.width % n == 0))
    return w.value(
        f"{w.layer('norm', f'nn.GroupNorm({groups}, {w.width})')}({w.any()}.transpose(1, 2)).transpose(1, 2)"
    )


# -- views and shapes ------------------------------------------------------------------------------------------------------


def view(w):
    x, y = w.any(), w.any()
    return w.value(
        w.pick(
            f"{x}.flip(1)",
            f"{x}.roll(1, 1)",
            f"{x}.transpose(1, 2).contiguous().transpose(1, 2)",
            f"{x}.transpose(0, 1).flatten(0, 1).view({w.length}, {w.batch}, {w.width}).transpose(0, 1)",
            f"torch.stack(({x}, {y}), -1).mean(-1)",
            f"torch.stack(({x}, {y}), 1).unbind(1)[1]",
            f"{x}.mean(1, keepdim=True).expand_as({x}) + {y}",
            f"functional.pad({x}[:, 1:], (0, 0, 1, 0))",
            f"{x}.unsqueeze(0).repeat(2, 1, 1, 1).sum(0)",
            f"{x}.permute(2, 0, 1).permute(1, 2, 0) * 1.5",
            f"torch.cat(({x}[:, 1:], {y}[:, :1]), 1)",
            f"{x}.reshape(-1, {w.width}).t().reshape({w.width}, {w.batch}, {w.length}).permute(1, 2, 0)",
        )
    )


def split(w):
    x, at = w.any(), w.draw.randint(1, w.width - 1)
    left, right = w.name("left"), w.name("right")
    w.line(f"{left}, {right} = {x}.split([{at}, {w.width - at}], -1)")
    return w.value(f"torch.cat(({w.pick(*ACTIVATIONS).format(right)}, {left} * 2), -1)")


def gate(w):
    pair = w.name("pair")
    w.line(f"{pair} = {w.linear(2 * w.width)}({w.any()})")
    return w.value(
        w.pick(f"functional.glu({pair}, -1)", f"{pair}.chunk(2, -1)[0] * torch.sigmoid({pair}.chunk(2, -1)[1])")
    )


# -- in place --------------------------------------------------------------------------------------------------------------


def in_place(w):
    x, y, half = w.any(), w.any(), max(1, w.width // 2)
    fresh = w.value(w.pick(f"{x} + 1", f"{x} * 1.5", f"{w.linear()}({x})", f"{x}.clone()"))
    first = (
        f"{fresh}.mul_(0.5)", f"{fresh}.add_({y})", f"{fresh} += {y}", f"{fresh}[:, 0] = 0.5", f"{fresh}[..., :{half}] += 1",
        f"{fresh}[:, :, {half}:].mul_(2)", f"{fresh}.masked_fill_(~mask[..., None], 0.0)", f"{fresh}.transpose(1, 2).add_(0.1)",
        f"{fresh}.select(1, 0).unsqueeze(0).add_(0.5)", f"{fresh}[mask] = 0.25", f"{fresh}[0].copy_({y}[0])",
    )  # fmt: skip
    last = (f"{fresh}.relu_()", f"{fresh}.tanh_()", f"functional.dropout({fresh}, 0.2, self.training, inplace=True)")
    for line in w.draw.sample(first, w.draw.randint(1, 2)):
        w.line(line)
    if w.chance(0.4):
        w.line(w.pick(*last))
    return fresh


# -- attention, convolution, recurrence ------------------------------------------------------------------------------------


def attention(w):
    heads = w.pick(*(n for n in (1, 2, 3, 4) if w.width % n == 0))
    x, merged = w.any(), f"{w.linear(3 * w.width)}"
    q, k, v = (w.name(letter) for letter in "qkv")
    w.line(f"{q}, {k}, {v} = {merged}({x}).view({w.batch}, {w.length}, 3, {heads}, -1).permute(2, 0, 3, 1, 4)")
    how = w.pick("", ", is_causal=True", ", attn_mask=mask[:, None, None, :]", ", dropout_p=0.1")
    out = f"functional.scaled_dot_product_attention({q}, {k}, {v}{how})"
    if w.chance(0.3):
        scores = w.name("scores")
        w.line(f"{scores} = {q} @ {k}.transpose(-2, -1) / {w.width**0.5:.3f}")
        w.line(f"{scores} = {scores}.masked_fill(~mask[:, None, None, :], float('-inf')).softmax(-1)")
        out = f"({scores} @ {v})"
    return w.value(f"{w.linear()}({out}.transpose(1, 2).reshape({w.batch}, {w.length}, {w.width}))")


def multihead(w):
    heads = w.pick(*(n for n in (1, 2) if w.width % n == 0))
    layer = w.layer(
        "attention", f"nn.MultiheadAttention({w.width}, {heads}, dropout={w.pick(0.0, 0.1)}, batch_first=True)"
    )
    x, y = w.any(), w.any()
    how = w.pick("", ", need_weights=False", ", key_padding_mask=~mask", ", key_padding_mask=~mask, need_weights=False")
    return w.value(f"{layer}({x}, {y}, {y}{how})[0]")


def convolution(w):
    groups = w.pick(1, 1, w.width)
    layer = w.layer("conv", f"nn.Conv1d({w.width}, {w.width}, 3, padding=1, groups={groups})")
    return w.value(f"{layer}({w.any()}.transpose(1, 2)).transpose(1, 2)")


CELL = 64
"""Width of recurrent cells, whose rows then fill a kernel's vectors. Others are a limit with a test of its own: what a GRU does
in place on parts of rows in eager differs in the last bit."""


def recurrent(w):
    layer = w.layer("cell", f"nn.{w.pick('GRU', 'LSTM')}({w.width}, {CELL}, batch_first=True)")
    return w.value(f"{w.layer('linear', f'nn.Linear({CELL}, {w.width})')}({layer}({w.any()})[0])")


# -- weights, buffers, state -----------------------------------------------------------------------------------------------


def tied(w):
    if not w.linears:
        return linear(w)
    layer, x = w.draw.choice(w.linears), w.any()
    if w.chance(0.3):
        other = w.layer("linear", f"nn.Linear({w.width}, {w.width})")
        w.setup.append(f"        {other}.weight = {layer}.weight")
        return w.value(f"{other}({x})")
    return w.value(w.pick(f"{layer}({x})", f"functional.linear({x}, {layer}.weight)", f"{x} @ {layer}.weight"))


def parameter(w):
    return w.value(f"{w.any()} * {w.layer('scale', f'nn.Parameter(1 + 0.1 * torch.randn({w.width}))')}")


def buffer_read(w):
    return w.value(f"{w.any()} {w.pick('+', '*')} {w.buffer('table', f'torch.rand({w.length}, {w.width})')}")


def buffer_written(w):
    mean, x = w.buffer("mean", f"torch.zeros({w.width})"), w.any()
    how = w.draw.randint(0, 2)
    if how == 0:
        w.line(f"{mean}.mul_(0.9).add_({x}.detach().mean((0, 1)), alpha=0.1)")
    elif how == 1:
        w.line(f"{mean} = 0.9 * {mean} + 0.1 * {x}.detach().mean((0, 1)).to({mean}.dtype)")
    else:
        count = w.buffer("count", "torch.zeros((), dtype=torch.long)")
        w.line(f"{count} += 1")
        w.line(f"{mean}.copy_({x}.detach().amax((0, 1)) / {count})")
    return w.value(f"{x} - {mean}" if w.chance(0.7) else f"{x} * 1.0")


def plain_read(w):
    if w.chance(0.5):
        return w.value(f"{w.any()} * {w.layer('factor', str(w.pick(0.5, 0.9, 2.0)))}")
    config = w.layer("config", '{"scale": 0.8, "twice": True}')
    return w.value(f'{w.any()} * {config}["scale"] if {config}["twice"] else {w.any()}')


def plain_written(w):
    x = w.any()
    how = w.draw.randint(0, 3)
    if how == 0:
        calls = w.layer("calls", "0")
        w.line(f"{calls} += 1")
        return w.value(f"{x} * (1 + 0.1 * {calls})")
    if how == 1:
        stats = w.layer("stats", '{"n": 0}')
        w.line(f'{stats}["n"] += {x}.shape[0]')
        return w.value(f"{x} + 0")
    if how == 2:
        sizes = w.layer("sizes", "[]")
        w.line(f"{sizes}.append({x}.shape[1])")
        return w.value(f"{x} / len({sizes})")
    return w.value(f"{x} if random.random() < 0.5 else {x} * 0.5")


# -- masks, indices, reductions --------------------------------------------------------------------------------------------


def masked(w):
    x, y = w.any(), w.any()
    return w.value(
        w.pick(
            f"{x}.masked_fill(~mask[..., None], 0.0)",
            f"torch.where(mask[..., None], {x}, {y} * 0.5)",
            f"{x} * mask[..., None]",
            f"{x} + (~mask)[..., None].to({x}.dtype) * -2",
        )
    )


def indexed(w):
    x = w.any()
    return w.value(
        w.pick(
            f"{x} + {w.layer('embedding', f'nn.Embedding(10, {w.width})')}(ids)",
            f"{x}.gather(1, (ids % {w.length})[..., None].expand_as({x}))",
            f"torch.zeros_like({x}).scatter_add(1, (ids % {w.length})[..., None].expand_as({x}), {x})",
            f"{x} + {w.layer('embedding', f'nn.Embedding(10, {w.width}, padding_idx=0)')}(ids)",
            f"{x}[:, ids[0] % {w.length}]",
            f"{x}[torch.arange({w.batch})[:, None], ids % {w.length}]",
        )
    )


def reduced(w):
    x = w.any()
    return w.value(
        w.pick(
            f"{x}.cumsum(1) * 0.3",
            f"{x}.softmax(-1) * {x}",
            f"{x} - {x}.amax(-1, keepdim=True)",
            f"functional.normalize({x}, dim=-1)",
            f"{x} - {x}.logsumexp(-1, keepdim=True)",
            f"{x} / (1 + {x}.std((1, 2), keepdim=True))",
            f"{x}.sort(1)[0]",
            f"torch.einsum('btd,bsd->bts', {x}, {x}).softmax(-1) @ {x}",
            f"{x}.log_softmax(1)",
            f"{x}.clamp(-1, 1)",
            f"torch.maximum({x}, {w.any()})",
            f"{x} * {x}.topk(2, -1)[0].sum(-1, keepdim=True)",
        )
    )


# -- control ---------------------------------------------------------------------------------------------------------------

CONDITIONS = (
    "mask.all()", "not mask.all()", "x.sum() > 0", "int(mask.sum()) > {half}", "ids.max() > 8", "torch.equal(ids, ids.flip(0))",
    "(target > 2.5).any()", "mask[0].sum().item() == {length}",
)  # fmt: skip


def branch(w):
    """What an input holds decides; both sides give the value its name."""
    condition = w.pick(*CONDITIONS).format(half=w.batch * w.length * 3 // 4, length=w.length)
    return either(w, condition)


def late_branch(w):
    """What a value of the stream holds decides."""
    x = w.any()
    return either(w, w.pick(f"torch.isfinite({x}).all()", f"{x}.mean() > 0", f"{x}.abs().max() > 3"))


def either(w, condition):
    name, x = w.name("h"), w.any()
    with w.branch(f"if {condition}:"):
        w.line(f"{name} = {w.draw.choice(SIMPLE)(w)}")
    with w.branch("else:"):
        w.line(f"{name} = {x} * 0.75")
    w.stream.append(name)
    return name


def sized(w):
    """What an input holds is a size."""
    longest, x = w.name("longest"), w.any()
    w.line(f"{longest} = int(mask.sum(1).max())")
    return w.value(f"torch.cat((torch.tanh({x}[:, :{longest}]), {x}[:, {longest}:]), 1)")


def no_grad(w):
    x, target = w.any(), w.name("fixed")
    with w.branch("with torch.no_grad():"):
        w.line(f"{target} = {w.pick(*ACTIVATIONS).format(x)}")
    return w.value(w.pick(f"{x} + {target}", f"{x} - {w.any()}.detach()"))


def checkpointed(w):
    return w.value(f"checkpoint({w.linear()}, {w.any()}, use_reentrant=False)")


def own_function(w):
    return w.value(f"Squash.apply({w.any()})")


def spectral(w):
    if w.kind in ("bfloat16", "autocast"):
        return activation(w)
    x = w.any()
    return w.value(f"torch.fft.irfft(torch.fft.rfft({x}, dim=1) * 0.7, n={w.length}, dim=1)")


SIMPLE = (linear, mlp, activation, dropout, layer_norm, view, split, in_place, tied, masked, reduced)
BLOCKS = {
    linear: 6, mlp: 5, activation: 6, residual: 6, dropout: 4, noise: 2, layer_norm: 4, batch_norm: 3, group_norm: 1, view: 6,
    split: 3, gate: 2, in_place: 6, attention: 4, multihead: 2, convolution: 2, recurrent: 1, tied: 4, parameter: 2,
    buffer_read: 2, buffer_written: 3, plain_read: 2, plain_written: 0.4, masked: 3, indexed: 3, reduced: 4, branch: 2.5,
    late_branch: 0.5, sized: 0.7, no_grad: 1, checkpointed: 1, own_function: 1, spectral: 1,
}  # fmt: skip
"""How often each is drawn."""
