#!/usr/bin/env python3
"""The time of a PyTorch training step at a given size: forward, backward, clipping and AdamW, to stand beside ours.

    python3 dev/reference/time_torch.py --model d12 --batch 64 --time 1024 --sdpa cudnn     # a minute or two
    torchrun --standalone --nproc-per-node 2 dev/reference/time_torch.py --model d12 --batch 64     # by DDP

Random weights and tokens, bf16 autocast, fused AdamW, torch.compile; the vocabulary is a multiple of 128, as PyTorch
users pad it for speed. With --fp8 1 the blocks' linear layers are torchao's. Prints the mean step, the median and the
fastest, tokens/s by the mean, and the reserved memory.
With several processes --batch is that of each, and the first one prints.
"""

import os
import statistics
import time
from contextlib import nullcontext

try:
    import torch
    from torch import distributed
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    raise SystemExit(f"error: no Python package {error.name} here: pip install torch numpy") from None

from common import Parser, add_device_option, fail, positive_int, run
from model import (
    GPT2,
    SIZES,
    Block,
    Config,
    clip_gradients,
    fused_attention,
    initialise,
    make_optimizer,
)

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def parse_arguments():
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model", choices=SIZES, default="d12", help="GPT-2 by depth (default: %(default)s)")
    add("--batch", type=positive_int, default=64, metavar="B", help="default: %(default)s")
    add("--time", type=positive_int, default=1024, metavar="T", help="default: %(default)s")
    add("--vocab", type=positive_int, default=50304, metavar="V", help="default: %(default)s")
    add(
        "--sdpa",
        choices=["auto", *BACKENDS],
        default="auto",
        help="attention's backend (default: PyTorch's own choice)",
    )
    add("--fp8", type=int, choices=[0, 1], default=0, help="1: linear layers by torchao (default: %(default)s)")
    add("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="default: %(default)s")
    add("--compile", type=int, choices=[0, 1], default=1, help="1: torch.compile (default: %(default)s)")
    add("--steps", type=positive_int, default=30, metavar="N", help="steps that are timed (default: %(default)s)")
    add("--warm-up", type=positive_int, default=10, metavar="N", help="steps before them (default: %(default)s)")
    add_device_option(parser)
    return parser.parse_args()


def use_torchao(model):
    """Replaces the blocks' linear layers by torchao's: e4m3, gradients in e5m2, one scale per tensor, never delayed."""
    try:
        from torchao.float8 import convert_to_float8_training
    except ImportError:
        fail("--fp8 1 needs the Python package torchao, and the PyTorch that it is of: pip install torchao")
    for block in model.blocks:
        block.linears = torch.nn.ModuleDict()
        for name in ("qkv", "attproj", "fc", "fcproj"):
            weight = getattr(block, name + "w")
            block.linears[name] = torch.nn.Linear(weight.shape[1], weight.shape[0], device="meta")
            block.linears[name].weight, block.linears[name].bias = weight, getattr(block, name + "b")
        convert_to_float8_training(block.linears)
    Block.linear = lambda self, name, x: self.linears[name](x)


def join_others(args):
    """Under torchrun: meets the other processes and takes this one's GPU. Returns how many there are, and the rank."""
    processes, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if processes > 1:
        if torch.device(args.device).type == "cuda":
            args.device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(args.device)
        distributed.init_process_group("nccl" if "cuda" in args.device else "gloo")
    return processes, rank


def main():
    args = parse_arguments()
    processes, rank = join_others(args)
    B, T, on_gpu = args.batch, args.time, torch.device(args.device).type == "cuda"
    torch.set_float32_matmul_precision("high")
    layers, heads, channels = SIZES[args.model]
    model = GPT2(Config(max(T, 1024), args.vocab, layers, heads, channels), attention=fused_attention)
    initialise(model, seed=42)
    model.to(args.device)
    if args.fp8:
        use_torchao(model)
    optimizer = make_optimizer(model, 1e-4)
    trained = model
    if processes > 1:  # gradients are averaged in buckets while the backward pass runs
        trained = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    compiled = torch.compile(trained) if args.compile else trained
    x, y = torch.randint(args.vocab, (2, B, T), device=args.device)
    autocast = torch.autocast(torch.device(args.device).type, torch.bfloat16, enabled=args.dtype == "bfloat16")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with autocast:
            loss = compiled(x, y)[1]
        loss.backward()
        clip_gradients(model, 1.0)
        optimizer.step()

    def seconds_of_step():
        start = time.perf_counter()
        step()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    with nullcontext() if args.sdpa == "auto" else sdpa_kernel(BACKENDS[args.sdpa]):
        try:
            for _ in range(args.warm_up):
                seconds_of_step()
            times = [seconds_of_step() for _ in range(args.steps)]
        except torch.cuda.OutOfMemoryError:
            fail(f"--batch {B} does not fit in the memory of this GPU")
        except RuntimeError as error:
            if "No available kernel" not in str(error) and "No viable backend" not in str(error):
                raise
            fail(f"--sdpa {args.sdpa} does not serve this device and precision; --sdpa auto lets PyTorch choose")
    if processes > 1:
        distributed.destroy_process_group()
    if rank > 0:
        return
    mean, median = statistics.mean(times), statistics.median(times)
    device = torch.cuda.get_device_name() if on_gpu else f"CPU, {os.cpu_count()} processors"
    memory = f", {torch.cuda.max_memory_reserved() / 2**20:.0f} MiB" if on_gpu else ""
    dtype = "fp8 by torchao" if args.fp8 else args.dtype
    how = f"{dtype}, sdpa {args.sdpa}, {'torch.compile' if args.compile else 'eager'}"
    how += f", {processes} processes with DistributedDataParallel" if processes > 1 else ""
    print(f"{args.model}, B={B}, T={T}, {how}, PyTorch {torch.__version__}, {device}")
    print(
        f"mean {1e3 * mean:.3f} ms of {len(times)} steps after {args.warm_up} (median {1e3 * median:.2f}, "
        f"fastest {1e3 * min(times):.2f}), {processes * B * T / mean:,.0f} tok/s{memory}"
    )


if __name__ == "__main__":
    run(main)
