#!/usr/bin/env python3
"""Speed of generation beside transformers' generate: greedy, bf16, random weights, on the GPU of this machine.

    make build/generate_speed && python dev/bench/generate.py [--output dev/bench/<gpu>/generate.csv] [--only-ours]

Cost: 3 minutes, most of them torch.compile's; 8 GB of GPU memory. Needs PyTorch with CUDA and transformers; without
them, or with --only-ours, the rows of flashgpt alone. Rows: who, model, batch, tokens of the prompt, new tokens,
tokens/s of the median and of the best round, milliseconds to the first token, microseconds a step. They are written
as soon as they are there; those of an earlier call with the same who, model, batch and GPU go. COMMIT=<hash> says what
is measured where there is no git.
"""

import os
import statistics
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from quickstart import output_of
from step_cost import commit_of, provenance, write_rows

from data_common import ROOT, Parser, fail, positive_int, run

SIZES = {"d12": (12, 12, 768), "d48": (48, 25, 1600)}
CASES = [("d12", 1), ("d12", 64), ("d48", 1)]
MEASURED = ["who", "model", "batch", "prompt", "new", "tokens_per_s", "best_tokens_per_s", "first_token_ms", "step_us"]
COLUMNS = [*MEASURED, "gpu", "driver", "cuda", "date", "commit"]


def machine():
    name = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").split("\n")[0]
    if not name:
        fail("nvidia-smi shows no GPU here")
    common = provenance(name, False)
    return {"gpu": common.pop("machine"), **common, "commit": os.environ.get("COMMIT") or commit_of(ROOT)}


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


def transformers_rows(model_name, batch, prompt_tokens, new, rounds):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, channels = SIZES[model_name]
    config = GPT2Config(n_layer=layers, n_head=heads, n_embd=channels)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(config).to("cuda", torch.bfloat16).eval()
    prompt = torch.randint(0, config.vocab_size, (batch, prompt_tokens), device="cuda")
    for who in ("transformers", "transformers compiled"):
        settings = {"cache_implementation": "static"} if who != "transformers" else {}
        if settings:
            model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

        def generate(ids, count, settings=settings):
            with torch.inference_mode():
                return model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=count,
                    min_new_tokens=count,
                    do_sample=False,
                    pad_token_id=0,
                    **settings,
                )

        whole, first = timed(generate, prompt, new, rounds), timed(generate, prompt, 1, rounds)
        seconds, begin, tokens = statistics.median(whole), statistics.median(first), batch * new
        yield (
            f"{who},{model_name},{batch},{prompt_tokens},{new},{tokens / seconds:.1f},{tokens / min(whole):.1f},"
            f"{1e3 * begin:.3f},{1e6 * (seconds - begin) / (new - 1):.2f}"
        )


def main():
    parser = Parser(__doc__)
    parser.add_argument("--output", metavar="FILE", help="the CSV; default: dev/bench/<gpu>/generate.csv")
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "generate_speed"), metavar="FILE")
    parser.add_argument("--prompt", type=positive_int, default=64)
    parser.add_argument("--new", type=positive_int, default=192)
    parser.add_argument("--rounds", type=positive_int, default=5)
    parser.add_argument("--only-ours", action="store_true")
    args = parser.parse_args()
    if not os.path.exists(args.program):
        fail(f"{args.program} is not there: make build/generate_speed")
    about = machine()
    place = about["gpu"].lower().replace(" ", "-")
    output = args.output or os.path.join(ROOT, "dev", "bench", place, "generate.csv")

    def add(row):
        print(row, flush=True)
        columns = {**dict(zip(MEASURED, row.split(","))), **about}
        write_rows(output, COLUMNS, ("who", "model", "batch", "gpu"), [columns])

    for model, batch in CASES:
        add(our_row(args, model, batch))
    try:
        for model, batch in () if args.only_ours else CASES:
            for row in transformers_rows(model, batch, args.prompt, args.new, args.rounds):
                add(row)
    except ImportError as error:
        print(f"transformers: skipped, {error}", file=sys.stderr)


if __name__ == "__main__":
    run(main)
