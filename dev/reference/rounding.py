"""How far bf16 training strays from exact arithmetic: the model of model.py with our rounding, against itself.

The GPU trainer stores every activation, and every gradient of one, in bf16, and computes in between in fp32. Round
stands wherever train_gpt2.cu stores a tensor; the arithmetic in between is fp64 here, since fp32 errs 2^-16 times as
much. Weights are bf16 copies of the fp32 master weights; their gradients are fp32. Attention rounds P and dS as well,
before the GEMMs that they enter. With --fp8 the operands of all other GEMMs are rounded to e4m3, too, the gradient of
the logits with dither; or, as on Hopper, to int8 in the forward GEMMs that read LayerNorm's output.

measure() gives, for each tensor that dev/test/whole/reference_test.h compares, the root mean square of its error over
some batches; the test allows three times as much. A fault that is larger than our rounding is refused, and nothing
else is.
"""

import copy
import functools
import math

import torch
from torch.nn import functional as F

from model import LAYERNORM_EPSILON, clip_gradients, make_muon, make_optimizer


def to_bf16(x):
    return x.to(torch.bfloat16).to(x.dtype)


class Round(torch.autograd.Function):
    """A tensor that is stored in bf16, and so is its gradient."""

    @staticmethod
    def forward(_, x):
        return to_bf16(x)

    @staticmethod
    def backward(_, gradient):
        return to_bf16(gradient)


class Weight(torch.autograd.Function):
    """A bf16 weight; its gradient is kept as it is."""

    @staticmethod
    def forward(_, x):
        return to_bf16(x)

    @staticmethod
    def backward(_, gradient):
        return gradient


class Attention(torch.autograd.Function):
    """Causal attention, (B,NH,T,HS) each, as the fused kernels round: exp(S - m) and, backward, P and dS."""

    @staticmethod
    def forward(ctx, q, k, v):
        T, HS = q.shape[-2:]
        scores = q @ k.transpose(-2, -1) / math.sqrt(HS)
        scores.masked_fill_(torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1), -math.inf)
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        total = e.sum(-1, keepdim=True)
        out = to_bf16(to_bf16(e) @ v / total)
        ctx.save_for_backward(q, k, v, out, e / total)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, P = ctx.saved_tensors
        D = (dout * out).sum(-1, keepdim=True)
        dS = to_bf16(P * (dout @ v.transpose(-2, -1) - D))
        scale = 1 / math.sqrt(q.shape[-1])
        return scale * (dS @ k), scale * (dS.transpose(-2, -1) @ q), to_bf16(P).transpose(-2, -1) @ dout


FP8_HEADROOM = 2  # dev/cuda/matmul/fp8.cuh


def to_e4m3(x, headroom=1, dithers=False):
    """x in e4m3. Its scale is the smallest power of two with which headroom times its largest does not saturate.
    dithers: small numbers are right on average (dither_of in llmc/cuda/quantize.cuh)."""
    scale = 2.0 ** math.ceil(math.log2(x.abs().max().item() * headroom / 448))
    x = x / scale
    spacing = torch.exp2(torch.floor(torch.log2(x.abs().clamp(min=2.0**-6))) - 3)
    if dithers:
        x = x + (torch.rand_like(x) - 0.5) * 2.0**-9
    return torch.round(x / spacing) * spacing * scale


def to_int8(x):
    """x in int8; each row has a scale."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale) * scale


class LinearFP8(torch.autograd.Function):
    """x w^T and its two gradients, of operands in e4m3. int8: those of x w^T are in int8. dithers: the gradient of the
    result with dither."""

    @staticmethod
    def forward(ctx, x, w, int8, dithers):
        codes = to_e4m3(x, FP8_HEADROOM), to_e4m3(w)
        ctx.save_for_backward(*codes)
        ctx.dithers = dithers
        x, w = (to_int8(x), to_int8(w)) if int8 else codes
        return x @ w.T

    @staticmethod
    def backward(ctx, dout):
        x, w = ctx.saved_tensors
        dout = to_e4m3(dout, FP8_HEADROOM, ctx.dithers)
        return dout @ w, dout.flatten(0, -2).T @ x.flatten(0, -2), None, None


def linear_fp8(x, w, b=None, int8=False):
    outputs, inputs = w.shape
    of_layernorm = outputs > inputs  # qkv, fc and the classifier
    out = LinearFP8.apply(x, w, int8 and of_layernorm, b is None)
    return out if b is None else out + b  # the classifier has no bias


def rounded_block(block, x, linear):
    """model.Block with our rounding. x: (B,T,C)."""
    B, T, C = x.shape
    w = {name: Weight.apply(parameter) for name, parameter in block.named_parameters()}
    r = Round.apply
    ln1 = r(F.layer_norm(x, (C,), w["ln1w"], w["ln1b"], LAYERNORM_EPSILON))
    qkv = r(linear(ln1, w["qkvw"], w["qkvb"]))
    q, k, v = qkv.view(B, T, 3, block.heads, C // block.heads).permute(2, 0, 3, 1, 4)
    atty = r(Attention.apply(q, k, v).transpose(1, 2).reshape(B, T, C))
    x = r(x + r(linear(atty, w["attprojw"], w["attprojb"])))
    ln2 = r(F.layer_norm(x, (C,), w["ln2w"], w["ln2b"], LAYERNORM_EPSILON))
    fch = r(linear(ln2, w["fcw"], w["fcb"]))
    return r(x + r(linear(r(F.gelu(fch, approximate="tanh")), w["fcprojw"], w["fcprojb"])))


def rounded_forward(model, x, y, linear=F.linear):
    """model.GPT2.forward with our rounding: logits (B,T,V) and the mean loss."""
    C, V = model.config.channels, model.config.vocab_size
    wte, wpe = Weight.apply(model.wte), Weight.apply(model.wpe)
    stream = Round.apply(F.embedding(x, wte) + wpe[: x.shape[1]])
    for block in model.blocks:
        stream = rounded_block(block, stream, linear)
    lnf = F.layer_norm(stream, (C,), Weight.apply(model.lnfw), Weight.apply(model.lnfb), LAYERNORM_EPSILON)
    logits = Round.apply(linear(Round.apply(lnf), wte)[..., :V])
    return logits, F.cross_entropy(logits.reshape(-1, V), y.reshape(-1))


def run_steps(model, forward, x, y, steps, clip, *settings):
    """Steps of AdamW on one batch. Returns logits, losses before each step, and the first gradients: a list a row."""
    optimizer = make_optimizer(model, *settings)
    losses = []
    for step in range(steps):
        logits, loss = forward(model, x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if step == 0:
            first = logits.detach()
            gradients = [torch.cat([t.grad.flatten() for t in tensors]) for _, tensors in model.tensors()]
        clip_gradients(model, clip)
        optimizer.step()
        losses.append(loss.item())
    return first, losses, gradients


def muon_changes(model, forward, x, y, steps, clip, *settings, rounded=lambda x: x):
    """What steps of Muon on one batch add to the weights: a list a row. settings: as make_optimizer()'s."""
    rate, _, _, _, decay = settings
    optimizers = [make_muon(model, rate, decay, rounded=rounded), make_optimizer(model, *settings, muon=True)]
    before = copy.deepcopy(model)
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        forward(model, x, y)[1].backward()
        clip_gradients(model, clip)
        for optimizer in optimizers:
            optimizer.step()
    pairs = zip(model.tensors(), before.tensors())
    return [torch.cat([(a - b).detach().flatten() for a, b in zip(now, then)]) for (_, now), (_, then) in pairs]


def forward_fp8(model, x, y):
    return rounded_forward(model, x, y, linear_fp8)


def forward_int8(model, x, y):
    return rounded_forward(model, x, y, functools.partial(linear_fp8, int8=True))


def measure(model, batches, steps, clip, *settings, forward=rounded_forward, muon=False):
    """{name: root mean square error over the batches}: relative in norm; of losses, in nats. `model` is in fp64.

    muon: also of what as many steps of Muon change.
    """
    names = [row.name for row, _ in model.tensors()]
    squares = {}

    def add(name, error):
        squares[name] = squares.get(name, 0.0) + float(error) ** 2

    def relative(a, b):
        return torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b)

    for x, y in batches:
        exact = run_steps(copy.deepcopy(model), lambda m, *batch: m(*batch), x, y, steps, clip, *settings)
        ours = run_steps(copy.deepcopy(model), forward, x, y, steps, clip, *settings)
        add("logits", relative(ours[0], exact[0]))
        add("loss", ours[1][0] - exact[1][0])
        add("gradients", relative(torch.cat(ours[2]), torch.cat(exact[2])))
        for name, a, b in zip(names, ours[2], exact[2]):
            add(f"gradient of {name}", relative(a, b))
        for step in range(steps):
            add(f"loss before step {step + 1}", ours[1][step] - exact[1][step])
        if muon:
            exact = muon_changes(copy.deepcopy(model), lambda m, *batch: m(*batch), x, y, steps, clip, *settings)
            ours = muon_changes(copy.deepcopy(model), rounded_forward, x, y, steps, clip, *settings, rounded=to_bf16)
            for name, *changes in zip(names, ours, exact):
                # the gradient of the keys' bias is zero, and its change an accident of rounding
                parts = [c.view(model.config.layers, 3, -1)[:, ::2] if name == "qkvb" else c for c in changes]
                add(f"Muon: change of {name}", relative(*parts))
    return {name: math.sqrt(square / len(batches)) for name, square in squares.items()}
