#!/usr/bin/env python3
"""Writes what the C and CUDA code is tested against: <output>.bin (fp32 weights), <output>_bf16.bin (the same rounded),
<output>_debug_state.bin (a batch, its logits, loss and gradients, and the losses of ten AdamW steps on it) and, with
--error-batches, <output>_bf16_errors.csv (how far our bf16 strays from these: see rounding.py). With --muon also
<output>_muon.bin: what ten steps of Muon on that batch change.

    python3 dev/reference/write_reference.py --model d12 --output gpt2_124M          # 70 s on 2 cores, 6.6 GB of memory
    python3 dev/reference/write_reference.py --hf path/to/gpt2 --output gpt2_124M    # weights of a local checkpoint
    python3 dev/reference/write_reference.py --init test --learning-rate 1e-3 --error-batches 32 --layers 2 --heads 1 \\
        --channels 32 --context 64 --vocab 251 --batch 2 --time 37 --muon --output dev/reference/tiny
    python3 dev/reference/write_reference.py --init test --learning-rate 1e-3 --error-batches 32 --layers 1 --heads 2 \\
        --channels 64 --context 40 --vocab 123 --batch 2 --time 40 --muon --fp8 --output dev/reference/tiny_heads
    python3 dev/reference/write_reference.py --init test --learning-rate 1e-3 --error-batches 32 --layers 1 --heads 1 \\
        --channels 64 --context 1030 --vocab 16 --batch 2 --time 1030 --weights bf16 --output dev/reference/long_hs64
    python3 dev/reference/write_reference.py --init test --learning-rate 1e-3 --error-batches 32 --layers 1 --heads 1 \\
        --channels 128 --context 1030 --vocab 16 --batch 1 --time 1030 --weights bf16 --output dev/reference/long_hs128

The last four are the committed dumps: seconds for the first two, two minutes each for the others with OpenBLAS, ten and
more with the reference BLAS. The first has two layers, T that is no multiple of a tile and a padded vocabulary; the
second two heads and T at the end of the context; the others many key blocks, of heads of 64 and 128.

The state follows from the weights of <output>.bin, and is computed in fp64 where the model is small enough (--dtype).
"""

import copy
import os

try:
    import torch
except ImportError as error:
    raise SystemExit(f"error: no Python package {error.name} here: pip install torch numpy") from None

from common import Parser, add_device_option, fail, make_directory, positive_int, read_token_file, run
from formats import read_hugging_face, write_errors, write_model, write_muon, write_state
from model import (
    GPT2,
    SIZES,
    Config,
    clip_gradients,
    initialise,
    initialise_for_tests,
    make_optimizer,
)
from rounding import forward_fp8, forward_int8, measure, muon_changes

STEPS, MUON_SAMPLES = 10, 128
BETA1, BETA2, EPSILON, WEIGHT_DECAY, CLIP = 0.9, 0.95, 1e-8, 0.1, 1.0
LARGEST_FP64 = 500_000_000  # parameters: weights, gradients and two moments of 8 bytes make 16 GB


def parse_arguments():
    parser = Parser(__doc__)
    model = parser.add_argument_group("the model: --model, or --hf, or its sizes")
    model.add_argument("--model", choices=SIZES, help="GPT-2 by depth")
    model.add_argument("--hf", metavar="DIR", help="a local Hugging Face checkpoint of GPT-2")
    for size in ("layers", "heads", "channels"):
        model.add_argument(f"--{size}", type=positive_int, metavar="N", help=f"{size} of a model of its own")
    model.add_argument("--context", type=positive_int, metavar="N", help="default: 1024")
    model.add_argument("--vocab", type=positive_int, metavar="N", help="default: 50257")
    model.add_argument(
        "--init",
        choices=["gpt2", "test"],
        default="gpt2",
        help="initial weights: GPT-2's, or such that every gradient matters (default: %(default)s)",
    )
    batch = parser.add_argument_group("the batch")
    batch.add_argument("--batch", type=positive_int, default=4, metavar="B", help="default: %(default)s")
    batch.add_argument("--time", type=positive_int, default=64, metavar="T", help="default: %(default)s")
    batch.add_argument(
        "--data", metavar="FILE", help="token file whose first B*T+1 tokens are the batch (default: random)"
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=1e-4,
        metavar="X",
        help="of the ten steps (default: %(default)s); 1e-3 makes faults in decay and clipping show in small models",
    )
    parser.add_argument("--seed", type=int, default=42, help="of weights and random tokens (default: %(default)s)")
    parser.add_argument(
        "--dtype", choices=["float32", "float64"], help="of the computation (default: by the model's size)"
    )
    parser.add_argument(
        "--error-batches",
        type=positive_int,
        metavar="N",
        help="batches to measure the errors of bf16 on, each twice the work (default: none are written)",
    )
    parser.add_argument(
        "--weights",
        choices=["float32", "bf16"],
        default="float32",
        help="bf16: <output>.bin has rounded weights, and the state is computed from them (default: %(default)s)",
    )
    parser.add_argument("--fp8", action="store_true", help="with --error-batches: the errors of --fp8, too")
    parser.add_argument("--muon", action="store_true", help="write what ten steps of Muon change, too")
    add_device_option(parser)
    parser.add_argument("--output", required=True, metavar="PREFIX", help="of the files")
    return parser.parse_args()


def build_model(args):
    by_sizes = [args.layers, args.heads, args.channels]
    ways = [args.model is not None, args.hf is not None, any(by_sizes)]
    if sum(ways) != 1:
        fail("say which model in one way: --model, or --hf, or --layers, --heads and --channels")
    if args.hf:
        if args.context or args.vocab:
            fail("--context and --vocab come with the checkpoint of --hf")
        return read_hugging_face(args.hf)
    layers, heads, channels = SIZES[args.model] if args.model else by_sizes
    if not (layers and heads and channels):
        fail("--layers, --heads and --channels go together")
    if channels % heads:
        fail(f"--channels {channels} does not divide by --heads {heads}")
    model = GPT2(Config(args.context or 1024, args.vocab or 50257, layers, heads, channels))
    (initialise if args.init == "gpt2" else initialise_for_tests)(model, args.seed)
    return model


def build_batch(args, config, n=0):
    """Inputs and targets of batch n, (B,T) each: the targets are the inputs' successors."""
    B, T = args.batch, args.time
    if config.context < T:
        fail(f"--time {T} is beyond the model's context of {config.context}")
    if args.data:
        tokens, _ = read_token_file(args.data)
        if len(tokens) < (n + 1) * B * T + 1:
            fail(f"{args.data} holds {len(tokens)} tokens, {n + 1} x {B} x {T} and one are needed")
        run = torch.tensor(tokens[n * B * T : (n + 1) * B * T + 1].tolist())
        if int(run.max()) >= config.vocab_size:
            fail(f"{args.data}: token {int(run.max())} is beyond the model's vocabulary of {config.vocab_size}")
    else:
        generator = torch.Generator().manual_seed(args.seed + 1 + n)
        run = torch.randint(config.vocab_size, (B * T + 1,), generator=generator)
    return run[:-1].view(B, T), run[1:].view(B, T)


def main():
    args = parse_arguments()
    model = build_model(args)
    x, y = build_batch(args, model.config)
    make_directory(os.path.dirname(args.output))
    if args.weights == "bf16":
        model = model.bfloat16().float()
        write_model(model, f"{args.output}.bin", torch.bfloat16)
    else:
        write_model(model, f"{args.output}.bin", torch.float32)
        write_model(model, f"{args.output}_bf16.bin", torch.bfloat16)

    parameters = sum(p.numel() for p in model.parameters())
    dtype = args.dtype or ("float64" if parameters <= LARGEST_FP64 else "float32")
    model.to(args.device, getattr(torch, dtype))
    x, y = x.to(args.device), y.to(args.device)
    adam = (args.learning_rate, BETA1, BETA2, EPSILON, WEIGHT_DECAY)
    if args.error_batches:
        batches = [build_batch(args, model.config, n) for n in range(args.error_batches)]
        batches = [tuple(t.to(args.device) for t in batch) for batch in batches]
        errors = measure(model, batches, STEPS, CLIP, *adam, muon=args.muon)
        write_errors(f"{args.output}_bf16_errors.csv", "bf16", errors, args.error_batches)
        if args.fp8:
            for name, forward in (("fp8", forward_fp8), ("int8", forward_int8)):
                errors = measure(model, batches, 1, CLIP, *adam, forward=forward)
                write_errors(f"{args.output}_{name}_errors.csv", name, errors, args.error_batches)
    if args.muon:
        changes = muon_changes(copy.deepcopy(model), lambda m, *batch: m(*batch), x, y, STEPS, CLIP, *adam)
        write_muon(f"{args.output}_muon.bin", changes, STEPS, MUON_SAMPLES)
    optimizer = make_optimizer(model, *adam)
    losses = []
    for step in range(STEPS):
        logits, loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if step == 0:
            first = logits.detach(), loss.detach()
            gradients = [t.grad.float().cpu() for _, tensors in model.tensors() for t in tensors]
        norm = clip_gradients(model, CLIP)
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step + 1}: loss {loss.item():.6f}, gradient norm {norm.item():.6f} ({dtype})")
    write_state(f"{args.output}_debug_state.bin", x, y, *first, gradients, losses, (*adam, CLIP))


if __name__ == "__main__":
    run(main)
