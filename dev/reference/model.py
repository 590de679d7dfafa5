"""GPT-2 in PyTorch, as published (Radford et al. 2019): the model that the C and CUDA trainers are held against.

Learned positions, pre-LayerNorm blocks, tanh-GELU, output projection tied to the token embedding. The parameters have
the names, shapes and order of the checkpoint file, so TABLE below is all that reading, writing and initialising need.

B batch, T time, C channels, L layers, NH heads, HS = C/NH head size, V vocabulary, Vp the same padded to a multiple
of 128, maxT context length.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

LAYERNORM_EPSILON = 1e-5

SIZES = {  # layers, heads, channels
    "d6": (6, 6, 384),
    "d12": (12, 12, 768),
    "d24": (24, 16, 1024),
    "d36": (36, 20, 1280),
    "d48": (48, 25, 1600),
}


@dataclass
class Config:
    context: int
    vocab_size: int
    layers: int
    heads: int
    channels: int
    trained: int = 0  # tokens of the longest row that the weights were trained on; 0: the context

    @property
    def trained_length(self):
        return self.trained or self.context

    @property
    def padded_vocab_size(self):
        return (self.vocab_size + 127) // 128 * 128


class Row(NamedTuple):
    """A tensor of the model: (rows, columns) as multiples of named sizes, once for each layer or once in all."""

    name: str
    per_layer: bool
    shape: tuple
    init: str


TABLE = [
    Row("wte", False, ("Vp", "C"), "normal"),  # token embedding and output projection; rows V..Vp-1 are zero
    Row("wpe", False, ("maxT", "C"), "normal"),  # position embedding
    Row("ln1w", True, ("C",), "one"),  # LayerNorm before attention
    Row("ln1b", True, ("C",), "zero"),
    Row("qkvw", True, ("3C", "C"), "normal"),  # queries, keys, values
    Row("qkvb", True, ("3C",), "zero"),
    Row("attprojw", True, ("C", "C"), "residual"),  # attention output back into the residual stream
    Row("attprojb", True, ("C",), "zero"),
    Row("ln2w", True, ("C",), "one"),  # LayerNorm before the MLP
    Row("ln2b", True, ("C",), "zero"),
    Row("fcw", True, ("4C", "C"), "normal"),  # MLP up
    Row("fcb", True, ("4C",), "zero"),
    Row("fcprojw", True, ("C", "4C"), "residual"),  # MLP down, back into the residual stream
    Row("fcprojb", True, ("C",), "zero"),
    Row("lnfw", False, ("C",), "one"),  # final LayerNorm
    Row("lnfb", False, ("C",), "zero"),
]


def shape_of(row, config):
    C = config.channels
    sizes = {"Vp": config.padded_vocab_size, "maxT": config.context, "C": C, "3C": 3 * C, "4C": 4 * C}
    return [sizes[size] for size in row.shape]


def later_keys(T, device):
    return torch.ones(T, T, dtype=torch.bool, device=device).triu(1)


def causal_attention(q, k, v, outside=None):
    """softmax(Q K^T / sqrt(HS)) V over keys j <= i, spelled out. q, k, v: (B,NH,T,HS).

    outside: (B,1,T,T), True for keys without effect, those behind the query too; None: those alone
    """
    T, HS = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(HS)  # (B,NH,T,T)
    return scores.masked_fill(later_keys(T, q.device) if outside is None else outside, -math.inf).softmax(-1) @ v


def fused_attention(q, k, v, outside=None):
    """The same through PyTorch's scaled_dot_product_attention, whose backend the caller chooses. PyTorch 1 has none."""
    if not hasattr(F, "scaled_dot_product_attention"):
        return causal_attention(q, k, v, outside)
    if outside is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~outside)


def document_starts(x, separator):
    """(B,T): where the document of each token of x (B,T) begins: at a separator, or where the row does."""
    at = torch.arange(x.shape[1], device=x.device).expand_as(x)
    return torch.where(x == separator, at, 0).cummax(1).values


class Block(nn.Module):
    """One layer: x + attention(LayerNorm(x)), then x + MLP(LayerNorm(x)). x: (B,T,C)."""

    def __init__(self, config, attention):
        super().__init__()
        self.heads, self.attention = config.heads, attention
        for row in TABLE:
            if row.per_layer:
                setattr(self, row.name, nn.Parameter(torch.zeros(shape_of(row, config))))

    def linear(self, name, x):
        """x W^T + b of the layer `name`: qkv, attproj, fc or fcproj."""
        return F.linear(x, getattr(self, name + "w"), getattr(self, name + "b"))

    def forward(self, x, outside=None):
        B, T, C = x.shape
        ln1 = F.layer_norm(x, (C,), self.ln1w, self.ln1b, LAYERNORM_EPSILON)
        qkv = self.linear("qkv", ln1)  # (B,T,3C)
        q, k, v = qkv.view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)  # each (B,NH,T,HS)
        atty = self.attention(q, k, v) if outside is None else self.attention(q, k, v, outside)
        atty = atty.transpose(1, 2).reshape(B, T, C)
        x = x + self.linear("attproj", atty)
        ln2 = F.layer_norm(x, (C,), self.ln2w, self.ln2b, LAYERNORM_EPSILON)
        fch = self.linear("fc", ln2)  # (B,T,4C)
        return x + self.linear("fcproj", F.gelu(fch, approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, config, attention=causal_attention):
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.layers))
        for row in TABLE:
            if not row.per_layer:
                setattr(self, row.name, nn.Parameter(torch.zeros(shape_of(row, config))))

    def forward(self, x, y, separator=None, document_positions=False):
        """x, y: (B,T) tokens and those that follow them. Returns logits (B,T,V) and the mean loss in nats.

        With a separator, attention stays within documents, and positions may be counted from their starts.
        """
        C, V, T = self.config.channels, self.config.vocab_size, x.shape[1]
        positions, outside = torch.arange(T, device=x.device), None
        if separator is not None:
            starts = document_starts(x, separator)
            outside = (later_keys(T, x.device) | (positions < starts[:, :, None]))[:, None]
            positions = positions - starts if document_positions else positions
        stream = F.embedding(x, self.wte) + self.wpe[positions]
        for block in self.blocks:
            stream = block(stream, outside)
        lnf = F.layer_norm(stream, (C,), self.lnfw, self.lnfb, LAYERNORM_EPSILON)
        logits = F.linear(lnf, self.wte)[..., :V]
        return logits, F.cross_entropy(logits.reshape(-1, V), y.reshape(-1))

    def tensors(self):
        """(row, its parameters: one for each layer, or the only one) for each row of the table, in the file's order."""
        for row in TABLE:
            owners = self.blocks if row.per_layer else [self]
            yield row, [getattr(owner, row.name) for owner in owners]


@torch.no_grad()
def initialise(model, seed):
    """GPT-2's initial weights: N(0, 0.02), and 0.02/sqrt(2L) for matmuls into the residual stream; biases 0, gains 1.

    The random numbers are drawn layer by layer, the embeddings first, as the trainers do for a new model (-e d12).
    """
    generator = torch.Generator().manual_seed(seed)
    deviation = {"normal": 0.02, "residual": 0.02 / math.sqrt(2 * model.config.layers)}
    for owner in [model, *model.blocks]:
        for row in TABLE:
            if row.per_layer == (owner is model):
                continue
            tensor = getattr(owner, row.name)
            if row.init in deviation:
                drawn = tensor[: model.config.vocab_size] if row.name == "wte" else tensor
                drawn.normal_(0, deviation[row.init], generator=generator)
            else:
                tensor.fill_(1 if row.init == "one" else 0)


@torch.no_grad()
def initialise_for_tests(model, seed):
    """Weights with which every gradient matters, unlike at the start of training.

    Matrices are N(0, 1/fan-in), so that attention scores are of order one instead of near zero, and softmax is far from
    uniform; biases and embeddings are N(0, 0.1^2); LayerNorm gains are 1 + N(0, 0.2^2).
    """
    generator = torch.Generator().manual_seed(seed)
    for row, tensors in model.tensors():
        for tensor in tensors:
            drawn = tensor[: model.config.vocab_size] if row.name == "wte" else tensor
            if row.init == "one":
                drawn.normal_(1, 0.2, generator=generator)
            elif row.per_layer and tensor.dim() == 2:
                drawn.normal_(0, 1 / math.sqrt(tensor.shape[1]), generator=generator)
            else:
                drawn.normal_(0, 0.1, generator=generator)


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) as llmc/model/muon.h has it. `rounded` stands where the trainer stores a tensor."""

    def __init__(self, matrices, learning_rate, momentum, weight_decay, rounded=lambda x: x):
        self.rounded = rounded
        super().__init__(matrices, {"lr": learning_rate, "momentum": momentum, "weight_decay": weight_decay})

    def orthogonalised(self, u):
        r = self.rounded
        x = r(u)
        x = r(x / (torch.linalg.vector_norm(x) + 1e-7))
        x = x.t() if len(x) > x.shape[1] else x
        for _ in range(5):
            a = r(x @ x.t())
            x = r(3.4445 * x + r(-4.7750 * a + 2.0315 * a @ a) @ x)
        return x.t() if len(u) > u.shape[1] else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            mu, rate = group["momentum"], group["lr"]
            for p in group["params"]:
                moment = self.state[p].setdefault("momentum", torch.zeros_like(p))
                moment.mul_(mu).add_(p.grad, alpha=1 - mu)
                squares = 3 if len(p) == 3 * p.shape[1] else 1  # of queries, keys and values
                u = (mu * moment + (1 - mu) * p.grad).chunk(squares)
                o = torch.cat([self.orthogonalised(part) for part in u])
                scale = 0.2 * math.sqrt(max(u[0].shape))
                p.mul_(1 - rate * group["weight_decay"]).add_(o, alpha=-rate * scale)


def make_muon(model, learning_rate, weight_decay=0.1, momentum=0.95, rounded=lambda x: x):
    """Muon for the matrices of the layers; make_optimizer() then leaves these out."""
    matrices = [p for block in model.blocks for p in block.parameters() if p.dim() > 1]
    return Muon(matrices, learning_rate, momentum, weight_decay, rounded)


def make_optimizer(model, learning_rate, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, muon=False):
    """AdamW (Loshchilov & Hutter 2019) whose weight decay acts on matrices only, the embeddings among them.

    muon: of the matrices, for the embeddings alone.
    """
    matrices = [model.wte, model.wpe] if muon else [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    on_gpu = matrices[0].is_cuda
    fused = {"fused": True} if on_gpu else {}  # PyTorch 1 knows no such option
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2), eps=epsilon, **fused)


@torch.no_grad()
def clip_gradients(model, limit):
    """Scales all gradients by min(1, limit / norm) and returns their norm from before, as a tensor; 0: no limit."""
    gradients = [p.grad for p in model.parameters()]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit > 0:
        torch._foreach_mul_(gradients, (limit / norm).clamp(max=1))
    return norm
