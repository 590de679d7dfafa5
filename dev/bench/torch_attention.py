#!/usr/bin/env python3
"""A PyTorch training step with our attention and with scaled_dot_product_attention, in one process.

    make libattention.so && python3 dev/bench/torch_attention.py      # 124M at T = 1024, 4096, 8192
    python3 dev/bench/torch_attention.py --model d24 --time 4096      # another model or length

GPT-2 as a PyTorch user writes it: bf16 autocast, fused AdamW, clipping, torch.compile of the whole model; random
weights and tokens, the same for all. Steps are timed with python/flashgpt_attention.py and with SDPA's cuDNN and
FlashAttention-2, once each has been seen to call its own operator and to give the others' results: rounds of ten steps
in random order, and the median of all. Rows go to <gpu>/torch_attention.csv; sdpa_over_this is the better SDPA's time
over the row's. Needs PyTorch 2.7 or newer: older ones do not compile the choice of SDPA's backend.
"""

import math
import os
import random
import statistics
import sys
import time

sys.path += [
    os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, *path)
    for path in (["data"], [os.pardir, "python"])
]

from measured import BENCH, file_name, gpu_name, gpu_provenance, write_rows

from data_common import Parser, fail, positive_int, run

try:
    import flashgpt_attention
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    raise SystemExit(f"error: no Python package {error.name} here: pip install a newer torch") from None

SIZES = {"d12": (12, 12, 768), "d24": (24, 16, 1024), "d36": (36, 20, 1280)}  # layers, heads, channels
VOCAB_SIZE = 50304  # GPT-2's, to a multiple of 128
TOKENS = 32768  # of a batch
OURS = "ours"
COLUMNS = [
    *["gpu", "driver", "cuda", "torch", "cudnn", "date", "commit", "model", "B", "T", "attention"],
    *["ms", "fastest_ms", "tokens_per_s", "sdpa_over_this"],
]


# ----------------------------------------------------------------------------
# The model


def sdpa(qkv):
    """(B,T,NH,HS) of qkv (B,T,3,NH,HS)"""
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


# A function each: torch.compile would take models that differ in a variable's value alone for the same.
def cudnn(qkv):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return sdpa(qkv)


def flash2(qkv):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(qkv)


# name: the attention, and the operator by which it must be computed
ATTENTIONS = {
    OURS: (flashgpt_attention.attention, "flashgpt::attention"),
    "cuDNN": (cudnn, "aten::_scaled_dot_product_cudnn_attention"),
    "FlashAttention-2": (flash2, "aten::_scaled_dot_product_flash_attention"),
}


class Block(nn.Module):
    """x + attention(LayerNorm(x)), then x + MLP(LayerNorm(x)). x: (B,T,C)."""

    def __init__(self, heads, C, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.c_attn, self.c_proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.c_fc, self.c_fcproj = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.c_attn(self.ln_1(x)).view(B, T, 3, self.heads, C // self.heads)
        x = x + self.c_proj(self.attention(qkv).reshape(B, T, C))
        return x + self.c_fcproj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Model(nn.Module):
    """GPT-2 with tied embeddings; returns the mean loss. The same weights whatever the attention."""

    def __init__(self, size, T, attention, vocab_size=VOCAB_SIZE):
        super().__init__()
        layers, heads, C = size
        torch.manual_seed(42)
        self.wte, self.wpe = nn.Embedding(vocab_size, C), nn.Embedding(T, C)
        self.blocks = nn.ModuleList(Block(heads, C, attention) for _ in range(layers))
        self.ln_f = nn.LayerNorm(C)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if "proj" in name else 0.02)

    def forward(self, x, y):
        stream = self.wte(x) + self.wpe.weight
        for block in self.blocks:
            stream = block(stream)
        logits = F.linear(self.ln_f(stream), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


class Entrant:
    """A compiled model, its optimizer and its batch: step() trains one step and waits for it."""

    def __init__(self, size, batch, attention, backend="inductor", **options):
        self.x, self.y = batch
        self.device = self.x.device.type
        self.model = Model(size, self.x.shape[1], attention, **options).to(self.device)
        self.compiled = torch.compile(self.model, backend=backend)
        groups = {True: [], False: []}
        for p in self.model.parameters():
            groups[p.dim() > 1].append(p)
        groups = [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)

    def gradients(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.compiled(self.x, self.y)
        loss.backward()

    def step(self):
        """Milliseconds of a step"""
        start = time.perf_counter()
        self.gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)


# ----------------------------------------------------------------------------
# Checking and timing


def relative_error(x, expected):
    return ((x.float() - expected.float()).norm() / expected.float().norm()).item()


def check_alike(results):
    """Ends the program unless {name: [out, dq, dk, dv]} are alike: each is 2e-3 to 3e-3 off fp64 in bf16."""
    first, expected = next(iter(results.items()))
    for name, found in results.items():
        for tensor, x, y in zip(("out", "dq", "dk", "dv"), found, expected):
            error = relative_error(x, y)
            if not error <= 0.01:
                fail(f"{name}: {tensor} is off {first}'s by {error:.4f} of its norm")


def check_values(attentions, qkv):
    """Ends the program if results or gradients of attentions differ."""
    results, dout = {}, torch.randn_like(qkv[:, :, 0].contiguous())
    for name, attention in attentions.items():
        out = attention(qkv.requires_grad_())
        results[name] = [out, *torch.autograd.grad(out, qkv, dout)[0].unbind(2)]
    check_alike(results)


def check_models(entrants, operators):
    """Ends the program if a model does not call its operator, or calls another's, or if the gradients of its values are
    not those of the others. Those of queries and keys are near 0 in a new model: a tenth of them is rounding."""
    gradients = {}
    for name, entrant in entrants.items():
        entrant.gradients()  # compiles
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            entrant.gradients()
        called = {event.key for event in profile.key_averages()} & set(operators.values())
        if called != {operators[name]}:
            fail(f"{name} calls {' and '.join(sorted(called)) or 'none of the operators'} instead of {operators[name]}")
        gradients[name] = [block.c_attn.weight.grad.chunk(3)[2] for block in entrant.model.blocks]
    first, expected = next(iter(gradients.items()))
    for name, found in gradients.items():
        error = max(relative_error(x, y) for x, y in zip(found, expected))
        if not error <= 0.03:
            fail(f"{name}: the gradient of a layer's values is off {first}'s by {error:.3f} of its norm")


def time_steps(entrants, rounds, order, warm_up=10, steps=10):
    """{name: milliseconds of each step}"""
    times = {name: [] for name in entrants}
    for entrant in entrants.values():
        for _ in range(warm_up):
            entrant.step()
    for _ in range(rounds):
        for name in order.sample(list(entrants), len(entrants)):
            entrants[name].step()  # caches and clocks are another's
            times[name] += [entrants[name].step() for _ in range(steps)]
    return times


def rows_of(times, model, B, T):
    """The columns from model on, of each attention"""
    median = {name: statistics.median(found) for name, found in times.items()}
    best = min(ms for name, ms in median.items() if name != OURS)
    for name, ms in median.items():
        columns = {"model": model, "B": B, "T": T, "attention": name, "ms": f"{ms:.3f}"}
        columns |= {"fastest_ms": f"{min(times[name]):.3f}", "tokens_per_s": round(1e3 * B * T / ms)}
        yield {**columns, "sdpa_over_this": f"{best / ms:.4f}"}


def parse_arguments():
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model", choices=SIZES, default="d12", help="GPT-2 by depth (default: %(default)s)")
    lengths = [1024, 4096, 8192]
    add("--time", type=positive_int, action="append", metavar="T", help=f"may be repeated (default: {lengths})")
    add("--rounds", type=positive_int, default=5, metavar="N", help="of ten steps each (default: %(default)s)")
    args = parser.parse_args()
    args.time = args.time or lengths
    if any(T > TOKENS for T in args.time):
        fail(f"--time {max(args.time)}: at most {TOKENS}, the tokens of a batch")
    return args


def main():
    args = parse_arguments()
    if not torch.cuda.is_available():
        fail("PyTorch finds no GPU here")
    torch.set_float32_matmul_precision("high")
    gpu = gpu_name()
    path = os.path.join(BENCH, file_name(gpu), "torch_attention.csv")
    provenance = {**gpu_provenance(gpu), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    for T in args.time:
        B = TOKENS // T
        torch._dynamo.reset()
        batch = torch.randint(VOCAB_SIZE, (2, B, T), generator=torch.Generator().manual_seed(1)).cuda()
        _, heads, C = SIZES[args.model]
        qkv = torch.randn(1, T, 3, heads, C // heads, device="cuda", dtype=torch.bfloat16)
        check_values({name: function for name, (function, _) in ATTENTIONS.items()}, qkv)
        entrants = {name: Entrant(SIZES[args.model], batch, function) for name, (function, _) in ATTENTIONS.items()}
        check_models(entrants, {name: operator for name, (_, operator) in ATTENTIONS.items()})
        times = time_steps(entrants, args.rounds, random.Random(1))
        rows = list(rows_of(times, args.model, B, T))
        for row in rows:
            print(f"{row['model']} {B} x {T} {row['attention']:16s} {row['ms']:>9s} ms, {row['sdpa_over_this']}")
        keys = ["gpu", "model", "B", "T", "attention"]
        write_rows(path, COLUMNS, keys, [{**provenance, **row} for row in rows])


if __name__ == "__main__":
    run(main)
