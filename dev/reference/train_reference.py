#!/usr/bin/env python3
"""Trains the PyTorch model from a checkpoint on the very batches of the C and CUDA trainers, for a curve beside theirs.

    python3 dev/reference/train_reference.py -e gpt2_124M.bin -b 64 -t 1024 -x 200 -l 3e-4 -o log_torch --compile 1

The flags are the trainers'; those that PyTorch adds have no short form. Writes <output-dir>/main.log with nine digits.
124M at B=16, T=1024 in bf16 without --compile: 51 ms a step and 18 GiB on an H200.
"""

import glob
import math
import os
import re
import statistics
import time
from contextlib import nullcontext

try:
    import numpy as np
    import torch
except ImportError as error:
    raise SystemExit(f"error: no Python package {error.name} here: pip install torch numpy") from None

from common import HEADER_BYTES, Parser, add_device_option, fail, positive_int, run, verify
from formats import read_model
from model import clip_gradients, fused_attention, make_muon, make_optimizer

TOKEN_TYPES = {20240520: np.uint16, 20240801: np.uint32}  # by magic number


class TokenLoader:
    """Batches in the order of the trainers' loader.

    A row is a run of T tokens and the one after it. Unshuffled, rows follow each other, file by file. Shuffled, each
    epoch permutes the files, on from the order before, then the rows of each file when it is opened, by Fisher-Yates
    steps i = n-1..1 that swap i with MT19937() mod (i+1). The last rows of an order that fill no batch are left out.
    """

    def __init__(self, pattern, B, T, vocab_size, shuffle_seed=None):
        self.B, self.T, self.vocab_size = B, T, vocab_size
        paths = sorted(glob.glob(pattern))
        if not paths:
            fail(f"no file matches {pattern}")
        self.paths = paths
        self.shards = [self.open_shard(path) for path in paths]
        self.verified = set()  # indices of those compared with their checksums
        self.order = list(range(len(self.shards)))
        self.random = None if shuffle_seed is None else np.random.RandomState(shuffle_seed)
        self.reset()

    def open_shard(self, path):
        """The tokens of a file as a (n,) map."""
        try:
            header = np.fromfile(path, np.int32, 256)
            size = os.path.getsize(path)
        except OSError as error:
            fail(f"cannot read {path}: {error.strerror}")
        dtype = TOKEN_TYPES.get(int(header[0])) if len(header) == 256 else None
        if dtype is None or size != HEADER_BYTES + int(header[2]) * np.dtype(dtype).itemsize:
            fail(f"{path} is not a sound token file")
        if header[2] < self.B * self.T + 1:
            fail(f"{path} holds {header[2]:,} tokens; a batch of {self.B} x {self.T} needs {self.B * self.T + 1:,}")
        return np.memmap(path, dtype, "r", HEADER_BYTES)

    def permute(self, items):
        for i in range(len(items) - 1, 0, -1):
            j = int(self.random.randint(1 << 32, dtype=np.uint32)) % (i + 1)
            items[i], items[j] = items[j], items[i]

    def reset(self):
        if self.random:
            self.permute(self.order)
        self.open(0)

    def open(self, position):
        shard = self.order[position]
        if shard not in self.verified:
            verify(self.paths[shard])
            self.verified.add(shard)
        self.position, self.next_row = position, 0
        self.tokens = self.shards[shard]
        self.rows = list(range((len(self.tokens) - 1) // self.T))
        if self.random:
            self.permute(self.rows)

    def next_batch(self):
        """Inputs and targets, (B,T) each, on the CPU."""
        if self.next_row + self.B > len(self.rows):
            if self.position + 1 == len(self.shards):
                self.reset()
            else:
                self.open(self.position + 1)
        starts = [row * self.T for row in self.rows[self.next_row : self.next_row + self.B]]
        self.next_row += self.B
        rows = np.stack([self.tokens[start : start + self.T + 1] for start in starts]).astype(np.int64)
        if rows.max() >= self.vocab_size:
            path = self.paths[self.order[self.position]]
            fail(f"{path}: token {rows.max()} is beyond the model's vocabulary of {self.vocab_size}")
        return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())


def learning_rate(args, step):
    """The trainers' schedules: a linear warm-up, then cosine, linear, wsd (constant, then 1 - sqrt), or constant."""
    largest, smallest = args.learning_rate, args.learning_rate * args.final_fraction
    if args.scheduler == "constant":
        return largest
    if step < args.warmup:
        return largest * (step + 1) / args.warmup
    start = int(0.8 * args.max_steps) if args.scheduler == "wsd" else args.warmup
    done = min(max((step - start) / max(args.max_steps - start, 1), 0), 1)
    if args.scheduler == "cosine":
        return smallest + 0.5 * (1 + math.cos(math.pi * done)) * (largest - smallest)
    if args.scheduler == "linear":
        return largest - done * (largest - smallest)
    return smallest + (1 - math.sqrt(done)) * (largest - smallest) if step >= start else largest


def parse_arguments():
    parser = Parser(__doc__)
    shakespeare = "dev/data/tinyshakespeare/tiny_shakespeare"
    add = parser.add_argument
    add(
        "-e", "--model", default="gpt2_124M.bin", metavar="FILE", help="checkpoint to start from (default: %(default)s)"
    )
    add("-i", "--train-data", default=f"{shakespeare}_train.bin", metavar="GLOB", help="default: %(default)s")
    add("-j", "--val-data", default=f"{shakespeare}_val.bin", metavar="GLOB", help="default: %(default)s")
    add("-o", "--output-dir", metavar="DIR", help="where main.log goes")
    add("-b", "--batch", type=positive_int, default=4, metavar="B", help="rows of a micro-batch (default: %(default)s)")
    add("-t", "--time", type=positive_int, default=1024, metavar="T", help="tokens of a row (default: %(default)s)")
    add(
        "-d", "--total-batch", type=positive_int, metavar="N", help="tokens of a step, a multiple of B*T (default: B*T)"
    )
    add("-x", "--max-steps", type=positive_int, default=200, metavar="N", help="default: %(default)s")
    add("--documents", type=int, choices=[0, 1, 2], default=0, help="as the trainers' (default: %(default)s)")
    add("--positions", choices=["row", "document"], default="row", help="as the trainers' (default: %(default)s)")
    add("--separator", type=int, default=50256, metavar="TOKEN", help="of documents (default: %(default)s)")
    add("-k", "--scheduler", choices=["cosine", "linear", "constant", "wsd"], default="cosine", help="default: cosine")
    add("-l", "--learning-rate", type=float, default=3e-4, metavar="X", help="default: %(default)s")
    add("-u", "--warmup", type=int, default=0, metavar="N", help="steps of linear warm-up (default: %(default)s)")
    add("-q", "--final-fraction", type=float, default=1.0, metavar="X", help="of the learning rate, at the end")
    add("-c", "--weight-decay", type=float, default=0.0, metavar="X", help="on matrices only (default: %(default)s)")
    add(
        "--grad-clip",
        type=float,
        default=1.0,
        metavar="X",
        help="largest gradient norm; 0: none (default: %(default)s)",
    )
    add("--optimizer", choices=["adamw", "muon"], default="adamw", help="as the trainers' (default: %(default)s)")
    add("--momentum", type=float, default=0.95, metavar="X", help="Muon's (default: %(default)s)")
    add("--beta1", type=float, default=0.9, metavar="X", help="of the first moment (default: %(default)s)")
    add("--beta2", type=float, default=0.95, metavar="X", help="of the second moment (default: %(default)s)")
    add("--epsilon", type=float, default=1e-8, metavar="X", help="of AdamW (default: %(default)s)")
    add("-v", "--val-every", type=int, default=20, metavar="N", help="steps between validations; 0: only at the end")
    add("-m", "--val-steps", type=positive_int, default=20, metavar="N", help="batches of a validation")
    add("-s", "--sample-every", type=int, choices=[0], default=0, help="0: no samples, which PyTorch does not write")
    add("-f", "--tf32", type=int, choices=[0, 1], default=1, help="1: tf32 GEMMs in float32 (default: %(default)s)")
    add(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="bfloat16",
        help="bfloat16 is autocast (default: %(default)s)",
    )
    add("--compile", type=int, choices=[0, 1], default=0, help="1: torch.compile (default: %(default)s)")
    add("--seed", type=int, default=42, metavar="N", help="of the shuffling (default: %(default)s)")
    add("--shuffle", type=int, choices=[0, 1], default=1, help="1: the trainers' shuffled order (default: %(default)s)")
    add_device_option(parser)
    args = parser.parse_args()
    args.total_batch = args.total_batch or args.batch * args.time
    if args.total_batch % (args.batch * args.time):
        fail(f"--total-batch {args.total_batch} is no multiple of B*T = {args.batch * args.time}")
    return args


class Log:
    """main.log in the trainers' lines, with nine digits."""

    def __init__(self, folder):
        self.path = folder and os.path.join(folder, "main.log")
        if folder:
            self.refuse_other_runs(folder)
            try:
                os.makedirs(folder, exist_ok=True)
                open(self.path, "w", encoding="utf-8").close()
            except OSError as error:
                fail(f"cannot write {self.path}: {error.strerror}")

    def refuse_other_runs(self, folder):
        """A main.log of this script is replaced; the trainers' has main.flags beside it, or another first line."""
        ours = not os.path.exists(os.path.join(folder, "main.flags"))
        if ours and os.path.isfile(self.path):
            with open(self.path, "rb") as f:
                ours = re.match(rb"s:0 (tel|trl):(\d+\.\d{9}|nan|inf)\b|$", f.readline(100)) is not None
        if not ours:
            fail(f"-o {folder}: it holds a run of another program, which stays as it is; name another folder")

    def line(self, text):
        if self.path:
            with open(self.path, "a", encoding="utf-8") as f:
                f.write(text + "\n")


def by_documents(args, level):
    """The model's arguments on documents, in a pass of this level: 1 training, 2 validation"""
    return (args.separator, args.positions == "document") if args.documents >= level else ()


@torch.no_grad()
def validation_loss(model, vocab_size, args, autocast):
    """The mean loss over the first --val-steps batches of the validation data, or fewer where it holds fewer."""
    loader = TokenLoader(args.val_data, args.batch, args.time, vocab_size)
    steps = min(args.val_steps, sum((len(shard) - 1) // (args.batch * args.time) for shard in loader.shards))
    total = 0.0
    for _ in range(steps):
        x, y = (tensor.to(args.device) for tensor in loader.next_batch())
        with autocast():
            total += model(x, y, *by_documents(args, 2))[1].item()
    return total / steps


def train_step(model, compiled, optimizers, loader, args, autocast):
    """One step of accumulated micro-batches. Returns their mean loss and the gradient norm, as numbers."""
    micro_steps = args.total_batch // (args.batch * args.time)
    model.zero_grad(set_to_none=True)
    mean = torch.zeros((), device=args.device)
    for _ in range(micro_steps):
        x, y = (tensor.to(args.device, non_blocking=True) for tensor in loader.next_batch())
        with autocast():
            loss = compiled(x, y, *by_documents(args, 1))[1] / micro_steps
        loss.backward()
        mean += loss.detach()
    norm = clip_gradients(model, args.grad_clip)
    for optimizer in optimizers:
        optimizer.step()
    return mean.item(), norm.item()


def main():
    args = parse_arguments()
    model = read_model(args.model, attention=fused_attention).to(args.device)
    if args.time > model.config.context:
        fail(f"--time {args.time} is beyond the context of {args.model}, {model.config.context}")
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    device_type = torch.device(args.device).type

    def autocast():
        return torch.autocast(device_type, torch.bfloat16) if args.dtype == "bfloat16" else nullcontext()

    vocab_size = model.config.vocab_size
    loader = TokenLoader(args.train_data, args.batch, args.time, vocab_size, args.seed if args.shuffle else None)
    decay = args.weight_decay
    muon = args.optimizer == "muon"
    optimizers = [make_optimizer(model, args.learning_rate, args.beta1, args.beta2, args.epsilon, decay, muon=muon)]
    if muon:
        rounded = (lambda x: x.bfloat16().float()) if args.dtype == "bfloat16" else (lambda x: x)
        optimizers.append(make_muon(model, args.learning_rate, decay, args.momentum, rounded))
    compiled = torch.compile(model) if args.compile else model
    log = Log(args.output_dir)
    times = []
    for step in range(args.max_steps + 1):
        last = step == args.max_steps
        if last or (args.val_every and step % args.val_every == 0):
            loss = validation_loss(compiled, vocab_size, args, autocast)
            print(f"val loss {loss:.6f}")
            log.line(f"s:{step} tel:{loss:.9f}")
        if last:
            break
        start = time.perf_counter()
        rate = learning_rate(args, step)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = rate
        loss, norm = train_step(model, compiled, optimizers, loader, args, autocast)  # .item() waits for the device
        times.append(time.perf_counter() - start)
        speed = f"{1e3 * times[-1]:.2f} ms | {args.total_batch / times[-1]:,.0f} tok/s"
        print(
            f"step {step + 1}/{args.max_steps} | loss {loss:.6f} | norm {norm:.4f} | lr {rate:.3e} | {speed}",
            flush=True,
        )
        log.line(f"s:{step} trl:{loss:.9f} lr:{rate:.9f} norm:{norm:.9f}")
    median = statistics.median(times[len(times) // 4 :])  # the first steps compile and warm up
    memory = f", {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB" if device_type == "cuda" else ""
    print(f"median of the last three quarters: {1e3 * median:.2f} ms, {args.total_batch / median:,.0f} tok/s{memory}")


if __name__ == "__main__":
    run(main)
