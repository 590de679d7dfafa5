#!/usr/bin/env python3
"""Attention over rows of several documents, ours beside FlexAttention and FlashAttention's varlen: forward, backward.

    make libattention.so && python3 dev/bench/torch_documents.py            # 65,536 tokens, 12 heads of 64
    python3 dev/bench/torch_documents.py --time 4096 --lengths log-normal   # one length of rows, one of documents
    python3 dev/bench/torch_documents.py --flash3 FOLDER                    # and FlashAttention-3; --flash4 likewise

Documents have equal lengths, or FineWeb's: log-normal, 403 tokens at the median, 690 in the mean. Each provider has
its tensors as it likes them best; masks and offsets are made beforehand. Results are compared first. Steady: each runs
.25 s and is then timed for .2 s, in random order, three rounds, median. TFLOP/s count the scores that a query sees, for
the backward pass 2.5 times. Rows go to <gpu>/torch_documents.csv; best_peer_over_this is the best peer's time over the
row's. Needs PyTorch 2.7 or newer.
"""

import importlib
import inspect
import math
import os
import random
import statistics
import sys

from measured import BENCH, file_name, gpu_name, gpu_provenance, write_rows
from torch_attention import OURS, check_alike

from data_common import Parser, fail, positive_int, run

try:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError as error:
    raise SystemExit(f"error: no Python package {error.name} here: pip install a newer torch") from None

TOKENS, HEADS, HEAD_SIZE = 65536, 12, 64
LENGTHS = ("64", "512", "2048", "log-normal")
KEY = ["gpu", "commit", "T", "lengths", "direction", "provider"]
COLUMNS = [
    *["gpu", "driver", "cuda", "torch", "date", "commit", "T", "lengths", "direction", "provider"],
    *["ms", "tflops", "best_peer_over_this"],
]


def document_starts(B, T, lengths, seed=1):
    """(B,T) int32: where the document of each token begins"""
    draw = random.Random(seed)
    sigma = math.sqrt(2 * math.log(690 / 403))
    starts = torch.zeros(B, T, dtype=torch.int32)
    for row in starts:
        begin = 0
        while begin < T:
            length = int(lengths) if lengths.isdigit() else max(1, round(403 * math.exp(draw.gauss(0, sigma))))
            row[begin : begin + length], begin = begin, begin + length
    return starts


def visible_scores(starts):
    """How many keys all queries see together"""
    T = starts.shape[1]
    return int((torch.arange(T, device=starts.device) - starts + 1).sum())


def offsets_of(starts):
    """(documents + 1,) int32: where each document begins in the tokens of all rows, and the end; the longest one"""
    B, T = starts.shape
    first = (starts.cpu() == torch.arange(T)).flatten()
    offsets = torch.cat([first.nonzero().flatten(), torch.tensor([B * T])]).int()
    return offsets.to(starts.device), int(offsets.diff().max())


# ----------------------------------------------------------------------------
# Providers: of qkv (B,T,3,NH,HS), dout (B,T,NH,HS) and starts, two functions; forward() returns out (B,T,NH,HS), and
# backward() dq, dk, dv, of a forward pass before.


def ours(qkv, dout, starts):
    out, l, m = torch.ops.flashgpt.attention(qkv, None, None, starts)  # noqa: E741
    return (
        lambda: torch.ops.flashgpt.attention(qkv, None, None, starts)[0],
        lambda: torch.ops.flashgpt.attention_backward(dout, qkv, None, None, starts, out, l, m).unbind(2),
    )


def differentiable(function, tensors, dout):
    """function(*tensors) and its gradients for dout"""
    tensors = [x.detach().contiguous().requires_grad_() for x in tensors]
    out = function(*tensors)
    return lambda: function(*tensors), lambda: torch.autograd.grad(out, tensors, dout, retain_graph=True)


def flex(qkv, dout, starts):
    B, T = starts.shape
    mask = create_block_mask(
        lambda b, h, i, j: (j <= i) & (j >= starts[b, i]), B, None, T, T, device=qkv.device, _compile=qkv.is_cuda
    )
    attention = torch.compile(flex_attention, dynamic=False) if qkv.is_cuda else flex_attention
    forward, backward = differentiable(
        lambda q, k, v: attention(q, k, v, block_mask=mask),
        qkv.permute(2, 0, 3, 1, 4),  # (B,NH,T,HS) each
        dout.transpose(1, 2).contiguous(),
    )
    return lambda: forward().transpose(1, 2), lambda: [x.transpose(1, 2) for x in backward()]


def varlen(function):
    """A provider of a function of q, k, v (tokens,NH,HS), offsets and longest of queries and of keys"""

    def provider(qkv, dout, starts):
        offsets, longest = offsets_of(starts)

        def attention(q, k, v):
            out = function(q, k, v, offsets, offsets, longest, longest)
            return out[0] if isinstance(out, tuple) else out

        forward, backward = differentiable(attention, qkv.flatten(0, 1).unbind(1), dout.flatten(0, 1))
        return lambda: forward().view(dout.shape), lambda: [x.view(dout.shape) for x in backward()]

    return provider


def causal_varlen(function):
    """A varlen function of FlashAttention-3 or -4, as varlen() calls it"""
    names = [f"{what}_{which}" for what in ("cu_seqlens", "max_seqlen") for which in "qk"]
    return lambda q, k, v, *sizes: function(q, k, v, **dict(zip(names, sizes)), causal=True)


def providers(flash3, flash4):
    """{name: provider} of what there is here"""
    found = {OURS: ours, "FlexAttention": flex}
    try:
        torch_varlen = importlib.import_module("torch.nn.attention.varlen").varlen_attn
        before_2_11 = "is_causal" in inspect.signature(torch_varlen).parameters
        causal = {"is_causal": True} if before_2_11 else {"window_size": (-1, 0)}
        found["FlashAttention-2 varlen"] = varlen(lambda *arguments: torch_varlen(*arguments, **causal))
    except ImportError:
        print(f"note: PyTorch {torch.__version__} has no varlen attention")
    for version, folder, module in ((3, flash3, "flash_attn_interface"), (4, flash4, "flash_attn.cute")):
        if not folder:
            continue
        sys.path.insert(0, folder)
        try:
            flash = importlib.import_module(module).flash_attn_varlen_func
        except (ImportError, AttributeError) as error:
            fail(f"--flash{version} {folder}: no {module}.flash_attn_varlen_func there: {error}")
        found[f"FlashAttention-{version} varlen"] = varlen(causal_varlen(flash))
    return found


def check_values(passes):
    """Ends the program if a provider's results are not ours."""
    check_alike({name: [forward(), *backward()] for name, (forward, backward) in passes.items()})


# ----------------------------------------------------------------------------
# Timing


def time_once(function, seconds):
    """Milliseconds of a call, over so many seconds of calls"""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    end.synchronize()
    calls = max(1, int(1e3 * seconds / max(begin.elapsed_time(end), 1e-3)))
    begin.record()
    for _ in range(calls):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def time_steady(functions, order, rounds=3):
    """{name: median milliseconds}"""
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name in order.sample(list(functions), len(functions)):
            time_once(functions[name], 0.25)
            times[name].append(time_once(functions[name], 0.2))
    return {name: statistics.median(found) for name, found in times.items()}


def rows_of(times, direction, scores, T, lengths):
    """The columns from T on, of each provider"""
    flops = (4 if direction == "forward" else 10) * HEADS * HEAD_SIZE * scores
    best = min(ms for name, ms in times.items() if name != OURS)
    for name, ms in times.items():
        columns = {"T": T, "lengths": lengths, "direction": direction, "provider": name, "ms": f"{ms:.4f}"}
        yield {**columns, "tflops": f"{1e-9 * flops / ms:.1f}", "best_peer_over_this": f"{best / ms:.3f}"}


def main():
    parser = Parser(__doc__)
    add = parser.add_argument
    times = [1024, 4096, 8192, 16384]
    add("--time", type=positive_int, action="append", metavar="T", help=f"may be repeated (default: {times})")
    add("--lengths", choices=LENGTHS, action="append", help="of documents; may be repeated (default: all)")
    add("--flash3", metavar="FOLDER", help="where flash_attn_interface of FlashAttention-3 is")
    add("--flash4", metavar="FOLDER", help="where flash_attn.cute of FlashAttention-4 is")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        fail("PyTorch finds no GPU here")
    found, order = providers(args.flash3, args.flash4), random.Random(1)
    gpu = gpu_name()
    path = os.path.join(BENCH, file_name(gpu), "torch_documents.csv")
    about = {**gpu_provenance(gpu), "torch": torch.__version__}
    for T in args.time or times:
        B = max(1, TOKENS // T)
        for lengths in args.lengths or LENGTHS:
            torch._dynamo.reset()
            starts = document_starts(B, T, lengths).cuda()
            qkv = torch.randn(B, T, 3, HEADS, HEAD_SIZE, device="cuda", dtype=torch.bfloat16)
            dout = torch.randn(B, T, HEADS, HEAD_SIZE, device="cuda", dtype=torch.bfloat16)
            passes = {name: provider(qkv, dout, starts) for name, provider in found.items()}
            check_values(passes)
            for which, direction in enumerate(("forward", "backward")):
                measured = time_steady({name: pair[which] for name, pair in passes.items()}, order)
                rows = list(rows_of(measured, direction, visible_scores(starts), T, lengths))
                write_rows(path, COLUMNS, KEY, [{**about, **row} for row in rows])
                for row in rows:
                    said = f"{B} x {T}, documents of {lengths}, {direction}: {row['provider']}"
                    print(
                        f"{said:75} {row['ms']} ms, {row['tflops']} TFLOP/s, {row['best_peer_over_this']}", flush=True
                    )


if __name__ == "__main__":
    run(main)
