#!/usr/bin/env python3
"""Speed of generation beside transformers' generate: greedy, bf16, random weights, on the GPU of this machine.

    make build/generate_speed && python dev/bench/generate.py [--output dev/bench/<gpu>/generate.csv] [--only-ours]

Cost: 4 minutes, most of them torch.compile's; 8 GB of GPU memory. Needs PyTorch with CUDA and transformers; without
them, or with --only-ours, the rows of flashgpt alone; a peer that fails is one line on stderr. --cases d12:1 measures
batch 1 of that model alone. Rows: who, model, batch, tokens of the prompt, new tokens,
tokens/s of the median and of the best round, milliseconds to the first token, microseconds a step. They are written
as soon as they are there; those of an earlier call with the same who, model, batch and GPU go. COMMIT=<hash> says what
is measured where there is no git.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from measured import BENCH, file_name, gpu_name, gpu_provenance, write_rows

from data_common import ROOT, Parser, fail, positive_int, run

SIZES = {"d12": (12, 12, 768), "d48": (48, 25, 1600)}
CASES = [("d12", 1), ("d12", 8), ("d12", 16), ("d12", 64), ("d48", 1)]
MEASURED = ["who", "model", "batch", "prompt", "new", "tokens_per_s", "best_tokens_per_s", "first_token_ms", "step_us"]
COLUMNS = [*MEASURED, "gpu", "driver", "cuda", "date", "commit"]


def our_row(args, model, batch):
    command = [args.program, model, *map(str, (batch, args.prompt, args.new, args.rounds))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    row = done.stdout.strip()
    if done.returncode or row.count(",") != len(MEASURED) - 1:
        fail(f"{' '.join(command)}: exit code {done.returncode}: {(done.stderr.strip() or row)[-300:]}")
    return row


def timed(generate, prompt, new, rounds):
    """Seconds of generating `new` tokens, one number a round."""
    import torch

    seconds = []
    for i in range(rounds + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = generate(prompt, new)
        torch.cuda.synchronize()
        if i > 0:
            seconds.append(time.perf_counter() - start)
        assert out.shape[1] == prompt.shape[1] + new
    return seconds


def transformers_model(model_name):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, channels = SIZES[model_name]
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_head=heads, n_embd=channels))
    return model.to("cuda", torch.bfloat16).eval()


# What transformers' generate is told. With a static cache it compiles a step by itself, with CUDA graphs, and leaves
# the prompt's pass as it is: compiling the model's forward would make the cache a tensor of a CUDA graph, which the
# next replay overwrites.
PEERS = {"transformers": {}, "transformers compiled": {"cache_implementation": "static"}}


def transformers_row(who, model_name, batch, prompt_tokens, new, rounds):
    import torch

    model = transformers_model(model_name)
    prompt = torch.randint(0, model.config.vocab_size, (batch, prompt_tokens), device="cuda")

    def generate(ids, count):
        with torch.inference_mode():
            return model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
                **PEERS[who],
            )

    whole, first = timed(generate, prompt, new, rounds), timed(generate, prompt, 1, rounds)
    seconds, begin, tokens = statistics.median(whole), statistics.median(first), batch * new
    return (
        f"{who},{model_name},{batch},{prompt_tokens},{new},{tokens / seconds:.1f},{tokens / min(whole):.1f},"
        f"{1e3 * begin:.3f},{1e6 * (seconds - begin) / (new - 1):.2f}"
    )


def peer_rows(cases, prompt_tokens, new, rounds, row_of=transformers_row):
    """The peers' rows; one that fails is a line on stderr, and the others go on."""
    for model, batch in cases:
        for who in PEERS:
            try:
                yield row_of(who, model, batch, prompt_tokens, new, rounds)
            except ImportError as error:
                print(f"transformers: skipped, {error}", file=sys.stderr)
                return
            except Exception as error:  # noqa: BLE001 - whatever a library raises
                said = (str(error).strip() or type(error).__name__).splitlines()[0]
                print(f"{who}, {model} batch {batch}: failed, {said[:300]}", file=sys.stderr)


def case(text):
    """d12:64 -> ("d12", 64)"""
    model, _, batch = text.partition(":")
    if model not in SIZES:
        raise argparse.ArgumentTypeError(f"'{text}' is not one of {', '.join(SIZES)} and a batch, as d12:64")
    return model, positive_int(batch)


def main():
    parser = Parser(__doc__)
    parser.add_argument("--output", metavar="FILE", help="the CSV; default: dev/bench/<gpu>/generate.csv")
    parser.add_argument(
        "--program",
        default=os.path.join(ROOT, "build", "generate_speed"),
        metavar="FILE",
        help="what is timed (default: %(default)s)",
    )
    parser.add_argument("--prompt", type=positive_int, default=64, help="tokens (default: %(default)s)")
    parser.add_argument("--new", type=positive_int, default=192, help="tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=positive_int, default=5, help="default: %(default)s")
    parser.add_argument("--only-ours", action="store_true", help="without PyTorch and transformers")
    parser.add_argument(
        "--cases", nargs="+", type=case, default=CASES, metavar="MODEL:BATCH", help="models and sequences a batch"
    )
    args = parser.parse_args()
    if not os.path.exists(args.program):
        fail(f"{args.program} is not there: make build/generate_speed")
    about = gpu_provenance(gpu_name())
    output = args.output or os.path.join(BENCH, file_name(about["gpu"]), "generate.csv")

    def add(row):
        print(row, flush=True)
        columns = {**dict(zip(MEASURED, row.split(","))), **about}
        write_rows(output, COLUMNS, ("who", "model", "batch", "gpu"), [columns])

    for model, batch in args.cases:
        add(our_row(args, model, batch))
    for row in peer_rows(() if args.only_ours else args.cases, args.prompt, args.new, args.rounds):
        add(row)


if __name__ == "__main__":
    run(main)
